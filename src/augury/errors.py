"""Every error a user can meet, as one family.

::

    AuguryError
    ├── InputError            what the caller gave: a value, a name, a combination (also a ValueError)
    │   ├── UnknownName       a name that is not in a list; says the nearest one
    │   └── ContextTooLong    prompt (and answer) do not fit the target's context
    ├── ModelError            what the files gave: missing, damaged, of a kind we do not run
    │   ├── MissingPackage    an optional package is needed; says the command that installs it
    │   └── CannotRollBack    the target has state that cannot forget (says which layer kind)
    ├── DrafterError          a drafter raised, stalled or returned nonsense; costs its own step only
    └── Unavailable           nothing is wrong with what was asked; it may be asked again
        ├── Overloaded        too many wait already
        ├── Stopping          who would answer is stopping
        └── TooLate           the time that the answer was given is over

A message is one line and names the value, the limit and the nearest valid choice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice


def shown(value: object) -> str:
    """A value as a message shows it: short, in one line, whatever it is."""
    try:
        text = " ".join(line.strip() for line in repr(_begun(value)).splitlines())
    except Exception:  # a value's own way to show itself may do anything; of a whole number it ends at 4,300 digits
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _begun(value: object) -> object:
    """As much of JSON as can be seen: while a long list is written out no other thread runs."""
    if isinstance(value, (str, bytes)):
        return value[:61]
    if type(value) is list:
        return [_begun(inner) for inner in value[:21]]
    if type(value) is dict:
        return {_begun(key): _begun(inner) for key, inner in islice(value.items(), 21)}
    return value


def first_line(error: Exception) -> str:
    """What another library says was wrong, as a message can hold it."""
    try:
        said = str(error).strip()
    except Exception:  # an error's own way to show itself may do anything
        said = ""
    return (said or type(error).__name__).splitlines()[0].rstrip()[:300]


class AuguryError(Exception):
    """Root of the family; catching it catches everything Augury raises on purpose."""


class InputError(AuguryError, ValueError):
    """A value, name or combination given by the caller cannot be honoured."""


class UnknownName(InputError):
    """A name is not among the valid ones; ``hint`` says what else may have been meant."""

    def __init__(self, kind: str, name: str, valid: Iterable[str], hint: str = "") -> None:
        names = sorted(valid)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        super().__init__(f"unknown {kind} {name!r}{meant} Valid: {', '.join(names)}{hint and f'. {hint}'}")


class ContextTooLong(InputError):
    """The request does not fit the target's context; ``unread``: it was not read to its end, which may be far off."""

    def __init__(self, prompt: int, limit: int, unread: bool = False) -> None:
        least = "at least " if unread else ""
        self.prompt = prompt
        self.told = (
            f"the prompt has {least}{prompt} tokens, the context holds {limit} and one must be left for the answer; "
            f"shorten the prompt by {least}{prompt - limit + 1} tokens"
        )
        """The message to somebody who did not load the model."""
        super().__init__(f"{self.told} or load with a larger max_model_len")


class ModelError(AuguryError):
    """A model's files are missing, damaged, or of a kind that is not run here."""


class MissingPackage(ModelError):
    """An optional package is needed for what was asked."""

    def __init__(self, what: str, package: str, command: str) -> None:
        super().__init__(f"{what} needs the package {package}; install it with: {command}")


class CannotRollBack(ModelError):
    """The target has layers whose state cannot forget a rejected draft."""


class DrafterError(AuguryError):
    """A drafter broke its contract in one step."""


class Unavailable(AuguryError):
    """The request is good, and was not answered this time."""


class Overloaded(Unavailable):
    """Too many requests wait already."""


class Stopping(Unavailable):
    """Who would answer takes no requests any more, or has stopped before the answer was whole."""


class TooLate(Unavailable):
    """The time that an answer was given is over."""
