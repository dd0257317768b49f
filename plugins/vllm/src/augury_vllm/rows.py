"""Which text stands in which row of vLLM's batch: it gives no names of requests, so texts are known by their tokens.

Rows change places, requests leave in the middle of an answer and come back. A text is looked for where it stood last,
then among those that stood elsewhere, then among the parked ones, and is a new one if none of them fits. To fit, a row
must begin with all that is known of the text, and must not go on for longer than what may have come in between. That a
request has ended nobody says: its text is parked as one that was preempted would be, and closed after ``PARKED_CALLS``,
when too many are parked, or at once where it ends as answers end.

Nothing depends on the clock, on addresses or on hashes: equal calls give equal texts, in equal order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from augury.integrations.alongside import Alongside, Came, Text
from augury.tree import IntArray

Table = npt.NDArray[np.int32]

PARKED_CALLS = 32
"""Calls for which a text is kept that stands in no row. One that comes back later is indexed anew, which costs a
millisecond or so; what a drafter remembers of an answer it learns when the text is closed."""

_COMPARED = 1 << 14
"""Tokens that are compared of a text in its own row: of a longer one the last."""


class Read(NamedTuple):
    """What a step of vLLM brought.

    Attributes:
        came: for each row the text and its new tokens, or None where there is nothing to guess for.
        steady: whether the same texts as before went on by a step, and nothing else was computed.
    """

    came: list[Came | None]
    steady: bool


class Rows:
    """The texts of a batch, from call to call.

    Args:
        beside: where they are opened and closed.
        vocab_size: ids lie below; a text with others, such as places that stand for pictures, is left alone.
        ahead: tokens that one step may bring.
        parked: texts that are kept without a row at most.
        ends: tokens that end an answer.
    """

    def __init__(
        self, beside: Alongside, vocab_size: int, ahead: int, parked: int, ends: frozenset[int] = frozenset()
    ) -> None:
        self._beside, self._vocab_size, self._parked_most, self._ends = beside, vocab_size, parked, ends
        # In the last places of the context nobody is asked to guess; what is verified there instead is rarely right.
        self._ahead, self._missed = ahead, 2 * ahead
        self._calls = 0
        self._rows: list[Text | None] = []
        self._parked: dict[Text, int] = {}  # since which call, the first parked first

    def __len__(self) -> int:
        """Texts that are open."""
        return sum(text is not None for text in self._rows) + len(self._parked)

    def read(self, sampled: Sequence[Sequence[int]], lengths: Table, tokens: Table) -> Read:
        """Find the texts of the rows that were sampled for.

        Args:
            sampled: new tokens of each row, none of them where a prompt is not computed to its end yet.
            lengths: int[>= rows], tokens of each row.
            tokens: int[>= rows, context], prompt and answer of each row, the new tokens included.
        """
        self._calls += 1
        before = self._rows
        now: list[Text | None] = [None] * len(sampled)
        came: list[Came | None] = [None] * len(sampled)
        steady, homeless = True, []
        for row, (new, length) in enumerate(zip(sampled, lengths[: len(sampled)].tolist(), strict=True)):
            if not new or not self._known(new):
                steady = False
                continue
            text = before[row] if row < len(before) else None
            if text is not None and self._goes_on(text, tokens[row], length - len(new), self._missed, _COMPARED):
                before[row] = None
                now[row] = text
                known = len(text.tokens)
                steady = steady and known == length - len(new)
                came[row] = Came(text, tokens[row, known:length].tolist())
            else:
                homeless.append(row)
        left = [text for text in before if text is not None]
        steady = steady and not homeless and not left
        for row in homeless:
            length = int(lengths[row])
            known = length - len(sampled[row])
            text = self._found(left, tokens[row], known, self._missed)
            if text is not None:
                left.remove(text)
            elif (text := self._found(list(self._parked), tokens[row], known, 0)) is not None:
                del self._parked[text]
            elif (text := self._opened(tokens[row, :known])) is None:
                continue
            now[row] = text
            came[row] = Came(text, tokens[row, len(text.tokens) : length].tolist())
        self._rows = now
        self._park(left)
        return Read(came, steady)

    def close(self) -> None:
        """Forget all of them."""
        for text in [*self._rows, *self._parked]:
            if text is not None:
                self._beside.close(text)
        self._rows, self._parked = [], {}

    def _known(self, tokens: Sequence[int]) -> bool:
        """Whether these are ids of the vocabulary."""
        return min(tokens) >= 0 and max(tokens) < self._vocab_size

    def _goes_on(self, text: Text, row: IntArray, length: int, missed: int, compared: int | None = None) -> bool:
        """Whether a row whose first ``length`` tokens are not new goes on with a text."""
        known = text.tokens
        n = len(known)
        if not 0 <= length - n <= missed or row[n - 1] != known[n - 1]:
            return False
        if length > n and self._ended(text):  # what stands behind is the next turn
            return False
        start = 0 if compared is None else max(n - compared, 0)
        if row[start:n].tobytes() != known[start:].tobytes():
            return False
        return n == length or self._known(row[n:length].tolist())

    def _ended(self, text: Text) -> bool:
        """Whether an answer has come to its end. Where that was guessed the same step brought a token behind it."""
        last = text.tokens[max(len(text.tokens) - self._ahead, len(text.request.prompt)) :]
        return not self._ends.isdisjoint(last.tolist())

    def _found(self, texts: Sequence[Text], row: IntArray, length: int, missed: int) -> Text | None:
        """The longest of some texts that a row goes on with, of equally long ones the first."""
        fitting = [text for text in texts if self._goes_on(text, row, length, missed)]
        return max(fitting, key=lambda text: len(text.tokens), default=None)

    def _opened(self, prompt: IntArray) -> Text | None:
        """A new text, or None where it has ids that are none."""
        if not len(prompt) or int(prompt.min()) < 0 or int(prompt.max()) >= self._vocab_size:
            return None
        return self._beside.open(np.array(prompt, np.int32))

    def _park(self, texts: Sequence[Text]) -> None:
        """Keep texts that stand in no row, and close those that need not be kept."""
        for text in texts:
            if self._ended(text):
                self._beside.close(text)
            else:
                self._parked[text] = self._calls
        while self._parked:
            oldest = next(iter(self._parked))
            if len(self._parked) <= self._parked_most and self._calls - self._parked[oldest] < PARKED_CALLS:
                break
            del self._parked[oldest]
            self._beside.close(oldest)
