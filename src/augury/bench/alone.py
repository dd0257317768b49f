"""Every drafter alone, on one loaded target: each prompt is answered plainly once and then with each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from augury.bench.paired import Given, Pair, Progress, arms
from augury.bench.prompts import Prompt
from augury.bench.reliability import Trial
from augury.drafters import make
from augury.drafters.drafter import Drafter, Observation, View
from augury.engine.costs import Meter
from augury.engine.engine import Engine
from augury.errors import first_line
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


@dataclass
class Tried:
    """What came of one drafter so far.

    Attributes:
        drafter: its spec.
        pairs: plain and drafted answers.
        trials: the drafted answers of the first round with what was offered: from the second round on a drafter that
            remembers would find the answer in its memory.
        why: why it could not be made, or None.
    """

    drafter: str
    pairs: list[Pair] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list, repr=False)
    why: str | None = None


def alone(
    base: Engine,
    meter: Meter | None,
    specs: Sequence[str],
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    max_tokens: int,
    rounds: int,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[list[Tried]]:
    """Measure drafters; gives after every prompt what there is, in the order of the specs.

    A prompt is computed once and answered plainly and with each drafter in turn, so all are compared with the same
    plain answer, and who stops early has figures of all drafters.

    Args:
        base: of the target, with no request of its own; its drafters are not asked.
        meter: costs of the target as they were profiled; None verifies every guess.
        specs: of the drafters, no two alike. What making one raises is told in the result.
        prompts: at least one.
        sampling: of the answers.
        max_tokens: of each answer at most.
        rounds: see ``paired.arms``.
        threads: of the target, which a draft model has too unless its spec says otherwise.
        progress: called after every answer.
    """
    base.close()  # its slots are wanted
    tried = {spec: Tried(spec) for spec in specs}
    made: dict[str, Watched] = {}
    for spec in specs:
        try:
            drafter = make(
                spec, target=base.target, tokenizer=base.tokenizer, vocab_size=base.target.info.vocab_size, slots=1,
                target_threads=threads, costs=lambda: meter.costs if meter else None,
            )  # fmt: skip
        except Exception as error:  # of a user's constructor, anything; the others are measured all the same
            tried[spec].why = first_line(error)
        else:
            made[spec] = Watched(drafter)
    found = list(tried.values())
    if not made:
        yield found
        return
    seen: set[tuple[str, str]] = set()

    def taken(given: Given) -> None:
        for spec in given.arm or ():
            if (spec, given.prompt.id) not in seen:
                seen.add((spec, given.prompt.id))
                tried[spec].trials.append(Trial(given.record, made[spec].offers()))

    with Engine(
        base.target, list(made.items()), tokenizer=base.tokenizer, template=base.template, eos_ids=base.eos_ids,
        meter=meter,
    ) as engine:  # fmt: skip
        for pairs in arms(
            engine, prompts, sampling, [(spec,) for spec in made],
            max_tokens=max_tokens, rounds=rounds, warm=True, progress=progress, taken=taken,
        ):  # fmt: skip
            for spec, pair in zip(made, pairs, strict=True):
                tried[spec].pairs.append(pair)
            yield found
