"""Drafters as the user of a plan describes them, and what they cost on a roofline.

=============  ====================================================================================
``8B``         a smaller model of so many parameters; ``8B:int4`` in another precision than the target
``NAME``       a smaller model whose files are here; ``NAME:int4`` likewise
``self:int4``  the target with its weights in fewer bits
``head:0.3B``  a head on the target's hidden states that guesses one place after the other (EAGLE)
``block:0.3B`` one that guesses all places in one forward (Medusa, block drafters)
``copy``       what copies from the text so far: no forward, ``COPY_MS`` a step; ``copy:2`` takes 2 ms
=============  ====================================================================================

Behind an ``@`` stands how often its guesses are right, as in ``8B@0.8`` or ``copy@0.6,0.9``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from augury.bench.plan.roofline import PRECISIONS, Hardware, Shape, forward
from augury.bench.plan.sizes import amount, head_of, in_bits, of_model, of_size, precision
from augury.errors import InputError, UnknownName

COPY_MS = 0.1
"""Milliseconds a step of a drafter that copies, when none are given."""

Kind = Literal["model", "self", "head", "block", "copy"]


@dataclass(frozen=True)
class Draft:
    """A drafter as described.

    Attributes:
        name: the description, without acceptance.
        kind: one of the table's.
        parameters: how many weights it has; None of ``self``, ``copy`` and a model whose files are here.
        model: name or path of such a model; else empty.
        precision: of its weights; None is the target's.
        ms: of a step, of ``copy``.
        acceptance: its own, or None.
    """

    name: str
    kind: Kind
    parameters: float | None = None
    model: str = ""
    precision: str | None = None
    ms: float = 0.0
    acceptance: tuple[float, ...] | None = None

    def shape(self, target: Shape) -> Shape | None:
        """Of its forwards; None when it has none.

        Raises:
            InputError: it is the target in no fewer bits.
            ModelError: the files of its model cannot be read.
        """
        if self.kind == "copy":
            return None
        if self.kind in ("head", "block"):
            assert self.parameters is not None
            return head_of(target, self.name, self.parameters)
        bits = self.precision or target.precision
        if self.kind == "self":
            whole = int(8 * PRECISIONS[target.precision])  # without the scales
            if int(8 * PRECISIONS[bits]) >= whole:
                fewer = [name for name, size in PRECISIONS.items() if int(8 * size) < whole]
                near = f"the nearest is self:{fewer[0]}" if fewer else "and there are none fewer"
                raise InputError(
                    f"--draft {self.name} is no cheaper than a target in {target.precision}: name fewer bits; {near}"
                )
            return in_bits(target, self.name, bits)
        if self.parameters is None:
            return of_model(self.model, bits)
        return of_size(self.name, self.parameters, bits)


def draft_ms(draft: Draft, shape: Shape | None, hardware: Hardware, context: float) -> Callable[[int, int], float]:
    """(batch, length) -> milliseconds of its guesses: one forward for each place, or one for all, or none.

    Args:
        draft: the drafter.
        shape: what ``draft.shape`` gave.
        hardware: on which.
        context: tokens that each request holds.
    """
    if shape is None:
        return lambda _batch, _length: draft.ms
    if draft.kind == "block":
        return lambda batch, length: forward(hardware, shape, batch * length, batch, context).ms
    return lambda batch, length: length * forward(hardware, shape, batch, batch, context).ms


def read_draft(text: str) -> Draft:
    """The drafter that a text describes; see the module's table.

    Raises:
        InputError: a part of it says nothing that is possible.
        UnknownName: there is no such kind, precision or model.
    """
    name, at, chances = text.strip().rpartition("@")
    if not at or _stands_for_files(text.strip()):  # a path may have an @ of its own
        name, at, chances = text.strip(), "", ""
    own = acceptances(chances, f"--draft {text}") if at else None
    kind, _, rest = name.partition(":")
    if kind == "copy":
        return Draft(name, "copy", ms=_ms(rest, name) if rest else COPY_MS, acceptance=own)
    if kind == "self":
        return Draft(name, "self", precision=precision(rest or "int4", f"--draft {name}"), acceptance=own)
    if kind in ("head", "block"):
        if not rest:
            raise InputError(f"--draft {name} has no size; give its parameters, as in {kind}:0.3B")
        of_head = amount(rest, f"--draft {kind}:")
        return Draft(name, "head" if kind == "head" else "block", of_head, acceptance=own)
    size, colon, bits = name.rpartition(":")
    if not colon or _stands_for_files(name):
        size, colon, bits = name, "", ""
    files = _stands_for_files(size)
    if files or re.match(r"\d+(\.\d+)?[a-zA-Z]?$", size):
        parameters = None if files else amount(size, "--draft")
        kept = precision(bits, f"--draft {name}") if colon else None
        return Draft(name, "model", parameters, size if files else "", kept, acceptance=own)
    ways = ("8B", "8B:int4", "self:int4", "head:0.3B", "block:0.3B", "copy", "copy:2", "the name of a model here")
    raise UnknownName("draft", name, ways)


def acceptances(text: str, what: str) -> tuple[float, ...]:
    """Chances by depth, of a comma list.

    Args:
        text: as the user wrote it.
        what: where, for the message.

    Raises:
        InputError: one is no number between 0 and 1.
    """
    found = []
    for one in text.split(","):
        try:
            chance = float(one)
        except ValueError:
            raise InputError(f"{what}: {one.strip()!r} is no acceptance; give 0.8, or by depth 0.8,0.7") from None
        if not 0.0 <= chance <= 1.0:
            near = chance / 100.0 if 2.0 <= chance <= 100.0 else 0.0 if chance < 0.0 else 1.0  # it may be in per cent
            raise InputError(f"{what}: acceptance {one.strip()} is outside 0 to 1; the nearest choice is {near:g}")
        found.append(chance)
    return tuple(found)


def _ms(text: str, name: str) -> float:
    try:
        ms = float(text)
    except ValueError:
        ms = math.nan
    if not 0.0 <= ms < math.inf:
        raise InputError(f"--draft {name}: {text!r} is not the milliseconds of a step, as in copy:{COPY_MS:g}")
    return ms


def _stands_for_files(text: str) -> bool:
    from augury.models.load import EMBEDDED

    # A directory that is named as a size would change what the size means: it needs a "./" in front.
    return text in EMBEDDED or (("/" in text or text.endswith(".gguf")) and Path(text).exists())
