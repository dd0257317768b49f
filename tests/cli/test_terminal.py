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

import pytest

pytestmark = pytest.mark.real

COMMAND = [sys.executable, "-c", "from augury.cli import main; main()"]
LONG = ["--max-tokens", "1500", "--ignore-eos", "--max-model-len", "2048"]


class Terminal:
    """A command running in a pseudo-terminal."""

    def __init__(self, *args, **env):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", "COLUMNS": "200"} | env)
            os.execv(sys.executable, [*COMMAND, *args])

    def until(self, pattern, timeout=60):
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
        return self.text, os.waitstatus_to_exitcode(status)


def test_ctrl_c_ends_generate_without_a_traceback():
    terminal = Terminal("generate", "Count from one to two hundred.", *LONG)
    terminal.until(r"One|one|1")
    terminal.type("\x03")
    rest, code = terminal.close()
    assert code == 130
    assert "Traceback" not in rest
    assert rest.endswith("\n")


def test_sigint_while_loading_ends_quietly():
    run = subprocess.Popen([*COMMAND, "generate", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.8)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def test_progress_is_shown_and_leaves_nothing_behind():
    terminal = Terminal("generate", "Say yes.", "--max-tokens", "4", "--no-stats")
    rest, code = terminal.close()
    assert code == 0
    assert "measuring costs" in rest
    assert rest.count("\x1b[?25l") == rest.count("\x1b[?25h")
    assert rest.rstrip().rpartition("\x1b[2K")[2].strip("\r\n")  # the bar was erased before the answer


def test_drafts_are_coloured_and_underlined_or_bracketed():
    args = ("generate", "Write this four times: one two three four five six.", "--max-tokens", "60", "--show-drafts")
    rest, _ = Terminal(*args).close()
    assert "\x1b[4;32m" in rest
    assert "⟦" not in rest
    rest, _ = Terminal(*args, NO_COLOR="1").close()
    assert "⟦" in rest
    assert "\x1b[4" not in rest


def test_chat_survives_one_ctrl_c_and_leaves_at_the_second():
    terminal = Terminal("chat", *LONG)
    terminal.until("/help for help")
    terminal.until("> ")
    terminal.type("Count from one to two hundred.\r")
    terminal.until(r"Count.*?\n.*?(One|one|1)")
    terminal.type("\x03")
    terminal.until(r"\(stopped\)")
    terminal.until(r"tokens/s.*?> ")
    terminal.type("Say yes.\r")
    terminal.until(r"yes\..*?\n.*?\w")
    terminal.type("\x03")
    terminal.until(r"\(stopped\).*?> ")
    terminal.type("\x03")
    rest, code = terminal.close()
    assert code == 130
    assert "Traceback" not in rest


def test_chat_ends_with_ctrl_d():
    terminal = Terminal("chat")
    terminal.until("> ")
    terminal.type("\x03")
    terminal.until("again or Ctrl-D leaves")
    terminal.until("> ")
    terminal.type("\x04")
    rest, code = terminal.close()
    assert code == 0
    assert rest.endswith("\n")


def test_a_closed_pipe_is_quiet():
    run = subprocess.Popen(
        [*COMMAND, "generate", "Count from one to two hundred.", *LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert run.stdout is not None
    run.stdout.read(8)
    run.stdout.close()
    assert run.wait(timeout=60) == 141
    assert run.stderr is not None
    assert run.stderr.read() == b""
    run.stderr.close()


def test_a_poor_encoding_does_not_end_the_answer():
    done = subprocess.run(
        [*COMMAND, "generate", "今天天气很好", "--raw", "--max-tokens", "12", "--show-drafts"],
        capture_output=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
