"""The figures of one request, computed from its record: what every line, table and JSON of statistics shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from augury.record import FinishReason, RequestRecord


@dataclass(frozen=True)
class DrafterFigures:
    """What one drafter did in one request.

    Attributes:
        name: of the drafter.
        proposed: nodes it offered.
        drafted: of these, how many were verified in its name.
        accepted: of these, how many were accepted and emitted.
        ms: time of all its proposals.
        faults: steps without it because it broke its contract: its proposal was dropped, or it was left out.
    """

    name: str
    proposed: int
    drafted: int
    accepted: int
    ms: float
    faults: int


@dataclass(frozen=True)
class Figures:
    """What one request took and gave; times in milliseconds of wall time.

    Attributes:
        cached_tokens: prompt tokens that were found in the cache and not computed again.
        mean_acceptance_length: 1 + accepted / steps, see ``RequestRecord.acceptance_length``; None without steps.
        draft_acceptance_rate: accepted / drafted, bonus excluded; None when nothing was drafted.
        acceptance_histogram: index j: steps that accepted exactly j draft tokens.
        rest_ms: time of the steps that was neither drafting nor verifying.
        undrafted: why steps had no draft: reason -> number of steps.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: FinishReason | None
    steps: int
    drafted: int
    accepted: int
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    tokens_per_second: float | None
    prefill_ms: float
    decode_ms: float
    draft_ms: float
    verify_ms: float
    rest_ms: float
    drafters: list[DrafterFigures]
    undrafted: dict[str, int]


def figures(record: RequestRecord) -> Figures:
    """Compute the figures of a request, finished or still running."""
    steps = record.steps
    draft_ms, verify_ms = sum(s.draft_ms for s in steps), sum(s.verify_ms for s in steps)
    drafted = Counter(int(source) for s in steps for source in s.tree.source)
    accepted = Counter(source for s in steps for source in s.sources)
    offers = [offer for s in steps for offer in s.proposals]
    return Figures(
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        finish_reason=record.finish,
        steps=len(steps),
        drafted=record.drafted,
        accepted=record.accepted,
        mean_acceptance_length=record.acceptance_length,
        draft_acceptance_rate=record.acceptance_rate,
        acceptance_histogram=record.histogram,
        tokens_per_second=record.tokens_per_second,
        prefill_ms=record.prefill_ms,
        decode_ms=record.decode_ms,
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        rest_ms=record.decode_ms - draft_ms - verify_ms,
        drafters=[
            DrafterFigures(
                name=name,
                proposed=sum(o.nodes for o in offers if o.drafter == name),
                drafted=drafted[index],
                accepted=accepted[index],
                ms=sum(o.ms for o in offers if o.drafter == name),
                faults=sum(o.fault is not None for o in offers if o.drafter == name),
            )
            for index, name in enumerate(record.drafters)
        ],
        undrafted=dict(Counter(s.reason for s in steps if s.reason is not None)),
    )


def line(record: RequestRecord) -> str:
    """The statistics of a request in one line."""
    f = figures(record)
    cached = f" ({f.cached_tokens} cached)" if f.cached_tokens else ""
    parts = [f"{f.completion_tokens} tokens after {f.prompt_tokens}{cached}"]
    if f.tokens_per_second is not None and f.mean_acceptance_length is not None:
        share = [f"{name} {ms / f.decode_ms:.0%}" for name, ms in _phases(f)]
        parts += [
            f"{f.tokens_per_second:.1f} tokens/s",
            f"{f.steps} steps",
            f"acceptance length {f.mean_acceptance_length:.2f}",
            f"draft acceptance rate {_rate(f)}",
            "time " + " ".join(share),
        ]
    if f.drafters:
        parts.append("accepted " + ", ".join(f"{d.name} {d.accepted}" for d in f.drafters))
    return " · ".join(parts)


def _phases(f: Figures) -> list[tuple[str, float]]:
    return [("draft", f.draft_ms), ("verify", f.verify_ms), ("rest", f.rest_ms)]


def _rate(f: Figures) -> str:
    if f.draft_acceptance_rate is None:
        return "- (nothing drafted)"
    return f"{f.draft_acceptance_rate:.0%} ({f.accepted}/{f.drafted})"
