"""The figures that an answer carries, all from the engine's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from augury.record import RequestRecord
from augury.server.asking import Asked
from augury.server.settings import Amount
from augury.tree import IntArray


def counted(asked: Asked, n: int, completion: int) -> dict[str, Any]:
    """Tokens, of the answers so many. A prompt counts once, however many answers it gets."""
    records = [request.record for request in asked.requests[::n]]
    prompt = sum(record.prompt_tokens for record in records)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(record.cached_tokens for record in records)},
    }


def usage(asked: Asked, n: int = 1) -> dict[str, Any]:
    """Tokens of answers that have ended, ``n`` of each prompt, and what became of the prediction."""
    found = counted(asked, n, sum(request.record.completion_tokens for request in asked.requests))
    if asked.prediction is not None:
        # OpenAI bills rejected tokens and counts them in completion_tokens; here that is what was emitted.
        appeared = [
            in_common(asked.prediction.tolist(), request.tokens[len(request.prompt) :]) for request in asked.requests
        ]
        found["completion_tokens_details"] = {
            "accepted_prediction_tokens": sum(appeared),
            "rejected_prediction_tokens": len(asked.prediction) * len(appeared) - sum(appeared),
        }
    return found


def in_common(expected: Sequence[int], answer: IntArray) -> int:
    """Tokens of a prediction that appear in an answer, in order: the longest common subsequence.

    A row of the usual table is one long number, a bit for every token of the prediction (Hyyrö 2004).
    """
    places: dict[int, int] = {}
    for place, token in enumerate(expected):
        places[token] = places.get(token, 0) | 1 << place
    full = (1 << len(expected)) - 1
    row = full
    for token in answer.tolist():
        hits = row & places.get(token, 0)
        row = (row + hits | row - hits) & full
    return len(expected) - row.bit_count()


def drafting(records: Sequence[RequestRecord], amount: Amount) -> dict[str, Any]:
    """``metrics.speculative_decoding``, under vLLM's names; of all answers together."""
    steps = [step for record in records for step in record.steps]
    accepted, drafted = sum(s.accepted for s in steps), sum(s.drafted for s in steps)
    reasons = Counter(step.reason for step in steps if step.reason is not None)
    found: dict[str, Any] = {
        "mean_acceptance_length": 1.0 + accepted / len(steps) if steps else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_histogram": np.bincount([s.accepted for s in steps]).tolist() if steps else [],
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "off_reason": reasons.most_common(1)[0][0] if reasons and not drafted else None,
    }
    if amount == "detailed":
        found["per_step_accepted"] = [s.accepted for s in steps]
        found["per_step_drafted"] = [s.drafted for s in steps]
        found["undrafted_steps"] = dict(reasons)
        found["accepted_by_drafter"] = dict(
            Counter(r.drafters[source] for r in records for s in r.steps for source in s.sources if source >= 0)
        )
    return found


def timings(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """What the llama.cpp family shows."""
    prompt_ms, ms = sum(r.prefill_ms for r in records), sum(r.decode_ms for r in records)
    count = sum(r.completion_tokens for r in records)
    cached = sum(r.cached_tokens for r in records)
    return {
        "prompt_n": sum(r.prompt_tokens for r in records) - cached,
        "prompt_ms": prompt_ms,
        "predicted_n": count,
        "predicted_ms": ms,
        "predicted_per_second": 1e3 * count / ms if ms else None,
        "draft_n": sum(r.drafted for r in records),
        "draft_n_accepted": sum(r.accepted for r in records),
        "cache_n": cached,
    }


def figures(asked: Asked) -> dict[str, Any]:
    """``metrics`` and ``timings``, where they are wanted."""
    if asked.figures == "none":
        return {}
    records = [request.record for request in asked.requests]
    return {"metrics": {"speculative_decoding": drafting(records, asked.figures)}, "timings": timings(records)}
