"""Steps, as events tell of them, in words and figures: what pictures and pages of a step say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from augury.record import PHASES
from augury.trace.events import accepted
from augury.trace.explain import Fate, judged

OWN = {"correction": "correction", "bonus": "bonus token", "plain": "own token"}
"""The target's own token by where it stands: after a miss, after a full hit, where nothing was drafted."""


class Guess(NamedTuple):
    """A draft token of a step.

    Attributes:
        word: what it spells, in quotes, or its id.
        drafter: whose guess it is.
        source: the drafter's index.
        survival: how likely it was thought to be kept, with all before it.
        p: the target's probability of it, or None.
        q: the drafter's, if it was sampled.
        coin: the chance that decided on it, where one did.
        fate: what became of it.
    """

    word: str
    drafter: str
    source: int
    survival: float
    p: float | None
    q: float | None
    coin: float | None
    fate: Fate


def word(step: Mapping[str, Any], token: int) -> str:
    """What a token of the step spells, in quotes; its id where the trace has no text."""
    spelt = (step.get("texts") or {}).get(str(token))
    return f"#{token}" if spelt is None else f'"{spelt}"'


def guesses(step: Mapping[str, Any], drafters: Sequence[str]) -> list[Guess]:
    """The nodes of the step's tree, in its order."""
    fates = judged(step["parents"], step["path"], len(step["emitted"]))
    p, q, coins = step["p"] or [], step["q"], step["coins"] or []
    return [
        Guess(
            word(step, token),
            drafters[step["source"][node]],
            step["source"][node],
            step["survival"][node],
            p[node] if p else None,
            q.get(str(node)),
            coins[node] if coins else None,
            fates[node],
        )
        for node, token in enumerate(step["tokens"])
    ]


def milliseconds(step: Mapping[str, Any]) -> float:
    """Wall time of the step."""
    return float(sum(step[f"{phase}_ms"] for phase in PHASES))


def heading(step: Mapping[str, Any]) -> str:
    """The step in a few words."""
    count = len(step["tokens"])
    if not count:
        return f"Step {step['n'] + 1}: nothing was drafted"
    return f"Step {step['n'] + 1}: {accepted(step)} of {count} guess{'es' if count > 1 else ''} accepted"
