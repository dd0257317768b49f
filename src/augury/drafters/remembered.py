"""Texts that are remembered in bounded memory and searched by context; the oldest are forgotten first.

``past.py`` cannot delete, so there are two generations: the young one takes what comes, and when it is full it becomes
the old one, in the place of the one before. Each is half of what may be kept, so a text is remembered while between
half and all of that came behind it; one that comes again is young again.

State: ``TOKEN_BYTES`` a token, and ``RECORD_TOKENS`` more for each text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from augury.drafters.passages import FAR, Found
from augury.drafters.past import Match, Past, context
from augury.tree import IntArray

TOKEN_BYTES = 20
"""What ``past.py`` takes for a token at most."""

RECORD_TOKENS = 5
"""What a text costs besides its tokens, in tokens: its end, and the entry that says it is known."""

_ANEW = 16
"""To put a token in its place among others takes as long as to put about so many in order anew."""

_END = 2**31 - 1
"""Stands behind every text; no token has this id, so no context reaches from one text into another."""


def newest(records: Sequence[IntArray], most: int) -> list[IntArray]:
    """The last of some texts, as many as ``most`` tokens hold."""
    kept: list[IntArray] = []
    for record in reversed(records):
        most -= len(record) + RECORD_TOKENS
        if most < 0:
            break
        kept.append(record)
    return kept[::-1]


class _Generation:
    """Texts one behind the other, each text once."""

    def __init__(self, records: Iterable[IntArray] = ()) -> None:
        texts = {record.tobytes(): record for record in records}
        self._known = set(map(hash, texts))
        self.size = sum(len(record) + RECORD_TOKENS for record in texts.values())
        end = np.array([_END], np.int32)
        self.past = Past(np.concatenate([np.empty(0, np.int32), *(part for r in texts.values() for part in (r, end))]))

    def __contains__(self, record: IntArray) -> bool:
        return hash(record.tobytes()) in self._known

    def add(self, records: Sequence[IntArray]) -> None:
        end = np.array([_END], np.int32)
        self.past.extend(np.concatenate([part for record in records for part in (record, end)]))
        self._known.update(hash(record.tobytes()) for record in records)
        self.size += sum(len(record) + RECORD_TOKENS for record in records)

    def texts(self) -> list[IntArray]:
        """All of them, the oldest first."""
        tokens = np.array(self.past.tokens, np.int32)
        return [text[:-1] for text in np.split(tokens, np.flatnonzero(tokens == _END) + 1)[:-1]]

    def behind(self, position: int) -> list[int]:
        """What follows a position in its text, ``FAR`` tokens at most."""
        ahead = self.past.tokens[position + 1 : position + 1 + FAR].tolist()
        return ahead[: ahead.index(_END)] if _END in ahead else ahead


class Remembered:
    """What is remembered of one tenant.

    Args:
        most: tokens of a generation; a text takes its own and ``RECORD_TOKENS``.
        old: texts i32[n] of the older generation, the oldest first.
        young: of the younger one.
    """

    def __init__(self, most: int, old: Sequence[IntArray] = (), young: Sequence[IntArray] = ()) -> None:
        self._most = most
        self._old, self._young = _Generation(), _Generation()
        self.replace(old, young)

    def __len__(self) -> int:
        """Tokens remembered, what texts cost besides included."""
        return self._old.size + self._young.size

    def __contains__(self, record: IntArray) -> bool:
        """Whether a text was added lately: it need not be added again."""
        return record in self._young

    def add(self, record: IntArray) -> None:
        """Remember a text i32[n] of at most ``most - RECORD_TOKENS`` tokens, and what is too much no longer."""
        if self._young.size + len(record) + RECORD_TOKENS > self._most:
            self._old, self._young = self._young, _Generation()
        self._young.add([record])

    def extend(self, records: Sequence[IntArray]) -> None:
        """Remember texts, the oldest first, of which some may be known: as to add each of the others, and cheaper."""
        new = [r for r in {record.tobytes(): record for record in records}.values() if r not in self]
        new = newest(new, self._most)
        size = sum(len(record) + RECORD_TOKENS for record in new)
        if self._young.size + size > self._most:
            self._old, self._young = self._young, _Generation(new)
        elif _ANEW * size > self._young.size:
            self._young = _Generation([*self._young.texts(), *new])
        elif new:
            self._young.add(new)

    def replace(self, old: Sequence[IntArray], young: Sequence[IntArray]) -> None:
        """Remember these texts and no others; who reads from here reads them from now on."""
        self._old, self._young = _Generation(newest(old, self._most)), _Generation(newest(young, self._most))

    def clear(self) -> None:
        """Forget everything."""
        self.replace((), ())

    def found(self, recent: Sequence[int], voters: int, shortest: int) -> Found:
        """The places that share most tokens with the end of a text, ``shortest`` at least; the latest come first.

        Args:
            recent: the last tokens of the text, the newest last.
            voters: places at most.
            shortest: tokens a place must share.
        """
        asked, places = context(recent), list[tuple[Match, _Generation]]()
        for generation in (self._young, self._old):
            least = places[-1][0].length + 1 if len(places) == voters else shortest
            places += [(match, generation) for match in generation.past.matches(asked, voters, least)]
        places.sort(key=lambda place: -place[0].length)
        lengths = [match.length for match, _ in places[:voters]]
        ahead = [generation.behind(match.position) for match, generation in places[:voters]]
        return Found(lengths, ahead, lengths.count(max(lengths, default=0)) < voters)
