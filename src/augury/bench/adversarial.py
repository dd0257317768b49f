"""Prompts made to be guessed badly: random text, in which no word of a list occurs twice, so that little can be copied.

They are made when asked for, the same on every machine, and belong to a kind of their own that is measured only where
it is named: a mean over text that people write should not be a mean over noise, and who doubts the mean should see the
noise by itself. What the model answers is its own affair, and small models like to repeat themselves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from augury.bench.prompts import Prompt, own, select

KIND = "adversarial"
"""Kind of all of them."""

WORDS = 80
"""Words of each prompt's random part."""

_SEED = 0
_ALPHABETS = {
    "letters": "abcdefghijklmnopqrstuvwxyz",
    "figures": "0123456789",
    "signs": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&*+-/=?@^_~",
}


def adversarial() -> list[Prompt]:
    """One prompt of random letters, one of random figures, one of random signs: 80 different words each."""
    chance = random.Random(_SEED)
    return [
        Prompt(
            id=f"{KIND}-{number}",
            kind=KIND,
            text=f"This list is random. Continue it with new words of the same sort, none of which it already has:\n\n"
            f"{' '.join(_words(chance, alphabet))}",
        )
        for number, alphabet in enumerate(_ALPHABETS.values(), 1)
    ]


def chosen(kinds: Sequence[str] = (), limit: int | None = None) -> list[Prompt]:
    """The package's prompts of the named kinds, the first ``limit`` of each; when none is named, all but adversarial.

    Raises:
        UnknownName: a kind is none of ours.
    """
    return select([*own(), *adversarial()], kinds or list(dict.fromkeys(p.kind for p in own())), limit)


def _words(chance: random.Random, alphabet: str) -> list[str]:
    """Different words of 4 to 9 signs. Of ``chance`` only ``random()`` is used, which Python promises to keep."""
    words: dict[str, None] = {}
    while len(words) < WORDS:
        length = 4 + int(6 * chance.random())
        words["".join(alphabet[int(len(alphabet) * chance.random())] for _ in range(length))] = None
    return list(words)
