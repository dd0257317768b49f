"""A grammar along one answer: which tokens may come next, behind committed ones and draft tokens alike.

One matcher stands behind the committed tokens and the draft path that was asked for last; another path rolls it back
to where the two part, so rows of a chain or tree cost what they add. What it says is a function of the answer's text
alone: a token is allowed if the text can go on with its bytes, however the text before was cut into tokens.

A matcher that fails is thrown away and made anew, once for each question and a few times for each answer: what drafts
explored must not fail an answer that plain decoding could give.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from augury.errors import InputError
from augury.tree import BoolArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

_REMEMBERED = 64
"""Rows of one step that are kept: drafters ask for the same ones as the target."""

_RENEWALS = 4
"""Times that an answer may have its matcher made anew: the new one reads the whole answer again."""

_PATIENCE_S = 5.0
"""Seconds of the processor that the masks of one answer may take, and those for guesses as many: an ordinary one takes
0.1 ms, and all who step together wait for it."""

_NOWHERE = "NoExtension"  # how the library's word for a text that cannot go on begins


class Following:
    """See ``sampling.Following``.

    Args:
        matcher: a matcher of the grammar's beginning; True asks for one that shares nothing with earlier ones.
        spelt: ids of the beginning of a text, as far as they are the same whatever follows.
        vocab_size: V.
        ends: ids that end the answer.
    """

    def __init__(
        self,
        matcher: Callable[[bool], LLMatcher],
        spelt: Callable[[bytes], list[int]],
        vocab_size: int,
        ends: Sequence[int],
    ) -> None:
        self._make, self._spelt, self._vocab = matcher, spelt, vocab_size
        self._matcher: LLMatcher | None = matcher(False)
        self._ends = frozenset(ends)
        self._end_ids = np.asarray(sorted(self._ends), np.intp)
        self._none, self._all = np.zeros(vocab_size, np.bool_), np.ones(vocab_size, np.bool_)
        self._rows: dict[tuple[int, ...], BoolArray] = {}
        self._committed: list[int] = []
        self._path: list[int] = []  # behind the committed ones, where the matcher stands
        self._ended = self._lost = False  # an end token is committed; one is that the grammar does not allow
        self._failed: InputError | None = None
        self._renewals = 0
        self._spent = self._guessed = 0.0  # seconds of masks for the answer's own rows, and for guesses beside them

    def allowed(self, path: Sequence[int], guess: bool = False) -> BoolArray:
        """See ``sampling.Following``."""
        key = tuple(path)
        row = self._rows.get(key)
        if row is None:
            if guess and self._tired:
                return self._all
            begin = time.thread_time()
            row = self._row(path)
            self._spend(time.thread_time() - begin, guess)
            if len(self._rows) < _REMEMBERED:
                self._rows[key] = row
        return row

    def legal(self, path: Sequence[int]) -> int:
        """See ``sampling.Following``."""
        text = self._text(path)
        try:
            matcher = self._reach(())
            if matcher is None:
                return 0
            count = matcher.validate_tokens(text) if text and not matcher.is_stopped() else 0
            if matcher.is_error():
                self._drop(len(path), matcher.get_error())
                return len(path)
            if count < len(text) or count == len(path):
                return count
            behind = self._reach(text)  # an end token comes next
            return count + (behind is not None and behind.is_accepting())
        except InputError:  # the row that comes to it says so
            return len(path)

    def forced(self, limit: int) -> list[tuple[int, bool]]:
        """See ``sampling.Following``."""
        found: list[tuple[int, bool]] = []
        while len(found) < limit and not self._tired:
            path = [token for token, _ in found]
            matcher = self._reach(path)
            if matcher is None:
                break
            mask = self.allowed(path, guess=True)
            alone = int(np.count_nonzero(mask)) == 1
            new = [int(np.argmax(mask))] if alone else self._spelt(matcher.compute_ff_bytes())
            if not new:
                break
            found += [(token, alone) for token in new]
            if found[-1][0] in self._ends:
                break
        return found[: min(limit, self.legal([token for token, _ in found]))]

    def advance(self, tokens: Sequence[int]) -> None:
        """See ``sampling.Following``."""
        text = self._text(tokens)
        try:
            self._lost = self._lost or self._reach(text) is None
        except InputError as error:
            self._failed = error
        self._ended = self._ended or len(text) < len(tokens)
        self._committed += text
        self._path = []
        self._rows.clear()

    @property
    def _tired(self) -> bool:
        """Whether guesses have had their share; what they ask for must not fail an answer."""
        return self._guessed > _PATIENCE_S

    def _spend(self, seconds: float, guess: bool) -> None:
        if guess:
            self._guessed += seconds
            return
        self._spent += seconds
        if self._spent > _PATIENCE_S:
            self._failed = InputError(f"the grammar's masks took more than the {_PATIENCE_S:g} s that they may take")

    def _row(self, path: Sequence[int]) -> BoolArray:
        text = self._text(path)
        for _ in range(2):
            if self._ended:
                return self._all
            matcher = self._reach(text)
            if matcher is None:
                return self._none
            if len(text) < len(path):  # an end token comes next
                return self._all if matcher.is_accepting() else self._none
            whole = matcher.is_accepting()
            bits = matcher.compute_bitmask()
            if not matcher.is_error():
                row = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab, bitorder="little").view(np.bool_)
                row[self._end_ids] = whole
                return row
            said = matcher.get_error()
            error = self._drop(len(path), said)
            if said.startswith(_NOWHERE):
                return self._none
        raise error

    def _reach(self, path: Sequence[int]) -> LLMatcher | None:
        """The matcher, behind the committed tokens and a path without end tokens; None where they are not allowed."""
        if self._failed is not None:
            raise self._failed
        if self._ended or self._lost:
            return None
        for _ in range(2):
            if self._matcher is None:
                self._matcher, self._path = self._make(True), []
                self._matcher.try_consume_tokens(self._committed)
            matcher = self._matcher
            same = next((i for i, (a, b) in enumerate(zip(self._path, path, strict=False)) if a != b), None)
            same = min(len(self._path), len(path)) if same is None else same
            if len(self._path) > same:
                matcher.rollback(len(self._path) - same)
                del self._path[same:]
            rest = [int(token) for token in path[same:]]
            count = matcher.try_consume_tokens(rest) if rest else 0
            self._path += rest[:count]
            if not matcher.is_error():
                return matcher if count == len(rest) else None
            error = self._drop(len(path), matcher.get_error())
        raise error

    def _drop(self, ahead: int, said: str) -> InputError:
        """Throw a failed matcher away; gives the error that it means if the next one fails too."""
        at, why = len(self._committed) + ahead, said.splitlines()[0][:200]
        error = InputError(f"the grammar takes too much work at token {at} of the answer: {why}")
        self._matcher, self._renewals = None, self._renewals + 1
        if self._renewals > _RENEWALS:
            self._failed = error
        return error

    def _text(self, path: Sequence[int]) -> list[int]:
        """The tokens in front of the first end token."""
        count = next((i for i, token in enumerate(path) if token in self._ends), len(path))
        return [int(token) for token in path[:count]]
