"""Drafters beside a loop that is somebody else's.

Another engine runs the target, samples, and owns the cache; it tells which tokens came and takes a chain of guesses for
each of its texts. What the drafters, their calibration, the choice among them and the budget do is what they do in our
own loop (``engine/loop.py``), less what only a target of ours can give: trees, rows of logits, hidden states.

>>> beside = Alongside(["suffix"], vocab_size=49152, context=2048, prices=Given(row=0.02))
>>> text = beside.open(np.array([5, 6, 7, 5, 6], np.int32))
>>> beside.step([Came(text, ())], deepest=4)
[(7, 5, 6)]
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from augury.budget import Costs, choose
from augury.drafters import DRAFTERS, check, make, takes, unreplayable
from augury.drafters.drafter import Drafter, Observation, tenant_of
from augury.engine.asking import Asking
from augury.engine.drafting import Offer, begin, end, learn, observe, propose
from augury.engine.gate import PAUSED, Gates
from augury.engine.output import Output, Stops
from augury.engine.request import Request, Switches, frozen
from augury.engine.trust import Trust
from augury.errors import InputError, shown
from augury.models.target import TargetInfo
from augury.noise import Noise, Stream
from augury.record import RequestRecord, StepRecord
from augury.sampling import Sampler, Sampling
from augury.tree import MAX_NODES, DraftTree, IntArray, Path, common

if TYPE_CHECKING:
    from augury.models.tokenizer import Tokenizer

_FIRST = 3
"""Steps without guesses from which ``Measured`` learns what a plain step takes."""

_PRIOR, _PRIOR_WEIGHT = 9, 0.2
"""Rows of a step that is made up for ``Measured`` to begin with, and how much it weighs beside a real one."""

_FADE, _LEAST = 0.98, 0.02
"""What steps weigh after the next one; share of the mean step that a plain one takes at least."""

_HICCUP, _SOME = 3.0, 8.0
"""Times the expected one that a step counts at most, as soon as so many were seen."""

_PLAIN_EVERY = 50
"""Drafted steps after which one is plain where time counts: what no step shows cannot be compared with."""

_PLAIN = "a plain step, to see what it takes"


class Prices(ABC):
    """What forwards of the other engine cost."""

    clock: bool
    """Whether time that drafting takes counts: otherwise what is guessed depends on the texts alone."""

    @property
    @abstractmethod
    def costs(self) -> Costs | None:
        """The table, or None as long as nothing is known: then nothing is drafted."""

    def served(self, rows: int, read: float, ms: float) -> None:  # noqa: B027 - given prices have nothing to learn
        """Learn from a step: its rows, the row-tokens of context it read, its time."""


class Given(Prices):
    """Prices in shares of a plain step, the same on every machine that is told the same ones.

    Args:
        row: what each row beyond the first costs as long as weights take longer to read than to multiply.
        knee: rows at which multiplying takes as long; from there on every row costs ``1 / knee``.

    Raises:
        InputError: ``row`` is not from 0 to 1, or ``knee`` below 1.
    """

    clock = False

    def __init__(self, row: float = 0.02, knee: int = 64) -> None:
        if not 0.0 <= row <= 1.0:
            raise InputError(f"row is {row}; a row costs from 0 to 1 plain steps")
        if knee < 1:
            raise InputError(f"knee is {knee}; it must be 1 row or more")
        self._costs = Costs(_shape(row, knee, 4 * max(knee, MAX_NODES + 1)), 0.0, 0.0)

    @property
    def costs(self) -> Costs:
        """The table; a plain step of one request takes 1."""
        return self._costs


class Measured(Prices):
    """Prices learnt from the other engine's own steps: a few plain ones first, then all.

    A line through the last steps, by least squares: milliseconds over rows. A table of ours is profiled before it is
    used, and then moved point by point; here every point would be a guess that only its own steps could mend.

    Args:
        row: what a row is taken to cost before steps with several were seen, in plain steps; as for ``Given``.
        knee: likewise.
    """

    clock = True

    def __init__(self, row: float = 0.02, knee: int = 64) -> None:
        self._begin = Given(row, knee).costs
        self._first: list[tuple[int, float]] = []
        self._costs: Costs | None = None
        self._sums = np.zeros(5)  # of weight, x, y, x*x and x*y; x rows beyond the first, y milliseconds

    @property
    def costs(self) -> Costs | None:
        """The table in milliseconds."""
        return self._costs

    def served(self, rows: int, read: float, ms: float) -> None:
        """Learn from a step."""
        if self._costs is None:
            self._first.append((rows, ms))
            if len(self._first) < _FIRST:
                return
            last = len(self._begin.verify) - 1
            pace = float(np.median([took / float(self._begin.verify[min(r, last)]) for r, took in self._first]))
            for r, _ in self._first:
                self._see(r, pace * float(self._begin.verify[min(r, last)]))
            self._see(_PRIOR, pace * float(self._begin.verify[min(_PRIOR, last)]), _PRIOR_WEIGHT)
        else:
            # A step that lost the processor for a while says nothing of its rows: cap what it can teach.
            expected = float(self._costs.step(np.array([rows]), np.array([read]))[0])
            self._sums *= _FADE
            self._see(rows, min(ms, _HICCUP * expected) if self._sums[0] > _SOME else ms)
        weight, x, y, xx, xy = self._sums.tolist()
        slope = max((weight * xy - x * y) / max(weight * xx - x * x, 1e-9), 0.0)
        # All steps of one size tell nothing of others; and no line may begin below nothing.
        plain = (y - slope * x) / weight
        if plain < _LEAST * y / weight:
            plain = _LEAST * y / weight
            slope = (y / weight - plain) * weight / max(x, 1e-9)
        table = plain + slope * np.arange(-1.0, len(self._begin.verify) - 1.0, dtype=np.float64)
        table[0] = 0.0
        self._costs = Costs(table, 0.0, 0.0)

    def _see(self, rows: int, ms: float, weight: float = 1.0) -> None:
        x = rows - 1.0
        self._sums += weight * np.array([1.0, x, ms, x * x, x * ms])


def _can(name: str) -> bool:
    """Whether a drafter has part in another engine; those of a package that is not there have none."""
    try:
        return unreplayable(name) is None
    except InputError:
        return False


def _shape(row: float, knee: int, rows: int) -> np.ndarray:
    """f64[rows+1]: a roofline with a slope; entry 0 is 0."""
    r = np.arange(rows + 1, dtype=np.float64)
    table = np.maximum(1.0 + row * (r - 1.0), r / knee)
    table[0] = 0.0
    return table


@dataclass(eq=False)
class Text:
    """One text of the other loop; what it is to us is ``request``."""

    request: Request
    offer: Offer | None = None
    tree: DraftTree = field(default_factory=DraftTree.empty)
    asked: _Asked | None = None

    @property
    def tokens(self) -> IntArray:
        """i32[n], all of it so far; a view."""
        return self.request.tokens

    @property
    def record(self) -> RequestRecord:
        """What was guessed and what of it came, step by step; ``verify_ms`` is the other engine's whole step."""
        return self.request.record


