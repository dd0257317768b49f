"""A text that grows in one vocabulary, told in another.

Only the end is cut into tokens again as the text grows (*look-behind*): where a token border lies depends on what
follows it, but not further back than some words. Pieces begin with a space, where tokenizers begin a new word.
"""

from __future__ import annotations

import numpy as np

from augury.models.tokenizer import Tokenizer
from augury.tree import IntArray

_TAIL, _LONGEST = 160, 480  # characters that are cut anew: at least, and before the front part is settled


class Retold:
    """See the module's text.

    Args:
        source: the vocabulary in which tokens come.
        into: the vocabulary in which they are told.
    """

    def __init__(self, source: Tokenizer, into: Tokenizer) -> None:
        self._into = into
        self._words = source.incremental()
        self._length = 0
        self._settled: list[int] = into.encode("", start=True).tolist()  # a begin token, if there is one
        self._tail = ""

    def follow(self, tokens: IntArray) -> IntArray:
        """The ids of all text so far; ``tokens`` begin with those of the call before."""
        self._tail += self._words.push(tokens[self._length :])
        self._length = len(tokens)
        while len(self._tail) > _LONGEST:
            at = self._tail.rfind(" ", 1, len(self._tail) - _TAIL)
            cut = at if at > 0 else len(self._tail) - _TAIL
            self._settled += self._into.encode(self._tail[:cut], special=False).tolist()
            self._tail = self._tail[cut:]
        return np.asarray([*self._settled, *self._into.encode(self._tail, special=False).tolist()], np.int32)
