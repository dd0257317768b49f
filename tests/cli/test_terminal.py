"""The command in a real terminal: Ctrl-C, colours, progress, closed pipes."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from augury.cli.ribbon import Pen

pytestmark = pytest.mark.real

COMMAND = [sys.executable, "-c", "from augury.cli import main; main()"]
CODE = "Write a Python function that returns the n-th Fibonacci number, then write it again with type hints."
LONG = ["--max-tokens", "7000", "--ignore-eos"]


class Terminal:
    """A command running in a pseudo-terminal."""

    def __init__(self, *args, **env):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", "COLUMNS": "200"} | env)
            os.execv(sys.executable, [*COMMAND, *args])

    def until(self, pattern, timeout=180):
        """Read until a pattern appears behind what was matched before."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self.text, flags=re.S)):
            ready, _, _ = select.select([self.fd], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no {pattern!r} in {self.text!r}"
            try:
                read = os.read(self.fd, 65536)
            except OSError:
                read = b""
            assert read, f"ended without {pattern!r}: {self.text!r}"
            self.text += read.decode(errors="replace")
        seen, self.text = self.text[: found.end()], self.text[found.end() :]
        return seen

    def type(self, text):
        os.write(self.fd, text.encode())

    def kill(self):
        """End the command, whatever state it is in."""
        if self.fd >= 0:
            os.kill(self.pid, signal.SIGKILL)
            self.close()

    def close(self):
        """Read to the end; gives (rest, exit code)."""
        while True:
            try:
                read = os.read(self.fd, 65536)
            except OSError:
                break
            if not read:
                break
            self.text += read.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.fd = -1
        return self.text, os.waitstatus_to_exitcode(status)


@pytest.fixture
def start():
    """Start commands in terminals; none outlives the test."""
    started = []

    def begin(*args, **env):
        started.append(Terminal(*args, **env))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.kill()


def test_ctrl_c_ends_generate_without_a_traceback(start):
    terminal = start("generate", CODE, *LONG)
    before = terminal.until("```")
    assert "measuring costs" in before  # progress was shown, erased, and gave the cursor back
    assert before.count("\x1b[?25l") == before.count("\x1b[?25h") == 1
    assert before.rpartition("\x1b[2K")[2].strip("\r\n") == "```"
    terminal.type("\x03")
    rest, code = terminal.close()
    assert code == 130
    assert "Traceback" not in rest
    assert rest.endswith("\n")


def test_sigint_while_loading_ends_quietly():
    run = subprocess.Popen([*COMMAND, "generate", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    maps = Path(f"/proc/{run.pid}/maps")
    deadline = time.monotonic() + 60
    while "libtorch" not in maps.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def test_chat_survives_one_ctrl_c_and_leaves_at_the_second(start):
    terminal = start("chat", *LONG)
    terminal.until("/help for help")
    terminal.until("> ")
    terminal.type(CODE + "\r")
    terminal.until("```")
    terminal.type("\x03")
    terminal.until(r"\(stopped\)")
    terminal.until(r"tokens/s.*?> ")
    terminal.type("Say yes.\r")
    terminal.until(r"yes\..*?\n.*?\w")
    terminal.type("\x03")
    terminal.until(r"\(stopped\).*?> ")
    time.sleep(0.3)
    terminal.type("\x03")
    rest, code = terminal.close()
    assert code == 130
    assert "Traceback" not in rest


def test_chat_ends_with_ctrl_d(start):
    terminal = start("chat", "--drafters", "none")
    terminal.until("> ")
    time.sleep(0.3)  # Python's readline misses a signal between its prompt and its waiting
    terminal.type("\x03")
    terminal.until("again or Ctrl-D leaves.*> ")
    time.sleep(0.3)
    terminal.type("\x04")
    rest, code = terminal.close()
    assert code == 0
    assert rest.endswith("\n")


def test_a_closed_pipe_is_quiet_and_a_poor_encoding_does_not_end_the_answer():
    run = subprocess.Popen(
        [*COMMAND, "generate", "今天天气很好，我想去公园散步玩耍", "--raw", "--show-drafts", *LONG],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.read(60).isascii()
    run.stdout.close()
    assert run.wait(timeout=180) == 141
    assert run.stderr is not None
    assert run.stderr.read() == b""
    run.stderr.close()


def written(monkeypatch, pieces, **env):
    """What a pen writes to a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", *env):
        monkeypatch.setenv(name, env.get(name, ""))
    leader, follower = pty.openpty()
    try:
        with open(follower, "w", encoding="utf-8", newline="") as out:
            pen = Pen(out, ["suffix", "model"])
            pen.write(pieces)
            out.write(pen.legend())
        return os.read(leader, 65536).decode()
    finally:
        os.close(leader)


PIECES = [("one ", None), ("two ", "suffix"), ("three", "model"), ("\x1b]0;title\x07\x9b\t.", None)]


def test_drafters_differ_by_colour_and_by_line(monkeypatch):
    text = written(monkeypatch, PIECES)
    assert "one \x1b[4;32mtwo \x1b[0m\x1b[21;36mthree\x1b[0m" in text
    assert "guessed by \x1b[4;32msuffix\x1b[0m, \x1b[21;36mmodel\x1b[0m" in text


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours_there_are_brackets(monkeypatch, env):
    text = written(monkeypatch, PIECES, **env)
    assert "one ⟦two ⟧1⟦three⟧2" in text
    assert "\x1b" not in text


def test_an_answer_cannot_steer_the_terminal(monkeypatch):
    assert "^[]0;title^G�\t." in written(monkeypatch, PIECES)
