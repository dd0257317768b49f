"""Every drafter alone, on one loaded target: each answers the same prompts, plainly and drafted in turn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from augury.bench import paired
from augury.bench.paired import Pair, Progress
from augury.bench.prompts import Prompt
from augury.bench.reliability import Trial
from augury.drafters import make
from augury.drafters.drafter import Drafter, Observation, View
from augury.engine.costs import Meter
from augury.engine.engine import Engine
from augury.errors import first_line
from augury.record import RequestRecord
from augury.sampling import Sampling
from augury.tree import DraftTree, FloatArray, IntArray


class Watched(Drafter):
    """A drafter, and a note of what it offers: the engine's records tell what was verified of it, no more."""

    def __init__(self, drafter: Drafter) -> None:
        self.needs_hidden = drafter.needs_hidden
        self.reads_prediction = drafter.reads_prediction
        self.remembers = drafter.remembers
        self._drafter = drafter
        self._offers: dict[int, tuple[IntArray, IntArray, FloatArray]] = {}

    def open(self, view: View) -> None:
        """Begin a request, and forget what was offered in the one before."""
        self._offers = {}
        self._drafter.open(view)

    def propose(self, view: View, limit: int) -> DraftTree:
        """What the drafter proposes."""
        tree = self._drafter.propose(view, limit)
        if isinstance(tree, DraftTree):
            # Without laws: they are as wide as the vocabulary. Copied: a drafter may use its arrays again.
            self._offers[view.length - 1] = tree.tokens.copy(), tree.parents.copy(), tree.survival.copy()
        return tree

    def observe(self, view: View, seen: Observation) -> None:
        """Show the drafter what came."""
        self._drafter.observe(view, seen)

    def close(self, view: View) -> None:
        """Let the drafter forget the request; what it offered stays until the next."""
        self._drafter.close(view)

    def offers(self) -> dict[int, DraftTree]:
        """What was offered in the last request, by the position of the root."""
        return {position: DraftTree.of(*arrays) for position, arrays in self._offers.items()}


@dataclass(frozen=True)
class Tried:
    """What came of one drafter.

    Attributes:
        drafter: its spec.
        pairs: plain and drafted answers.
        trials: the drafted answers of the first round with what was offered: from the second round on a drafter that
            remembers would find the answer in its memory.
        why: why it could not be made, or None.
    """

    drafter: str
    pairs: Sequence[Pair] = ()
    trials: Sequence[Trial] = field(default=(), repr=False)
    why: str | None = None


def alone(
    base: Engine,
    meter: Meter | None,
    spec: str,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    max_tokens: int,
    rounds: int,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Tried:
    """Measure one drafter; whatever its making raises is told in the result.

    Args:
        base: of the target, with no request of its own; its drafters are not asked.
        meter: costs of the target as they were profiled. Each drafter begins with a copy, so that it does not matter
            who was measured before; None verifies every guess.
        spec: of the drafter.
        prompts: at least one.
        sampling: of the answers.
        max_tokens: of each answer at most.
        rounds: see ``paired.run``.
        threads: of the target, which a draft model has too unless its spec says otherwise.
        progress: called after every answer.
    """
    own = copy.deepcopy(meter)
    base.close()  # its slots are wanted
    try:
        drafter = make(
            spec, target=base.target, tokenizer=base.tokenizer, vocab_size=base.target.info.vocab_size, slots=1,
            target_threads=threads, costs=lambda: own.costs if own else None,
        )  # fmt: skip
    except Exception as error:  # a constructor of the user's may raise anything; the others are measured all the same
        return Tried(spec, why=first_line(error))
    watched = Watched(drafter)
    trials: dict[str, Trial] = {}

    def taken(prompt: Prompt, record: RequestRecord) -> None:
        trials.setdefault(prompt.id, Trial(record, watched.offers()))

    with Engine(
        base.target, [(spec, watched)], tokenizer=base.tokenizer, template=base.template, eos_ids=base.eos_ids,
        meter=own,
    ) as engine:  # fmt: skip
        pairs = paired.run(
            engine, prompts, sampling, max_tokens=max_tokens, rounds=rounds, progress=progress, taken=taken
        )
    return Tried(spec, pairs, list(trials.values()))
