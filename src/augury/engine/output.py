"""Where an answer ends, and which text may be shown: stops cut exactly, inside an accepted path.

Tokens are looked at one by one in the order of the answer, so a stop in the middle of an accepted path ends
the answer there: nothing behind it is in the text, the ids, the usage or the log-probabilities.

Text that may be the beginning of a stop string, and bytes that are not yet a whole character, are held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from augury.errors import InputError
from augury.record import FinishReason

MAX_STOPS = 16
"""Stop strings one request may have."""

MAX_STOP_LENGTH = 1024
"""Characters of one stop string."""


class Detokenizer(Protocol):
    """Turns ids into text as they come; see ``models/tokenizer.py``."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that became whole with these ids."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


@dataclass(frozen=True)
class Stops:
    """What ends an answer.

    Attributes:
        max_tokens: tokens of the answer, at least 0.
        strings: stop strings; the earliest in the text wins, whatever their order here.
        token_ids: ids that end the answer (the target's own end tokens included); they are part of the ids
            but not of the text.
        min_tokens: stop strings and stop ids are not looked at before that many tokens.
        include: whether the text keeps the stop string.
    """

    max_tokens: int
    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    include: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InputError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        if self.min_tokens > self.max_tokens:
            raise InputError(f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}")
        if len(self.strings) > MAX_STOPS:
            raise InputError(f"{len(self.strings)} stop strings were given; at most {MAX_STOPS} are allowed")
        for stop in self.strings:
            if not isinstance(stop, str) or not stop:
                raise InputError(f"stop string {stop!r} is empty or not text")
            if len(stop) > MAX_STOP_LENGTH:
                raise InputError(f"a stop string has {len(stop)} characters; at most {MAX_STOP_LENGTH} are allowed")


@dataclass
class Output:
    """The answer of one request as it grows."""

    stops: Stops
    detokenizer: Detokenizer | None
    count: int = 0
    finish: FinishReason | None = None
    stop: str | int | None = None
    text: str = ""
    _shown: int = 0
    _searched: int = 0
    _longest: int = field(init=False)

    def __post_init__(self) -> None:
        self._longest = max((len(s) for s in self.stops.strings), default=0)
        if self.stops.strings and self.detokenizer is None:
            raise InputError("stop strings need a tokenizer; this engine works on token ids only")
        if self.stops.max_tokens == 0:
            self.finish = "length"

    @property
    def room(self) -> int:
        """Tokens that may still be added."""
        return 0 if self.finish else self.stops.max_tokens - self.count

    def push(self, tokens: Sequence[int]) -> int:
        """Take the tokens of one step; gives how many of them belong to the answer."""
        for taken, token in enumerate(tokens, 1):
            self.count += 1
            if self._ends(int(token)):
                return taken
        return len(tokens)

    def _ends(self, token: int) -> bool:
        armed = self.count > self.stops.min_tokens
        if armed and token in self.stops.token_ids:
            self.finish, self.stop = "stop", token
            self._add(self.detokenizer.flush() if self.detokenizer else "", armed)
        else:
            self._add(self.detokenizer.push([token]) if self.detokenizer else "", armed)
            if self.finish is None and self.count >= self.stops.max_tokens:
                self._add(self.detokenizer.flush() if self.detokenizer else "", armed)
                self.finish = self.finish or "length"
        return self.finish is not None

    def _add(self, text: str, armed: bool) -> None:
        """Append text and look for the earliest stop string that ends in the new part."""
        self.text += text
        if not armed:
            self._searched = len(self.text)
            return
        hits = []
        for stop in self.stops.strings:
            # It ends beyond what was searched or protected before; a longer one may begin deeper in that.
            at = self.text.find(stop, max(self._searched - len(stop) + 1, 0))
            if at >= 0:
                hits.append((at, stop))
        self._searched = len(self.text)
        if hits:
            at, found = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            self.finish, self.stop = "stop", found
            self.text = self.text[: at + len(found) * self.stops.include]

    def take(self) -> str:
        """Text that may be shown now and was not shown before."""
        end = len(self.text) if self.finish else len(self.text) - self._held()
        shown, self._shown = self.text[self._shown : end], max(end, self._shown)
        return shown

    def _held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for size in range(min(self._longest - 1, len(self.text)), 0, -1):
            tail = self.text[-size:]
            if any(s.startswith(tail) for s in self.stops.strings):
                return size
        return 0
