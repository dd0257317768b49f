"""The command line, from its start to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from replicated import NAME, alive

pytestmark = pytest.mark.slow

COMMAND = [
    str(Path(sys.executable).parent / "serve"), "run", "augury.integrations.ray_serve:build", f"model={NAME}",
    "replicas=2", "drafters=suffix", "max_model_len=512", "max_num_seqs=2",
]  # fmt: skip


def heeded() -> None:
    """Ctrl-C is heard: what a shell starts in the background is told to ignore it, and hands that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def children(pid: int) -> list[int]:
    """Processes below one, and below those."""
    found, front = [], [pid]
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents.setdefault(int(place.joinpath("stat").read_text().rpartition(")")[2].split()[1]), []).append(
                int(place.name)
            )
        except OSError:
            continue
    while front:
        front = [child for one in front for child in parents.get(one, ())]
        found += front
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_and_ends_with_nothing_left(tmp_path, number):
    log = tmp_path / "log"
    with log.open("w") as out:
        running = subprocess.Popen(COMMAND, stdout=out, stderr=subprocess.STDOUT, preexec_fn=heeded)
    below: list[int] = []
    try:
        end = time.monotonic() + 180
        while True:
            assert running.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            try:
                if httpx.get("http://127.0.0.1:8000/ready", timeout=10).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(1)
        body = {"model": NAME, "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
        answer = httpx.post("http://127.0.0.1:8000/v1/chat/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] > 0
        below = children(running.pid)
        assert len(below) >= 5
        running.send_signal(number)
        running.wait(90)
        end = time.monotonic() + 30
        while left := [pid for pid in below if alive(pid)]:
            assert time.monotonic() < end, left
            time.sleep(0.5)
    finally:
        for pid in [running.pid, *below, *children(running.pid)]:  # nothing is left for the test behind this one
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        running.wait()


@pytest.mark.parametrize(
    ("word", "told"), [("replica=3", "did you mean 'replicas'"), ("replicas=many", "whole number")]
)
def test_what_is_wrong_is_told_before_anything_starts(word, told):
    done = subprocess.run([*COMMAND[:3], word], capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode != 0
    assert told in done.stdout + done.stderr
