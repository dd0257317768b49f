"""What the target thought of last behind each token: token recycling (Luo et al. 2024, arXiv:2408.08696).

Every verified row tells what the target holds likely behind the row's token, rows of refused guesses too: what was
wrong here is often right a little later. The likeliest few of each row replace what was known behind its token. A tree
grows of them, best first; the paper's tree has a fixed shape. To know successors of the last two tokens as well was
tried: these are right twice as often, but mostly where a drafter that copies is right too, beside which it gained one
per cent of time for twice the table.

State: at most ``ENTRIES`` entries a request, about 1 kB each. With ``shared`` all requests of an engine use one table
(the paper's way; it guesses better from the first token on). Then how fast an answer comes tells something about what
others asked: for one user, or users with no secrets from each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from augury.drafters.drafter import Drafter, Observation, View
from augury.drafters.likely import likeliest
from augury.drafters.survival import Line, Rates, Survival
from augury.drafters.votes import RANKS, Guess, grow, score
from augury.tree import DraftTree

WIDTH = 8
"""Successors that are kept of a row."""

ENTRIES = 2048
"""Entries of a table at most; those refreshed longest ago go first."""

_NATS = 3.0  # a token twenty times less likely than the first is no guess
_REST = 0.05  # of the law, on a scale where the likeliest token has 1, for all tokens left out
_KINDS = (Line(0.45, -1.2), Line(0.7, -0.85), Line(0.5, -1.5))
"""By rank."""


class Table:
    """Successors by token."""

    def __init__(self) -> None:
        self._entries: dict[int, list[Guess]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def guesses(self, token: int) -> list[Guess]:
        """What may follow a token, likeliest first."""
        return self._entries.get(token, [])

    def refresh(self, token: int, likely: list[tuple[int, float]]) -> None:
        """Replace what follows a token by what a row says: (token, logit behind the first's), likeliest first."""
        if not likely:
            return
        weights = [math.exp(behind) for _, behind in likely]
        total = sum(weights) + _REST
        self._entries.pop(token, None)
        self._entries[token] = [
            Guess(successor, min(rank, RANKS - 1), weight / total, [])
            for rank, ((successor, _), weight) in enumerate(zip(likely, weights, strict=True))
        ]
        if len(self._entries) > ENTRIES:
            del self._entries[next(iter(self._entries))]


@dataclass
class _Request:
    table: Table
    rates: Rates


class Recycle(Drafter):
    """Successors remembered from the target's own rows.

    Args:
        shared: keep one table for all requests instead of one each.
    """

    needs_rows = True

    def __init__(self, *, shared: bool = False) -> None:
        self._table = Table() if shared else None
        self._survival = Survival(_KINDS)
        self._requests: dict[int, _Request] = {}

    def open(self, view: View) -> None:
        """Begin with an empty table, or the shared one."""
        table = Table() if self._table is None else self._table
        self._requests[view.id] = _Request(table, self._survival.open(view.temperature))

    def propose(self, view: View, limit: int) -> DraftTree:
        """The ``limit`` likeliest nodes."""
        request = self._requests[view.id]
        known = request.table.guesses
        return grow(known(int(view.tokens[-1])), lambda guess, depth: known(guess.token), request.rates, limit)

    def observe(self, view: View, seen: Observation) -> None:
        """Score what would have been guessed for each token that came, and refresh what every row speaks of."""
        request = self._requests[view.id]
        before = int(view.tokens[-1 - len(seen.emitted)])
        tokens = [before, *seen.tree.tokens.tolist()]  # of the rows
        for token in seen.emitted.tolist():
            score(request.rates, request.table.guesses(before), token)
            before = token
        rows = likeliest(seen.logits, WIDTH, _NATS)
        # The accepted path last: of two rows of one token the one in the text that came to be counts.
        kept = {0, *(node + 1 for node in seen.path.nodes)}
        for row in sorted(range(len(rows)), key=lambda row: row in kept):
            request.table.refresh(tokens[row], rows[row])

    def close(self, view: View) -> None:
        """Forget the request."""
        self._requests.pop(view.id, None)
