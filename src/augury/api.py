"""From a model's name to an engine that answers."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, get_args

from augury.drafters import DRAFTERS, brought, check, make, split
from augury.drafters.drafter import Drafter, Rule
from augury.engine.engine import Engine, deepest
from augury.errors import InputError, UnknownName

if TYPE_CHECKING:
    from augury.engine.costs import Meter
    from augury.models.load import Progress
    from augury.models.target import Target

AUTO = "auto"
"""Stands for the drafters of ``automatic``."""


def automatic(target: Target) -> list[str]:
    """What drafts when nothing is said.

    Three that cost microseconds, and the target itself where it can be had in 4 bits, else the heads shipped for it:
    beside itself a head takes a hundredth of the time or two to be tried, and brings next to nothing.
    """
    own = brought(target.info)
    return ["suffix", "prediction", "grammar", *(["self"] if "self" in own else own)]


def load(
    model: str | PathLike[str] = "smollm2-135m",
    *,
    drafters: str | Sequence[str | Drafter] = AUTO,
    acceptance: Rule = "coupled",
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 4,
    runner: str | None = None,
    measure: bool = True,
    draft_tokens: int | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Load a model and its drafters.

    Args:
        model: an embedded name (``smollm2-135m``, ``gemma3-270m``), a directory with ``config.json`` and
            safetensors, or a GGUF file.
        drafters: names from ``augury info``, with options as in ``ngram:min=2``; ``module:Class``; or Drafter
            objects. A string is split at commas; ``auto`` among them stands for suffix, prediction, grammar, self
            where the target can be had in 4 bits, and the heads that are shipped for it; ``none`` decodes plainly.
        acceptance: ``coupled`` (default: the same seed gives the same text, drafted or not), ``rejection``
            or ``block`` (the same law of the text, more accepted tokens at high temperature).
        dtype: ``bfloat16`` (default), ``float32`` or ``float16``.
        device: ``cpu`` (default without a GPU) or ``cuda``.
        threads: CPU threads; all cores that the process may use when None.
        max_model_len: context in tokens; the model's own, up to 8192, when None.
        max_num_seqs: requests that can run at the same time.
        runner: ``native``, ``torch`` or ``transformers``; the fastest that fits when None.
        measure: measure the cost of a forward on this machine (seconds for a small model, once; what was measured is
            kept in the user's cache folder), which decides how much is drafted. Without it every guess is verified.
        draft_tokens: draft tokens in a row that are verified at most; as many as pay when None.
        progress: told what is being done.

    Raises:
        InputError: an argument cannot be honoured.
        ModelError: the files cannot be.
    """
    from augury.engine.kept import kept_profile
    from augury.models.load import load_target

    if acceptance not in get_args(Rule):
        raise UnknownName("acceptance rule", acceptance, get_args(Rule))
    deepest(draft_tokens)
    wanted = _wanted(drafters)
    loaded = load_target(
        model, dtype=dtype, device=device, threads=threads, max_model_len=max_model_len,
        max_num_seqs=max_num_seqs, runner=runner, progress=progress,
    )  # fmt: skip
    meter: Meter | None = None
    named = [name for one in wanted for name in (automatic(loaded.target) if one == AUTO else [one])]
    seats = _seats(
        named, target=loaded.target, tokenizer=loaded.tokenizer, vocab_size=loaded.target.info.vocab_size,
        slots=max_num_seqs, target_threads=threads, costs=lambda: meter.costs if meter else None,
    )  # fmt: skip
    if measure and seats:
        meter = kept_profile(
            loaded.target, threads, progress=(lambda share: progress("measuring costs", share)) if progress else None
        )
    return Engine(
        loaded.target, seats, acceptance=acceptance, tokenizer=loaded.tokenizer, template=loaded.template,
        eos_ids=loaded.eos_ids, meter=meter, slots=max_num_seqs, draft_tokens=draft_tokens,
    )  # fmt: skip


def _wanted(drafters: str | Sequence[str | Drafter]) -> list[str | Drafter]:
    """Everything asked for. What is no name is refused before a model is loaded."""
    wanted = split(drafters) if isinstance(drafters, str) else list(drafters)
    if "" in wanted:
        raise InputError("drafters has an empty name; give names, or none to decode plainly")
    for before, one in zip(["", *wanted], wanted, strict=False):
        if isinstance(one, str) and one not in ("none", AUTO):
            check(one, before if isinstance(before, str) else "")
    if "none" in wanted and len(wanted) > 1:
        other = next(one for one in wanted if one != "none")
        raise InputError(f"drafters name none together with {other}; give one or the other")
    return [one for one in wanted if one != "none"]


def _seats(wanted: Sequence[str | Drafter], **resources: object) -> list[tuple[str, Drafter]]:
    """(name, drafter) of everything asked for; those of one name are numbered."""
    seats: list[tuple[str, Drafter]] = []
    for one in wanted:
        if isinstance(one, Drafter):
            name, drafter = type(one).__name__.lower(), one
        else:
            known = one.partition(":")[0]
            name = known if known in DRAFTERS else ":".join(one.split(":")[:2])
            drafter = make(one, **resources)
        alike = sum(other.partition("#")[0] == name for other, _ in seats)
        seats.append((f"{name}#{alike + 1}" if alike else name, drafter))
    return seats
