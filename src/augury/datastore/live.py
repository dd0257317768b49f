"""An index that is used while another process changes it.

Whoever asks gets the newest state, looked for once in ``EVERY_S`` at most, and may keep it as long as needed: what is
mapped stays readable when its files are deleted, and is let go with the last who holds it. A state that cannot be used
is passed over: there is none any more, it is damaged, or of another tokenizer. Then the one before is used on, which is
said once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from augury.datastore.index import Index, seal
from augury.errors import InputError

EVERY_S = 1.0
"""Seconds between two looks at the manifest: each takes microseconds on a disk, and milliseconds over a network."""


class Live:
    """The newest usable state of an index.

    State: that state, mapped.

    Args:
        place: its directory.
        tokenizer: hash of the tokenizer it must be of; that of its first state when None.
        note: told in words why a newer state is not used.

    Raises:
        InputError: there is no index, it is damaged, or of another tokenizer.
    """

    def __init__(self, place: Path, tokenizer: str | None, note: Callable[[str], None]) -> None:
        self._place, self._note = place, note
        self._seal = seal(place)  # before the rest: what is replaced in between is looked at again
        self._index = Index(place)
        self._tokenizer = tokenizer or self._index.manifest.tokenizer
        self._index.check_tokenizer(self._tokenizer)
        self._looked = time.monotonic()
        self._said = ""

    def now(self) -> Index:
        """The index as it is."""
        if time.monotonic() - self._looked >= EVERY_S:
            self._looked = time.monotonic()
            found = seal(self._place)
            if found != self._seal or self._said:
                self._renew(found)
        return self._index

    def _renew(self, found: bytes) -> None:
        try:
            index = Index(self._place)
            index.check_tokenizer(self._tokenizer)
        except InputError as error:
            if str(error) != self._said:
                self._note(f"{error}; the index is used on as it was")
            self._said = str(error)
            return
        self._index, self._seal, self._said = index, found, ""
