"""``augury chat``: a conversation in the terminal."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from augury.cli.flags import Belonging, Ending, Guessing, Law, Loading
from augury.cli.ribbon import Pen, Ribbon
from augury.cli.terminal import INTERRUPTED, note
from augury.cli.tracing import Trace, Tracing
from augury.errors import AuguryError, InputError, UnknownName
from augury.trace.figures import line

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.sampling import Sampling

_HELP = """\
/help          this list
/reset         forget the conversation; the system prompt stays
/drafts        mark what each drafter guessed, or no longer
/stats         statistics after each answer, or no longer
/save FILE     write the conversation as JSON
/exit          leave, as /quit and Ctrl-D do
\"\"\"            begins and ends a message of several lines
Ctrl-C         stops the answer; a second one leaves"""

_BLOCK = '"""'


def chat(
    loading: Loading,
    guessing: Guessing,
    belonging: Belonging,
    law: Law,
    ending: Ending,
    tracing: Tracing,
    system: Annotated[str | None, Option(help="System prompt.", rich_help_panel="Prompt")] = None,
    show_drafts: Annotated[
        bool, Option("--show-drafts", help="Mark what each drafter guessed.", rich_help_panel="Output")
    ] = False,
    stats: Annotated[bool, Option(help="A line of statistics after each answer.", rich_help_panel="Output")] = True,
) -> None:
    """Talk with a model; /help lists what can be typed."""
    ending.check(law)
    belonging.check()
    tracing.check()
    engine = loading.engine(guessing.drafters, guessing.acceptance)
    if engine.template is None:
        raise InputError(f"{engine.target.info.name} has no chat template; use augury generate --raw")
    with tracing.opened(engine, "chat") as trace:
        room = _Chat(engine, law.sampling(engine), ending, belonging.cache_salt, system, show_drafts, stats, trace)
        if sys.stdin.isatty():
            note(f"{engine.target.info.name}, {engine.target.info.runner}; /help for help, Ctrl-D leaves")
        room.run()


