"""What can be learnt of a target: kinds of heads, and phrases. For who only names them: nothing is imported here."""

from __future__ import annotations

from typing import Literal, get_args

from augury.errors import InputError

Kind = Literal["eagle", "block", "medusa"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PHRASES = "phrases"
"""No head: what a target usually says, counted in the text that heads are trained on."""

MOST_GUESSES = 16
"""Places that a head guesses in one forward at most, or steps that one is trained on."""


def check_steps(kind: str, steps: int) -> None:
    """Whether a head can be trained on so many steps, which of all kinds but ``eagle`` are the places it guesses.

    Raises:
        InputError: it cannot.
    """
    least = 1 if kind == "eagle" else 2
    if not least <= steps <= MOST_GUESSES:
        raise InputError(f"steps is {steps}; a head of kind {kind} is trained on {least} to {MOST_GUESSES}")
