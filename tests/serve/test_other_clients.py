"""Programs of others that are not changed for us, where they are installed.

``AUGURY_LLM`` and ``AUGURY_VLLM`` name the executables ``llm`` (simonw/llm) and ``vllm``; else they are looked for
beside this Python and on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from served import NAME, serving

from augury.server.metrics import Metrics
from augury.server.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs/serving.md"


def executable(name: str) -> str:
    place = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = os.environ.get(f"AUGURY_{name.upper()}") or shutil.which(name, path=place)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_simonws_llm_as_the_page_says(server, tmp_path):
    snippet = re.search(r"```yaml\n((?: *)- model_id: augury\n.*?)```", PAGE.read_text(), re.S)[1]
    (tmp_path / "extra-openai-models.yaml").write_text(snippet.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"))
    asked = [executable("llm"), "-m", "augury", "-o", "max_tokens", "12", "-o", "temperature", "0", "Count to ten."]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    answers = []
    for more in ([], ["--no-stream"]):
        done = subprocess.run([*asked, *more], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout.strip())
    question = {"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 12}
    wanted = server.chat(question).json["choices"][0]["message"]["content"].strip()
    assert answers == [wanted, wanted]


@pytest.mark.slow
def test_vllms_benchmark_prints_acceptance(service, tmp_path, monkeypatch):
    """It reads vLLM's names from our /metrics."""
    vllm, metrics = executable("vllm"), Metrics(NAME)
    monkeypatch.setattr(service, "_watch", metrics)
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text(service.engine.tokenizer._backend.to_str())
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    # The command asks for the version of a package of this name, and the wheel for CPUs has another one.
    stated = tmp_path / "stated" / "vllm-0.dist-info"
    stated.mkdir(parents=True)
    (stated / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0\n")
    environment = {**os.environ, "PYTHONPATH": str(stated.parent), "HF_HUB_OFFLINE": "1"}
    with serving(service, Settings(names=(NAME,)), metrics) as server:
        done = subprocess.run(
            [
                vllm, "bench", "serve", "--backend", "openai-chat", "--base-url", server.url,
                "--endpoint", "/v1/chat/completions", "--model", NAME, "--tokenizer", str(tokenizer),
                "--dataset-name", "random", "--random-input-len", "24", "--random-output-len", "64",
                "--num-prompts", "4", "--max-concurrency", "2", "--temperature", "0",
            ],
            env=environment, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = {name: float(value) for name, value in re.findall(r"^ *([A-Z][^:\n]*): +([\d.]+) *$", done.stdout, re.M)}
    totals = metrics.totals
    assert (said["Successful requests"], said["Failed requests"]) == (4, 0)
    assert said["Drafts"] == totals.drafts > 0
    assert said["Draft tokens"] == totals.drafted
    assert said["Accepted tokens"] == totals.accepted
    assert said["Acceptance length"] == pytest.approx(1 + totals.accepted / totals.drafts, abs=0.01)
    assert said["Position 0"] == pytest.approx(100 * totals.positions[0] / totals.drafts, abs=0.01)
