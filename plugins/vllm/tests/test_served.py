"""``vllm serve`` with our proposer, from its command line to the series of its metrics."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import openai
import pytest

from conftest import TOKENS


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    port, log = free_port(), tmp_path_factory.mktemp("log") / "log"
    speculation = {"method": "custom_class", "model": "augury_vllm.AuguryProposer", "num_speculative_tokens": TOKENS}
    # What ``vllm serve`` starts; of the build for CPUs that command itself looks for a package of another name.
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port),
        "--host", "127.0.0.1", "--served-model-name", "small", "--max-model-len", "1024", "--enforce-eager",
        "--speculative-config", json.dumps(speculation),
        "--additional-config", json.dumps({"augury": {"drafters": "suffix,ngram", "prices": "given", "row": 0.05}}),
    ]  # fmt: skip
    place = tmp_path_factory.mktemp("tmp")
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(place)}
        )
    url = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1)
            break
        except OSError:
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
    yield url, place
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    left = [path for path in place.rglob("*") if path.is_file() and "augury" in str(path)]
    assert not left, "counts are left behind"


def series(url: str) -> dict[str, float]:
    text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    return {name: float(value) for name, value in re.findall(r"^(augury:\S+|vllm:spec\S+) (\S+)$", text, re.M)}


def test_it_answers_and_shows_what_each_drafter_brought(server):
    url, place = server
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        said = [
            client.chat.completions.create(
                model="small", messages=[{"role": "user", "content": "Count to ten, twice."}],
                max_tokens=80, temperature=0,
            )
            for _ in range(2)
        ]  # fmt: skip
    assert said[0].choices[0].message.content == said[1].choices[0].message.content
    assert said[0].usage.completion_tokens > 10
    (folder,) = [path for path in place.iterdir() if path.name.startswith("augury-vllm")]
    assert folder.stat().st_mode & 0o777 == 0o700
    found = series(url)
    label = 'augury:drafter_{}_tokens_total{{drafter="{}",engine="0",model_name="small"}}'
    drafted = {name: found[label.format("draft", name)] for name in ("suffix", "ngram")}
    right = {name: found[label.format("accepted", name)] for name in ("suffix", "ngram")}
    assert sum(right.values()) > 0
    assert all(right[name] <= drafted[name] for name in drafted)
    theirs = sum(
        value for name, value in found.items() if name.startswith("vllm:spec_decode_num_accepted_tokens_total")
    )
    assert sum(right.values()) == pytest.approx(theirs, rel=0.05)


def test_a_stream_comes_in_pieces(server):
    url, _ = server
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = client.completions.create(
            model="small", prompt="one two three one two three one two", max_tokens=40, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert len(pieces) > 3
