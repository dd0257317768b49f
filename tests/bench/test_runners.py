"""The two ends of the protocol, with engines of the tests' own."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from augury.bench import runners
from augury.bench.runners import PeerFailed, Setup, running

PROMPT = np.asarray([5, 6, 7], np.int32)

ENGINES = {
    "echo": """
import os, sys
def start(options):
    print("a line that is no answer")
    def answer(prompt, max_tokens, eos, emit):
        print("nor is this")
        emit(prompt[:1])
        emit([*prompt[1:], *eos][: max_tokens - 1])
    return answer, options["packages"]
""",
    "refuses": """
def start(options):
    raise RuntimeError(f"no model\\nat {options['model']}")
""",
    "dies": """
import os, sys
def start(options):
    def answer(prompt, max_tokens, eos, emit):
        sys.stderr.write("a long story\\nout of memory\\n")
        sys.stderr.flush()
        os._exit(3)
    return answer, ["numpy"]
""",
    "raises": """
def start(options):
    def answer(prompt, max_tokens, eos, emit):
        emit(prompt)
        raise ValueError("too long")
    return answer, ["numpy"]
""",
    "mute": """
def start(options):
    return (lambda prompt, max_tokens, eos, emit: None), ["numpy"]
""",
    "waits": """
import time
def start(options):
    return (lambda prompt, max_tokens, eos, emit: time.sleep(60)), ["numpy"]
""",
    "spins": """
import subprocess, sys
def start(options):
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    return (lambda prompt, max_tokens, eos, emit: emit([child.pid])), ["numpy"]
""",
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """``start(engine, **options)``: a context with that engine of ``ENGINES`` as a peer."""
    for name, source in ENGINES.items():
        (tmp_path / f"{name}.py").write_text(source)
    worker = tmp_path / "worker.py"
    worker.write_text(runners.WORKER.read_text())
    monkeypatch.setattr(runners, "WORKER", worker)

    def opened(engine: str, **options: object):
        return running(Setup(engine, engine, "", options=options), Path(sys.executable), 1)

    return opened


def test_an_answer_comes_in_pieces_and_what_an_engine_prints_is_no_part_of_it(start):
    with start("echo", packages=["numpy"]) as peer:
        assert peer.versions == {"numpy": np.__version__}
        for _ in range(2):
            got = peer.answer(PROMPT, 10, [2])
            assert got.tokens == (5, 6, 7, 2)
            assert [count for _, count in got.stamps] == [1, 4]
            assert got.token_ms is not None
            assert got.token_ms >= 0
        assert peer.answer(PROMPT, 2, [2]).tokens == (5, 6)


def test_an_engine_that_refuses_says_why(start):
    with pytest.raises(PeerFailed, match="RuntimeError: no model at nowhere"), start("refuses", model="nowhere"):
        pass


def test_an_engine_that_is_not_installed_says_so(start):
    with pytest.raises(PeerFailed, match="PackageNotFoundError"), start("echo", packages=["no-such-package"]):
        pass


def test_no_python_is_a_failure_of_that_peer(tmp_path):
    with pytest.raises(PeerFailed, match="cannot be run"), running(Setup("x", "x", ""), tmp_path / "python", 1):
        pass


def test_the_last_words_of_a_process_that_dies_are_told(start):
    with start("dies") as peer:
        with pytest.raises(PeerFailed, match="its process ended: out of memory"):
            peer.answer(PROMPT, 10, [2])
        with pytest.raises(PeerFailed, match="its process ended"):
            peer.answer(PROMPT, 10, [2])


def test_an_error_in_one_answer_is_that_answer_s(start):
    with start("raises") as peer:
        for _ in range(2):
            with pytest.raises(PeerFailed, match="ValueError: too long"):
                peer.answer(PROMPT, 10, [2])


def test_an_answer_without_tokens_is_none(start):
    with start("mute") as peer, pytest.raises(PeerFailed, match="without a token"):
        peer.answer(PROMPT, 10, [2])


def test_a_peer_that_does_not_answer_in_time_is_given_up(start, monkeypatch):
    monkeypatch.setattr(runners, "ANSWER_SECONDS", 0.2)
    with start("waits") as peer, pytest.raises(PeerFailed, match=r"nothing came for 0\.2 seconds"):
        peer.answer(PROMPT, 10, [2])


def test_a_peer_is_stopped_between_its_turns_and_gone_after_them(start):
    """With what it started: ``T`` is a stopped process, and one that is gone may be a zombie for a while."""
    with start("spins") as peer:
        for _ in range(2):
            (child,) = peer.answer(PROMPT, 10, [2]).tokens
            wait(child, "T")
    wait(child, "Z", "X", "gone")


def wait(pid: int, *states: str) -> None:
    until = time.monotonic() + 20.0
    while state(pid) not in states:
        assert time.monotonic() < until, f"process {pid} is {state(pid)}, not {states}"
        time.sleep(0.01)


def state(pid: int) -> str:
    """The letter that says what a process does."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("hello", "no JSON object: 'hello'"),
        ("[1]", "no JSON object"),
        ("{}", "did not begin with its versions"),
        ('{"versions": {}}\\n{"tokens": [1]}', "no answer"),
        ('{"versions": {}}\\n{"tokens": [1], "stamps": [1]}', "no answer"),
        ('{"versions": {}}\\n{"tokens": 1, "stamps": []}', "no answer"),
    ],
)
def test_a_peer_that_speaks_something_else_is_refused(tmp_path, monkeypatch, line, said):
    worker = tmp_path / "worker.py"
    worker.write_text(f"import sys\nprint('{line}', flush=True)\nsys.stdin.read()\n")
    monkeypatch.setattr(runners, "WORKER", worker)
    with (
        pytest.raises(PeerFailed, match=said),
        running(Setup("x", "x", ""), Path(sys.executable), 1) as peer,
    ):
        peer.answer(PROMPT, 10, [2])
