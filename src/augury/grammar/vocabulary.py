"""A model's tokens as llguidance sees them: bytes, control tokens apart, and one end token of its own.

The answer's end tokens differ from request to request, so the grammar is given none of them: it gets a token behind the
last one that no model has, and ``following.py`` puts the request's own in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from augury.errors import MissingPackage
from augury.tree import IntArray

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class Tokens(Protocol):
    """What is needed of a tokenizer."""

    @property
    def special(self) -> Mapping[int, str]:
        """Control tokens: id -> text."""
        ...

    def encode(self, text: str) -> IntArray:
        """Ids of a text."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token stands for."""
        ...


def library() -> Any:
    """The module ``llguidance``, imported when it is first needed.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        import llguidance
    except ImportError:
        raise MissingPackage("a grammar", "llguidance", "pip install 'llguidance>=1.7'") from None
    return llguidance


class Vocabulary:
    """Tokens 0..``size``-1 of a model, ready for grammars; takes a fraction of a second to make."""

    def __init__(self, tokenizer: Tokens, size: int) -> None:
        self.size = size
        self.tokenizer: LLTokenizer = library().LLTokenizer(_Wrapped(tokenizer, size), n_vocab=size + 1)

    def spelt(self, text: bytes) -> list[int]:
        """Ids of the beginning of a text, as far as they are the same whatever follows it."""
        ids: Sequence[int] = self.tokenizer.tokenize_partial(text)[0] if text else []
        return list(ids)


class _Wrapped:
    """What ``LLTokenizer`` reads of a tokenizer; the names are its."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokens, size: int) -> None:
        special = tokenizer.special
        self.tokens = [special[i].encode() if i in special else tokenizer.token_bytes(i) for i in range(size)]
        self.tokens.append(b"<end>")
        self.special_token_ids = [*(i for i in special if i < size), size]
        self.eos_token_id = size
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a text, for drafts only: what they spell wrongly is cut off.

        Some tokenizers put a space in front of every text. Behind a line break there is none.
        """
        whole = text.decode(errors="replace") if isinstance(text, bytes) else text
        ids: list[int] = self._tokenizer.encode(whole).tolist()
        if self._bytes(ids) == whole.encode():
            return ids
        ids = self._tokenizer.encode(f"\n{whole}").tolist()
        front = next((n for n in range(len(ids)) if self._bytes(ids[:n]).endswith(b"\n")), 0)
        return ids[front:]

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.tokens[id] for id in ids)
