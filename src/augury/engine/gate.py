"""Whether drafting for requests that share their steps has paid lately: what the budget expects is one thing, what came
is another, and all wait for the guesses of each.

A step's worth is its tokens against those that plain steps would have brought in its time. A plain step of as many
requests is reckoned from the table of costs, and as much slower than there as the step's own forward was. Where the
worth of the last drafted steps falls below one, drafting pauses, is tried again for a few steps, and pauses longer each
time the trial fails. Steps are judged by how many requests share them, in powers of two, since a row is cheap for few
and dear for many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FADE = 0.9
"""Of what the steps before counted, each step: some ten of them are looked at."""

_LEAST = 0.97
"""Worth below which drafting pauses. Clocks are noisy, and a pause that was not due costs what drafting would bring."""

TRIAL = 10
"""Drafted steps that are judged, unless they lose too much before."""

LOSS = 4.0
"""Plain steps that a trial may lose before it ends: a drafter that takes long makes one step as long as ten."""

PAUSE, LONGEST = 48, 384
"""Steps of the first pause, and of the longest: a trial in 384 steps that loses four costs one percent."""

PAUSED = "drafting did not pay lately"
"""What the record of a step says that was not drafted for it."""


@dataclass
class Gate:
    """Of steps that as many requests share.

    Attributes:
        tokens: that the last drafted steps brought, the older ones faded.
        plain: that plain steps would have brought in their time.
        drafted: steps that were drafted since the gate was opened.
        pause: steps of the next pause.
        left: steps of this pause that are still to come; 0 where drafting is on.
    """

    tokens: float = 0.0
    plain: float = 0.0
    drafted: int = 0
    pause: int = PAUSE
    left: int = 0

    def open(self) -> bool:
        """Whether the next step is to be drafted; to be asked once a step."""
        if self.left:
            self.left -= 1
            return False
        return True

    def learn(self, tokens: int, requests: int, ms: float, plain_ms: float) -> None:
        """A drafted step.

        Args:
            tokens: it brought.
            requests: that shared it.
            ms: it took.
            plain_ms: that a plain one would have taken.
        """
        self.tokens = _FADE * self.tokens + tokens
        self.plain = _FADE * self.plain + requests * ms / plain_ms
        self.drafted += 1
        if self.drafted < TRIAL and self.plain - self.tokens < LOSS * requests:
            return
        if self.tokens < _LEAST * self.plain:
            self.left, self.pause = self.pause, min(2 * self.pause, LONGEST)
            self.tokens = self.plain = 0.0
            self.drafted = 0
        elif self.drafted >= 4 * TRIAL:
            self.pause = PAUSE


@dataclass
class Gates:
    """Those of one engine, for requests that share their steps."""

    by_size: dict[int, Gate] = field(default_factory=dict)

    def of(self, requests: int) -> Gate:
        """The gate of steps that so many requests share."""
        return self.by_size.setdefault(requests.bit_length(), Gate())
