"""The contract of a drafter: anything that proposes tokens.

A drafter is one object for one loaded target; it serves many requests and keeps what it needs of each under
``view.id``. The engine calls, for each request: ``open`` once, then ``propose`` and ``observe`` in turn at
every step, then ``close``. ``observe`` is called at every step, drafted by this drafter or not; ``propose`` is left
out where nothing could be drafted. A request that is not drafted at all is never opened, and never closed either.

A drafter that raises, takes too long or returns nonsense costs its own step only; the engine notes it in the
step record and goes on without.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from augury.errors import InputError
from augury.noise import Noise
from augury.tree import DraftTree, FloatArray, IntArray, Path

Rule = Literal["coupled", "rejection", "block"]

LONGEST_SALT = 1024
"""Characters of a ``cache_salt`` at most."""


@dataclass(frozen=True)
class View:
    """A request as drafters may see it. The arrays are read-only and grow between calls.

    Attributes:
        id: unique for the life of the engine.
        prompt_length: tokens of the prompt.
        rule: the acceptance rule in force.
        seat: place of the drafter that sees this view among those of the engine.
        stream: where ``noise`` comes from.
        temperature: of the request; 0 is greedy.
        prediction: i32[m], text the caller expects as the answer, or None.
        tenant: whose it is, see ``tenant_of``. What a drafter keeps of one tenant's text it uses for no other.
    """

    id: int
    prompt_length: int
    rule: Rule
    seat: int
    stream: Noise
    temperature: float
    prediction: IntArray | None
    tenant: str
    _guess: Callable[[FloatArray, Sequence[int], IntArray | None], FloatArray]
    _buffer: list[IntArray]  # one element; the engine replaces it when it grows
    _length: list[int]  # one element
    _slot: list[int]  # one element
    _room: list[int]  # one element
    _forced: Callable[[int], Sequence[tuple[int, bool]]] = lambda limit: ()
    _floor: list[float] = field(default_factory=lambda: [0.0])  # one element
    _chain: list[bool] = field(default_factory=lambda: [False])  # one element

    def guess(self, logits: FloatArray, path: Sequence[int], ids: IntArray | None = None) -> FloatArray:
        """The law f32[v] of a drafter's own logits f32[v] behind ``tokens`` and ``path``, over all tokens or over
        ``ids``, under this request's parameters; see ``Sampler.guess``. Zeros when all tokens are banned.
        """
        return self._guess(logits, path, ids)

    def forced(self, limit: int) -> Sequence[tuple[int, bool]]:
        """At most ``limit`` tokens that spell the only text with which the request's grammar lets the answer go on.

        With each goes whether it is known to be the only token allowed in its place. Nothing where there is no grammar.
        """
        return self._forced(limit)

    @property
    def slot(self) -> int:
        """The request's slot of the target, for a drafter that works with the target's own cache."""
        return self._slot[0]

    @property
    def room(self) -> int:
        """Depth of the deepest node that this step could still emit: a limit of the answer or the context ends it."""
        return self._room[0]

    @property
    def floor(self) -> float:
        """Survival below which no node will be verified in this step, as far as is known: it need not be offered."""
        return self._floor[0]

    @property
    def chain(self) -> bool:
        """Whether no more than one guess of a place can be verified: then all but the likeliest need not be offered."""
        return self._chain[0]

    @property
    def length(self) -> int:
        """Committed tokens: prompt and answer so far, the root of the next tree included."""
        return self._length[0]

    @property
    def noise(self) -> Noise:
        """What a *sampling* drafter must draw with in this step; deterministic drafters ignore it.

        Under the coupled rule it is the target's own, so that guesses match its draws. Under the others it is this
        drafter's own and new in every step: a draft that was judged and refused must tell nothing of another one.
        """
        return self.stream if self.rule == "coupled" else self.stream.salted(self.length << 8 | self.seat)

    @property
    def tokens(self) -> IntArray:
        """i32[length], prompt and answer so far; the last one is the root. A view, not a copy."""
        return self._buffer[0][: self._length[0]]


@dataclass(frozen=True)
class Observation:
    """What one step brought.

    Attributes:
        tree: the tree that was verified, after merging and budget; may be empty.
        path: accepted nodes and next token.
        emitted: i32[k], tokens added to the request in this step (k >= 1); ``view.tokens`` ends with them.
        logits: f32[n+1, V], the target's raw rows for ``tree``; valid during the call only.
        hidden: f32[n+1, d] if some drafter needs it, else None.
    """

    tree: DraftTree
    path: Path
    emitted: IntArray
    logits: FloatArray
    hidden: FloatArray | None


class Drafter(ABC):
    """Proposes a draft tree for a request; see the module's text for the order of calls."""

    needs_hidden: bool = False
    """Whether ``observe`` must be given the target's hidden states."""

    needs_rows: bool = False
    """Whether it learns from the target's rows of logits: a recorded text, which has none, cannot teach it."""

    together: bool = False
    """Whether ``propose_all`` takes less than as many calls of ``propose``."""

    reads_prediction: bool = False
    """Whether it reads ``view.prediction``: a prediction that no drafter reads is refused."""

    reads_grammar: bool = False
    """Whether it guesses from the request's grammar alone, which a recorded text does not have."""

    remembers: bool = False
    """Whether it guesses from earlier requests: what is asked again finds its answer there."""

    def open(self, view: View) -> None:  # noqa: B027 - stateless drafters have nothing to do
        """Begin a request; ``view.tokens`` is the prompt."""

    @abstractmethod
    def propose(self, view: View, limit: int) -> DraftTree:
        """Guess what follows ``view.tokens``; at most ``limit`` nodes, each with its expected survival."""

    def propose_all(self, views: Sequence[View], limits: Sequence[int]) -> list[DraftTree]:
        """The same for several requests that step together; asked where ``together`` says that it is worth it."""
        return [self.propose(view, limit) for view, limit in zip(views, limits, strict=True)]

    def observe(self, view: View, seen: Observation) -> None:  # noqa: B027
        """Learn from a step."""

    def close(self, view: View) -> None:  # noqa: B027
        """Forget a request."""


def tenant_of(cache_salt: str) -> str:
    """Name of the tenant who gives a ``cache_salt``: 32 hexadecimal digits, from which it cannot be read back unless it
    is guessed. The empty one is the local user's.

    Raises:
        InputError: it is no text, or longer than ``LONGEST_SALT`` characters. The message does not show it.
    """
    if not isinstance(cache_salt, str):
        raise InputError(f"cache_salt is a {type(cache_salt).__name__}; give a text (empty: the local user's)")
    if len(cache_salt) > LONGEST_SALT:
        raise InputError(
            f"cache_salt has {len(cache_salt)} characters; it may have up to {LONGEST_SALT} (empty: the local user's)"
        )
    # Half a character, as broken UTF-16 leaves it, is as good a secret as any.
    return hashlib.sha256(b"augury tenant " + cache_salt.encode("utf-8", "surrogatepass")).hexdigest()[:32]