class _Chat:
    """One conversation and its switches."""

    def __init__(
        self,
        engine: Engine,
        sampling: Sampling,
        ending: Ending,
        cache_salt: str,
        system: str | None,
        show_drafts: bool,
        stats: bool,
        trace: Trace,
    ) -> None:
        self._engine = engine
        self._trace = trace
        self._sampling = sampling
        self._ending = ending
        self._cache_salt = cache_salt
        self._beginning = [{"role": "system", "content": system}] if system is not None else []
        self._turns = list(self._beginning)
        self._show_drafts = show_drafts
        self._stats = stats
        self._saved: set[Path] = set()
        self._pen = Pen(sys.stdout, [name for name, _ in engine.parts.drafters])
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: print(_HELP),
            "/reset": self._reset,
            "/drafts": self._toggle_drafts,
            "/stats": self._toggle_stats,
            "/save": self._save,
            "/exit": self._exit,
            "/quit": self._exit,
        }

    def run(self) -> None:
        """Read and answer until the user leaves."""
        interrupted = False  # whether the last thing the user did was Ctrl-C
        while True:
            try:
                said = _read()
            except EOFError:
                if sys.stdin.isatty():
                    print()
                return
            except KeyboardInterrupt:
                print()
                if interrupted:
                    raise typer.Exit(INTERRUPTED) from None
                interrupted = True
                note("(Ctrl-C again or Ctrl-D leaves)")
                continue
            interrupted = False
            try:
                if said.startswith("/"):
                    self._command(said)
                elif said.strip():
                    interrupted = self._answer(said)
            except AuguryError as error:
                note(f"augury: {' '.join(str(error).split())}")

    def _answer(self, said: str) -> bool:
        """Answer one message; true when the user stopped it. The history keeps what was shown."""
        turns = [*self._turns, {"role": "user", "content": said}]
        prompt = self._engine.render(turns)
        context = self._engine.target.info.context
        if len(prompt) >= context:
            raise InputError(
                f"the conversation has {len(prompt)} tokens with this message, the context holds {context}; the "
                "message was not sent: /reset starts anew, and a larger --max-model-len holds more"
            )
        assert self._engine.tokenizer is not None
        ribbon = Ribbon(self._engine.tokenizer.incremental(prompt.tolist()))
        text = ""
        with _stoppable() as stopped:
            sampling = self._trace.seeded(self._sampling)
            stream = self._engine.stream(
                prompt,
                sampling,
                max_tokens=self._ending.max_tokens,
                stop=self._ending.stop,
                ignore_eos=self._ending.ignore_eos,
                cache_salt=self._cache_salt,
            )
            stream = self._trace.follow(stream, self._engine, prompt, sampling)
            try:
                for chunk in stream:
                    self._pen.write(ribbon.pieces(chunk) if self._show_drafts else [(chunk.text, None)])
                    text += chunk.text
                    if stopped():
                        break
            finally:
                stream.close()
                print(flush=True)
        if stopped():
            note("(stopped)")
        elif chunk.finish_reason == "length" and len(prompt) + chunk.record.completion_tokens >= context:
            note(f"(cut off: the context of {context} tokens is full; /reset starts anew)")
        elif chunk.finish_reason == "length":
            note(f"(cut off after {self._ending.max_tokens} tokens; --max-tokens allows more)")
        if text or not stopped():
            self._turns = [*turns, {"role": "assistant", "content": text}]
        if self._show_drafts:
            note(self._pen.legend())
        if self._stats:
            note(line(chunk.record))
        return stopped()

    def _command(self, said: str) -> None:
        name, _, rest = said.strip().partition(" ")
        if name not in self._commands:
            raise UnknownName("command", name, self._commands)
        self._commands[name](rest.strip())

    def _reset(self, _: str) -> None:
        self._turns = list(self._beginning)
        note("(the conversation is forgotten)")

    def _toggle_drafts(self, _: str) -> None:
        self._show_drafts = not self._show_drafts
        note(f"(drafts are {'marked' if self._show_drafts else 'not marked'})")

    def _toggle_stats(self, _: str) -> None:
        self._stats = not self._stats
        note(f"(statistics are {'shown' if self._stats else 'not shown'})")

    def _save(self, name: str) -> None:
        path = Path(name)
        if not name:
            raise InputError("/save needs the name of a file")
        if path.exists() and path not in self._saved:
            raise InputError(f"{name} exists already; choose another name")
        try:
            saved = {"model": self._engine.target.info.name, "messages": self._turns}
            path.write_text(json.dumps(saved, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {name}: {error.strerror}") from None
        self._saved.add(path)
        note(f"(saved {len(self._turns)} messages)")

    def _exit(self, _: str) -> None:
        raise typer.Exit


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks to stop at the end of the step, so that the cache stays good; a second one stops at once."""
    presses: list[int] = []

    def pressed(number: int, _: FrameType | None) -> None:
        if presses:
            raise KeyboardInterrupt
        presses.append(number)

    before = signal.signal(signal.SIGINT, pressed)
    try:
        yield lambda: bool(presses)
    finally:
        signal.signal(signal.SIGINT, before)


def _read() -> str:
    """One message: a line, or what stands between two triple quotes."""
    said = _line("> ")
    if not said.startswith(_BLOCK):
        return said
    said = said.removeprefix(_BLOCK)
    while _BLOCK not in said:
        said += "\n" + _line(". ")
    return said[: said.index(_BLOCK)].strip("\n")


def _line(prompt: str) -> str:
    """A line from the terminal, with editing where there is any, or from a pipe."""
    if not sys.stdin.isatty():
        said = sys.stdin.readline()
        if not said:
            raise EOFError
        return said.rstrip("\r\n")
    if sys.stdout.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401 - input() edits lines once it is loaded
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)  # stdout is kept for the answers
    return input()
