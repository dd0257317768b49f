"""Drafters as they are named where another engine runs the target."""

from __future__ import annotations

from collections.abc import Sequence

from augury.drafters import check, split
from augury.errors import InputError, shown

_OURS = {
    "auto": "auto stands for what a target of ours brings along; name drafters, such as suffix,ngram",
    "none": "none decodes plainly, which the other engine does by itself; name drafters, such as suffix,ngram",
}
"""Names that ``augury.load`` takes beside those of drafters."""


def listed(drafters: object, what: str = "drafters") -> tuple[str, ...]:
    """Specs of a comma list, or of a list of specs; nothing is imported or made.

    Args:
        drafters: what the user gave.
        what: name of the argument.

    Raises:
        InputError: it is no list of names, or empty; or one is known to engines of ours alone.
        UnknownName: no such drafter.
    """
    specs = split(drafters) if isinstance(drafters, str) else drafters
    if (
        not isinstance(specs, Sequence)
        or isinstance(specs, bytes)
        or not specs
        or not all(isinstance(one, str) and one for one in specs)
    ):
        raise InputError(f"{what} is {shown(drafters)}; give a list of drafters, such as suffix,ngram")
    for before, spec in zip(["", *specs], specs, strict=False):
        if spec in _OURS:
            raise InputError(f"{what} is {shown(drafters)}: {_OURS[spec]}")
        check(spec, before)
    return tuple(specs)
