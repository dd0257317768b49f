"""From a model's name to an engine that answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import get_args

from augury.drafters import DRAFTERS, make, split
from augury.drafters.drafter import Drafter, Rule
from augury.engine.engine import Engine
from augury.errors import InputError, UnknownName

DEFAULT_DRAFTERS = ("suffix", "prediction")
"""What is asked when nothing is said: both cost microseconds and nothing in memory worth naming."""

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""


def load(
    model: str | PathLike[str] = "smollm2-135m",
    *,
    drafters: str | Sequence[str | Drafter] = DEFAULT_DRAFTERS,
    acceptance: Rule = "coupled",
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 4,
    runner: str | None = None,
    measure: bool = True,
    progress: Progress | None = None,
) -> Engine:
    """Load a model and its drafters.

    Args:
        model: an embedded name (``smollm2-135m``, ``gemma3-270m``), a directory with ``config.json`` and
            safetensors, or a GGUF file.
        drafters: names from ``augury info``, with options as in ``ngram:min=2``; ``module:Class``; or Drafter
            objects. A string is split at commas; ``none`` decodes plainly.
        acceptance: ``coupled`` (default: the same seed gives the same text, drafted or not), ``rejection``
            or ``block`` (the same law of the text, more accepted tokens at high temperature).
        dtype: ``bfloat16`` (default), ``float32`` or ``float16``.
        device: ``cpu`` (default without a GPU) or ``cuda``.
        threads: CPU threads; all cores that the process may use when None.
        max_model_len: context in tokens; the model's own, up to 8192, when None.
        max_num_seqs: requests that can run at the same time.
        runner: ``native``, ``torch`` or ``transformers``; the fastest that fits when None.
        measure: measure the cost of a forward on this machine (about a second for a small model), which
            decides how much is drafted. Without it every guess is verified.
        progress: told what is being done.

    Raises:
        InputError: an argument cannot be honoured.
        ModelError: the files cannot be.
    """
    from augury.engine.costs import profile
    from augury.models.load import load_target

    if max_num_seqs < 1:
        raise InputError(f"max_num_seqs is {max_num_seqs}; it must be 1 or more")
    if acceptance not in get_args(Rule):
        raise UnknownName("acceptance rule", acceptance, get_args(Rule))
    seats = _seats(drafters)
    loaded = load_target(
        model, dtype=dtype, device=device, threads=threads, max_model_len=max_model_len,
        max_num_seqs=max_num_seqs, runner=runner, progress=progress,
    )  # fmt: skip
    meter = None
    if measure and seats:
        meter = profile(
            loaded.target, progress=(lambda share: progress("measuring costs", share)) if progress else None
        )
    return Engine(
        loaded.target, seats, acceptance=acceptance, tokenizer=loaded.tokenizer, template=loaded.template,
        eos_ids=loaded.eos_ids, meter=meter, slots=max_num_seqs,
    )  # fmt: skip


def _seats(drafters: str | Sequence[str | Drafter]) -> list[tuple[str, Drafter]]:
    """(name, drafter) of everything asked for, each once."""
    wanted = split(drafters) if isinstance(drafters, str) else list(drafters)
    seats: list[tuple[str, Drafter]] = []
    for one in wanted:
        if isinstance(one, Drafter):
            seats.append((type(one).__name__.lower(), one))
        elif one not in ("", "none"):
            name = one.partition(":")[0]
            seats.append((name if name in DRAFTERS else ":".join(one.split(":")[:2]), make(one)))
    if "none" in wanted and seats:
        raise InputError(f"drafters name none together with {seats[0][0]}; give one or the other")
    names = [name for name, _ in seats]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"drafter {name} is named twice")
    return seats