class Came(NamedTuple):
    """What a step of the other loop brought for a text: its new tokens, none where it only begins."""

    text: Text
    tokens: Sequence[int]


@dataclass(frozen=True)
class _Asked:
    """A step's guesses, for what the next call that has its texts tells of it."""

    texts: tuple[Text, ...]
    rows: int
    read: float
    plain_ms: float | None
    drafting: bool
    draft_ms: float
    began: float
    ended: float


class Alongside:
    """Guesses for the texts of another loop. Not for several threads at once.

    Args:
        drafters: specs, see ``drafters/__init__.py``; those that need a target of ours are refused.
        vocab_size: V of the target.
        context: tokens that a text may have.
        prices: of the target's forwards.
        tokenizer: the target's, for drafters that need it.
        slots: texts open at once for which a drafter guesses that keeps a cache for each, such as ``model``; for one
            more it does not guess.

    Raises:
        InputError: a drafter that needs the target, or cannot be made; it says which can be had. Prices that are none.
    """

    def __init__(
        self,
        drafters: Sequence[str],
        *,
        vocab_size: int,
        context: int,
        prices: Prices,
        tokenizer: Tokenizer | None = None,
        slots: int = 1,
    ) -> None:
        if not isinstance(prices, Prices):
            raise InputError(f"prices is {shown(prices)}; give Measured(), Given(row), or leave it out")
        for spec in drafters:
            check(spec)
            if why := unreplayable(spec):
                can = ", ".join(filter(_can, DRAFTERS))
                raise InputError(f"drafter {spec} has no part in another engine: {why}; those that have: {can}")
            if tokenizer is None and takes(spec, "tokenizer", without=False):
                raise InputError(f"drafter {spec} needs the target's tokenizer, and none is given; suffix needs none")
        self._info = TargetInfo(
            name="another engine", family="", runner="", dtype="", vocab_size=vocab_size, context=context,
            hidden_size=0, layers=0, parameters=0, weight_bytes=0, trees=False, exact=False,
        )  # fmt: skip
        self._drafters: list[tuple[str, Drafter]] = [
            (spec, make(spec, tokenizer=tokenizer, vocab_size=vocab_size, slots=slots, costs=lambda: prices.costs))
            for spec in drafters
        ]
        self.names = tuple(drafters)
        """Of the drafters, by the index used in ``DraftTree.source``."""
        self._prices = prices
        self._numbers = count()
        self._asking, self._trust, self._gates = Asking(), Trust(), Gates()
        self._asked: _Asked | None = None
        self._nothing = np.empty((0, vocab_size), np.float32)
        self._private = frozenset(i for i, (_, drafter) in enumerate(self._drafters) if drafter.remembers)
        self._watched = any(type(drafter).observe is not Drafter.observe for _, drafter in self._drafters)
        self._drafted_steps = 0  # one behind the other
        self._priced: Costs | None = None
        self._worths: dict[tuple[int, int], tuple[int, float]] = {}

    def check_reads_prediction(self) -> None:
        """Raises ``InputError`` where none of the drafters follows a prediction: it would be ignored."""
        if not any(drafter.reads_prediction for _, drafter in self._drafters):
            raise InputError(f"no drafter reads a prediction; name that drafter: {','.join(self.names)},prediction")

    def open(
        self, prompt: IntArray, *, temperature: float = 0.0, cache_salt: str = "", prediction: IntArray | None = None
    ) -> Text:
        """Begin a text.

        Args:
            prompt: i32[n], n >= 1.
            temperature: it is sampled at; drafters reckon with it.
            cache_salt: whose it is; what drafters remember of one tenant's texts they use for no other.
            prediction: i32[m], what is expected to come.
        """
        if not len(prompt):
            raise InputError("a text must have at least one token")
        prompt = np.asarray(prompt, np.int32)
        noise = Noise(0, Stream.TARGET)
        request = Request(
            number=next(self._numbers),
            prompt=prompt,
            sampler=Sampler(Sampling(temperature=temperature, seed=0), self._info.vocab_size, (), prompt, noise),
            # Where the text ends is the other loop's to say; until then there is room as far as the context goes.
            output=Output(Stops(max(self._info.context - len(prompt), 1)), None),
            switches=Switches(frozenset(range(len(self._drafters)))),
            rule="coupled",
            draft_noise=noise,
            accept_noise=Noise(0, Stream.ACCEPT),
            drafters=self.names,
            prediction=prediction,
            tenant=tenant_of(cache_salt),
        )
        begin(self._drafters, request, self._asking, self._trust)
        return Text(request)

    def close(self, text: Text) -> None:
        """Forget a text; drafters that remember keep what came behind its prompt."""
        end(self._drafters, text.request)
        text.asked = None

    def step(self, batch: Sequence[Came], deepest: int = MAX_NODES, timed: bool = True) -> list[tuple[int, ...]]:
        """Learn what the other loop's step brought, and guess for its next one: a chain for each text, maybe empty.

        Args:
            batch: the texts that are to step together next.
            deepest: tokens of a chain at most.
            timed: whether the time since the call before with these texts was that of the step we guessed for, and of
                nothing else. Whether another batch stepped in between is seen here.
        """
        began = time.perf_counter()
        if timed and self._prices.clock:
            self._learn_time(batch, began)
        for came in batch:
            if len(came.tokens):
                self._learn(came, began)
        requests = [came.text.request for came in batch]
        committed = [r.length - 1 for r in requests]
        costs = self._prices.costs
        gate = self._gates.of(len(batch)) if costs and self._prices.clock and len(batch) > 1 else None
        looking = self._prices.clock and self._drafted_steps >= _PLAIN_EVERY
        drafting = costs is not None and not looking and (gate is None or gate.open())
        if costs is not None and drafting:
            limit, floor = self._worth(costs, len(batch), deepest)
            weighed = costs if self._prices.clock else None
            offers = propose(
                self._drafters, requests, self._info, [limit] * len(batch), weighed, deepest,
                stalls=self._prices.clock, floor=floor,
            )  # fmt: skip
            spent = 1e3 * (time.perf_counter() - began) if self._prices.clock else 0.0
            trees = choose([offer.tree for offer in offers], costs, committed, spent)
        else:
            why = "the machine is being measured" if costs is None else _PLAIN if looking else PAUSED
            offers = [Offer(DraftTree.empty(), (), why)] * len(batch)
            trees = [DraftTree.empty()] * len(batch)
        for came, offer, tree in zip(batch, offers, trees, strict=True):
            came.text.offer, came.text.tree = offer, tree
        rows = len(batch) + sum(map(len, trees))
        self._drafted_steps = self._drafted_steps + 1 if rows > len(batch) else 0
        read, plain = 0.0, None
        if costs is not None and self._prices.clock:
            read = float(sum((len(tree) + 1) * n for tree, n in zip(trees, committed, strict=True)))
            plain = float(costs.step(np.array([len(batch)]), np.array([float(sum(committed))]))[0])
        ended = time.perf_counter()
        asked = _Asked(
            tuple(came.text for came in batch), rows, read, plain, drafting, 1e3 * (ended - began), began, ended
        )
        self._asked = asked
        for came in batch:
            came.text.asked = asked
        return [tuple(tree.tokens.tolist()) for tree in trees]

    def _worth(self, costs: Costs, requests: int, deepest: int) -> tuple[int, float]:
        """Nodes that a drafter may propose for a text, and the survival below which none is worth its row."""
        key = (requests, deepest)
        if self._priced is not costs:
            self._priced, self._worths = costs, {}
        if key not in self._worths:
            rows = requests + np.arange(MAX_NODES + 1)
            ms = costs.step(rows, np.zeros(len(rows)))
            row_ms = float(((ms[1:] - ms[0]) / np.arange(1, MAX_NODES + 1)).min())
            # A chain is all that can be taken, and has ``deepest`` nodes at most.
            limit = min(costs.useful_nodes(0), deepest)
            self._worths[key] = limit, requests * row_ms / float(ms[0])
        return self._worths[key]

    def _learn_time(self, batch: Sequence[Came], now: float) -> None:
        """What the step took that we guessed for, where it can be told."""
        going = [came.text for came in batch if len(came.tokens)]
        asked = going[0].asked if going else None
        if asked is None or {id(text) for text in asked.texts} != {id(text) for text in going}:
            return
        # Steps of two batches at once take each other's time. What plain ones take is learnt all the same, for else two
        # that always run together would never draft.
        if any(text.asked is not asked for text in going) or (asked is not self._asked and self._prices.costs):
            return
        ms = 1e3 * (now - asked.ended)
        if (costs := self._prices.costs) and asked.drafting and asked.plain_ms and len(asked.texts) > 1:
            expected = float(costs.step(np.array([asked.rows]), np.array([asked.read]))[0])
            tokens, requests = sum(len(came.tokens) for came in batch), len(asked.texts)
            plain_ms = asked.plain_ms * ms / expected
            self._gates.of(requests).learn(tokens, requests, ms + asked.draft_ms, plain_ms)
        self._prices.served(asked.rows, asked.read, ms)

    def _learn(self, came: Came, now: float) -> None:
        """What came of a text's guesses."""
        text, emitted = came.text, tuple(map(int, came.tokens))
        request, offer, asked, tree = text.request, text.offer, text.asked, text.tree
        tokens = np.array(emitted, np.int32)
        right = common(tree.tokens, tokens) if len(tree) else 0
        # Who cuts guesses short before they are verified does not say so: what came agrees, and is too short to tell.
        tree = tree if right < len(emitted) else tree.keep(range(right))
        path = Path(tuple(range(right)), emitted[min(right, len(emitted) - 1)])
        position, root = request.length - 1, request.root
        request.sampler.advance(emitted)
        request.append(tokens)
        request.output.count += len(emitted)
        if offer is not None:
            costs = self._prices.costs if self._prices.clock else None
            learn(request, offer, tree, path, len(emitted), costs, self._trust, self._asking, self._private)
        if self._watched:
            observe(self._drafters, request, Observation(tree, path, frozen(tokens), self._nothing, None))
        request.record.steps.append(
            StepRecord(
                position=position,
                root=root,
                tree=tree,
                path=path,
                emitted=emitted,
                proposals=offer.proposals if offer else (),
                reason=None if len(tree) else (offer and offer.reason) or "the guesses were not worth their rows",
                rows=asked.rows if asked else 1,
                draft_ms=asked.draft_ms if asked else 0.0,
                verify_ms=1e3 * (now - asked.ended) if asked else 0.0,
                accept_ms=0.0,
                commit_ms=0.0,
                rest_ms=0.0,
                began=asked.began if asked else now,
                plain_ms=asked.plain_ms if asked else None,
                requests=len(asked.texts) if asked else 1,
            )
        )
        text.offer, text.tree = None, DraftTree.empty()
