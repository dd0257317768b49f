"""What a call of ``propose`` takes, on recorded answers: ``python -m augury_vllm.overhead ANSWERS``.

ANSWERS is what ``augury_vllm.compare --json`` writes, or any JSON list of ``{"prompt": [ids], "answer": [ids]}``. They
are played to the proposer as vLLM would call it, so many at once; calls in which every row was sampled for count.
vLLM's own proposers are played the same where they are installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from augury.errors import InputError
from augury_vllm.arguments import options, whole
from augury_vllm.proposer import AuguryProposer
from augury_vllm.replay import Answer, Figures, Guess, play
from augury_vllm.rows import Table


def config(tokens: int, vocab_size: int, context: int, rows: int, augury: dict[str, Any], **more: Any) -> Any:
    """As much of a ``VllmConfig`` as proposers look at.

    Args:
        tokens: ``num_speculative_tokens``.
        vocab_size: of the target.
        context: ``max_model_len``.
        rows: ``max_num_seqs``.
        augury: our options.
        more: ``ranks``, ``rank`` of the process among them, ``device``, ``instance``, and further ones of the
            speculation.
    """
    ranks, rank, instance = more.pop("ranks", 1), more.pop("rank", 0), more.pop("instance", "replayed")
    device = more.pop("device", "cuda")  # by default prices are given: recorded answers take no time
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            method="custom_class", model="augury_vllm.AuguryProposer", num_speculative_tokens=tokens, **more
        ),
        model_config=SimpleNamespace(
            max_model_len=context, get_vocab_size=lambda: vocab_size, hf_config=SimpleNamespace(eos_token_id=None),
            model="replayed", tokenizer="replayed", served_model_name="replayed",
        ),
        parallel_config=SimpleNamespace(
            world_size=ranks, pipeline_parallel_size=1, tensor_parallel_size=ranks, rank=rank, data_parallel_index=0
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=rows, async_scheduling=False),
        device_config=SimpleNamespace(device_type=device), additional_config={"augury": augury}, instance_id=instance,
    )  # fmt: skip


def ours(tokens: int, vocab_size: int, context: int, rows: int, augury: dict[str, Any]) -> Guess:
    """Our proposer."""
    proposer = AuguryProposer(config(tokens, vocab_size, context, rows, augury))
    return lambda sampled, lengths, table, names: proposer.propose(sampled, lengths, table)


def vllm_ngram(tokens: int, vocab_size: int, context: int, rows: int) -> Guess:
    """Prompt lookup of vLLM."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    lookup = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    proposer = NgramProposer(config(tokens, vocab_size, context, rows, {}, **lookup))
    return lambda sampled, lengths, table, names: proposer.propose(tokens, sampled, lengths, table)


def vllm_suffix(tokens: int, vocab_size: int, context: int, rows: int) -> Guess:
    """Suffix decoding of vLLM, with its defaults but for that it remembers no other answers."""
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

    settings = {"max_tree_depth": 24, "max_spec_factor": 1.0, "min_token_prob": 0.1, "max_cached_requests": 0}
    named = {f"suffix_decoding_{name}": value for name, value in settings.items()}
    proposer = SuffixDecodingProposer(config(tokens, vocab_size, context, rows, {}, **named))

    def guess(sampled: list[list[int]], lengths: Table, table: Table, names: Sequence[str]) -> list[list[int]]:
        batch = SimpleNamespace(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, num_tokens_no_spec=lengths,
            num_prompt_tokens=[n - len(new) for n, new in zip(lengths.tolist(), sampled, strict=False)],
            token_ids_cpu=table,
        )  # fmt: skip
        return [list(chain) for chain in proposer.propose(tokens, batch, sampled)]

    return guess


def read(file: Path) -> list[Answer]:
    """Recorded answers.

    Raises:
        InputError: there are none in the file.
    """
    try:
        rows = json.loads(file.read_text("utf-8"))
        pairs = [([int(one) for one in row["prompt"]], [int(one) for one in row["answer"]]) for row in rows]
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        pairs = []
    if not (pairs and all(prompt and answer for prompt, answer in pairs)):
        raise InputError(f"{file} holds no answers; give what augury_vllm.compare --json writes")
    return [Answer(prompt, answer) for prompt, answer in pairs]


def printed(name: str, figures: Figures, rows: int) -> str:
    """One line of the table."""
    full = np.array([took for took, sampled in zip(figures.ms, figures.rows, strict=True) if sampled == rows])
    if not len(full):
        return f"{name:20s} no call with {rows} rows: give more answers"
    return (
        f"{name:20s} {np.median(full):8.3f} {np.percentile(full, 95):8.3f} {full.max():8.3f} "
        f"{figures.acceptance_length:10.2f} {figures.tokens_per_step:8.2f} {len(full):6d}"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Time propose on recorded answers.")
    parser.add_argument("answers", type=Path)
    parser.add_argument("--rows", type=whole(), default=16, help="requests at once")
    parser.add_argument("--tokens", type=whole(), default=5, help="num_speculative_tokens")
    parser.add_argument("--drafters", default="suffix")
    parser.add_argument("--augury", type=options, default={}, help="further options of augury, as JSON")
    parser.add_argument("--vocab-size", type=whole(), default=49152)
    parser.add_argument("--context", type=whole(), default=2048)
    given = parser.parse_args()
    try:
        _time(given)
    except InputError as error:
        parser.error(str(error))


def _time(given: argparse.Namespace) -> None:
    rows = read(given.answers)
    fitting = [one for one in rows if len(one.prompt) + len(one.answer) < given.context]
    if not fitting:
        raise InputError(f"none of {len(rows)} answers fits --context {given.context}; raise it")
    sizes = (given.tokens, given.vocab_size, given.context, given.rows)
    print(f"{len(fitting)} answers, {given.rows} at once, num_speculative_tokens {given.tokens}; milliseconds a call")
    print(f"{'':20s} {'median':>8s} {'95 %':>8s} {'most':>8s} {'accept len':>10s} {'tok/step':>8s} {'calls':>6s}")
    makers: dict[str, Callable[[], Guess]] = {
        f"augury {given.drafters}": lambda: ours(*sizes, {"drafters": given.drafters, **given.augury}),
        "vLLM ngram": lambda: vllm_ngram(*sizes),
        "vLLM suffix": lambda: vllm_suffix(*sizes),
    }
    for name, made in makers.items():
        try:
            guess = made()
        except ImportError as missing:
            print(f"{name:20s} left out: {missing}")
            continue
        figures = play(guess, fitting, rows=given.rows, context=given.context)
        print(printed(name, figures, given.rows), flush=True)


if __name__ == "__main__":
    main()
