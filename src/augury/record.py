"""What happened: one record a step, one record a request. Every figure shown anywhere is computed from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from augury.tree import DraftTree, Path

FinishReason = Literal["stop", "length", "cancelled", "error"]

PHASES = ("draft", "verify", "accept", "commit", "rest")
"""Of a step, in their order; each has its ``..._ms``."""


@dataclass(frozen=True)
class Proposal:
    """What one drafter did in one step.

    Attributes:
        drafter: its name.
        nodes: nodes it proposed.
        ms: milliseconds of ``propose``.
        fault: why its proposal was dropped, or the drafter left out, or None.
        unasked: why it was not asked although it could have been, or None.
    """

    drafter: str
    nodes: int
    ms: float
    fault: str | None = None
    unasked: str | None = None


@dataclass(frozen=True)
class StepRecord:
    """One step of one request.

    Attributes:
        position: position of the root, so the first emitted token stands at ``position + 1``.
        root: its token.
        tree: what was verified, without the laws of sampled nodes; see ``sampled``.
        path: what the rule decided, before stops cut it.
        emitted: tokens added to the answer, after stops cut the path.
        proposals: what each drafter offered, in the engine's order.
        reason: why nothing was drafted, or None when something was.
        rows: rows of the whole forward this step shared with other requests.
        draft_ms, verify_ms, accept_ms, commit_ms, rest_ms: wall time of the phases; shared phases are counted
            whole in each request's record.
        probabilities: if asked for, the target's p of each node's token given its path, f64[n].
        sampled: for nodes that were *sampled*: node -> the drafter's q of its token.
        began: when the step began, in seconds of ``time.perf_counter``.
        plain_ms: what a step of the same requests would take without any draft, by the engine's cost tables; None
            without tables.
        requests: requests that shared the step, this one included.
        coins: if the step was explained and its rule threw some: for each node the number in (0, 1) that decided on
            it, None for a node that the rule did not come to.
    """

    position: int
    root: int
    tree: DraftTree
    path: Path
    emitted: tuple[int, ...]
    proposals: tuple[Proposal, ...]
    reason: str | None
    rows: int
    draft_ms: float
    verify_ms: float
    accept_ms: float
    commit_ms: float
    rest_ms: float
    probabilities: tuple[float, ...] | None = None
    sampled: Mapping[int, float] = field(default_factory=dict)
    began: float = 0.0
    plain_ms: float | None = None
    requests: int = 1
    coins: tuple[float | None, ...] | None = None

    @property
    def drafted(self) -> int:
        """Draft tokens verified."""
        return len(self.tree)

    @property
    def accepted(self) -> int:
        """Accepted draft tokens that were emitted: the bonus token and what a stop cut off do not count."""
        return min(len(self.path.nodes), len(self.emitted))

    @property
    def sources(self) -> tuple[int, ...]:
        """For each emitted token the index of its drafter, or -1 when it is the target's own."""
        drafted = [int(self.tree.source[i]) for i in self.path.nodes[: len(self.emitted)]]
        return tuple(drafted + [-1] * (len(self.emitted) - len(drafted)))

    @property
    def ms(self) -> float:
        """Wall time of the step."""
        return self.draft_ms + self.verify_ms + self.accept_ms + self.commit_ms + self.rest_ms

    @property
    def saved_ms(self) -> float | None:
        """What plain decoding would have needed beyond this for the same tokens; below 0 where it needs less."""
        return None if self.plain_ms is None else len(self.emitted) * self.plain_ms - self.ms


@dataclass(repr=False)
class RequestRecord:
    """One request from prompt to end. Grows while the request runs.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: of these, how many were found in the slot's cache and not computed again.
        prefill_ms: wall time of the prompt.
        steps: the steps so far.
        finish: why it ended, or None while it runs.
        stop: the stop string or stop token that ended it, if one did.
        drafters: names, by the index used in ``DraftTree.source``.
        began: when it was given a slot, in seconds of ``time.perf_counter``; 0 before.
    """

    prompt_tokens: int
    drafters: Sequence[str]
    cached_tokens: int = 0
    prefill_ms: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)
    finish: FinishReason | None = None
    stop: str | int | None = None
    began: float = 0.0

    def __repr__(self) -> str:
        done = f"{self.completion_tokens} tokens in {len(self.steps)} steps"
        return f"<RequestRecord: {done}, {self.accepted} of {self.drafted} draft tokens accepted>"

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer."""
        return sum(len(s.emitted) for s in self.steps)

    @property
    def drafted(self) -> int:
        """Draft tokens verified."""
        return sum(s.drafted for s in self.steps)

    @property
    def accepted(self) -> int:
        """Draft tokens accepted and emitted."""
        return sum(s.accepted for s in self.steps)

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / steps, None without steps: the mean number of tokens a step emits, its own token included.

        A step that an end or a limit cut counts as if it had emitted its own token too, so this may lie a little
        above completion_tokens / steps.
        """
        return 1.0 + self.accepted / len(self.steps) if self.steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, bonus excluded. None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def histogram(self) -> list[int]:
        """Index j: steps that accepted exactly j draft tokens; dense, its sum is the number of steps."""
        return np.bincount([s.accepted for s in self.steps]).tolist() if self.steps else []

    @property
    def decode_ms(self) -> float:
        """Wall time of all steps."""
        return sum(s.ms for s in self.steps)

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens per second of decoding, the prompt excluded."""
        return 1e3 * self.completion_tokens / self.decode_ms if self.decode_ms else None
