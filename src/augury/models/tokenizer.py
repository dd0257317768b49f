"""Text to token ids and back.

Encoding is the ``tokenizers`` library's. Decoding goes by bytes: every token stands for some bytes, and text
is their UTF-8 reading, so that it can be given out token by token without splitting a character.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from augury.errors import ContextTooLong, InputError, ModelError, first_line, shown
from augury.tree import IntArray

MAX_IDS = 1 << 24
"""Token ids lie below; the largest vocabularies have 2**18. The library walks over every id up to the largest."""

_SPACE = "\u2581"  # SentencePiece writes a space so

_SHORT = 4096  # characters; the library takes some milliseconds

_UNSURE = 64  # tokens; the last ones of a text that is cut off may be others in the whole text


class Tokenizer:
    """The vocabulary of one model.

    Args:
        backend: a tokenizer of the ``tokenizers`` library.

    Raises:
        ModelError: its decoder is of a kind that does not map tokens to bytes; names it.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._bytes, self._strips = _byte_map(backend)
        self._special = {id: token.content for id, token in backend.get_added_tokens_decoder().items() if token.special}

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows; the target's vocabulary may be padded beyond."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def special(self) -> Mapping[int, str]:
        """Control tokens: id -> text. No answer's text shows them."""
        return self._special

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 over all (id, token, control or not): equal for tokenizers whose ids mean the same."""
        vocab = sorted((id, token, id in self._special) for token, id in self._backend.get_vocab().items())
        return hashlib.sha256(json.dumps(vocab).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write a ``tokenizer.json``."""
        self._backend.save(str(path))

    def id(self, token: str) -> int | None:
        """Id of a token as it is spelt in the vocabulary, or None."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, text: str, special: bool = True, start: bool = False, limit: int | None = None) -> IntArray:
        """Ids of a text, i32[m].

        Args:
            text: any text.
            special: whether the text of a control token, such as ``<|im_end|>``, is read as that token. False
                for what a stranger typed: it is then cut into ordinary tokens.
            start: whether to add what the model expects at the start of a text (a begin token, if any). Chat
                templates write it themselves.
            limit: tokens that there is room for. A text that has far more is not read to its end.

        Raises:
            InputError: the text holds half a character (a lone surrogate), as broken UTF-16 does.
            ContextTooLong: it was not read to its end; what has only a few tokens too many is read.
        """
        return _encoded(self._backend if special else self._plain, _whole(text), start, limit)

    @functools.cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """A twin that reads no control tokens: the switch is the backend's, and threads share backends."""
        twin = tokenizers.Tokenizer.from_str(self._backend.to_str())
        twin.encode_special_tokens = True
        return twin

    def encode_guarded(self, render: Callable[[Callable[[str], str]], str], limit: int | None = None) -> IntArray:
        """Ids of a text made of trusted and untrusted parts, i32[m].

        Args:
            render: given a function ``guard`` that it must apply to every untrusted string, makes the whole
                text. Control tokens are not read in guarded strings, nor where one of them holds the beginning
                or the end of a token; other tokens may span the border of a trusted and an untrusted part as
                in the text without guards.
            limit: see ``encode``.

        Raises:
            InputError: a guarded string holds half a character.
            ContextTooLong: see ``encode``.
        """
        controls = self._controls
        marks: dict[str, str] = {}

        def mark(part: str) -> str:
            # A private-use character and 128 random bits: nobody can type it beforehand.
            return marks.setdefault(part, f"\ue000{secrets.token_hex(16)}\ue000")

        def guard(text: str) -> str:
            return controls.marked(_whole(text), mark)

        text = render(guard)
        plain, blanked = text, text
        for part, marked in marks.items():
            plain, blanked = plain.replace(marked, part), blanked.replace(marked, "\ue000" * len(part))
        if controls.places(plain) == controls.places(blanked):
            return self.encode(plain, limit=limit)  # nothing guarded is in one; the twin takes seconds to make
        secret, backend = self._renamed
        text = controls.replaced(text, lambda control: f"{secret}{control}{secret}")
        for part, marked in marks.items():
            text = text.replace(marked, part)
        return _encoded(backend, text, False, limit)

    @functools.cached_property
    def _controls(self) -> _Controls:
        return _Controls(self._special.values())

    @functools.cached_property
    def _renamed(self) -> tuple[str, tokenizers.Tokenizer]:
        """A twin whose control tokens are spelt with a secret around them, and the secret."""
        secret = f"\ue000{secrets.token_hex(16)}\ue000"
        spec = json.loads(self._backend.to_str())
        names = set(self._special.values())
        for token in spec["added_tokens"]:
            if token["content"] in names:
                token["content"] = f"{secret}{token['content']}{secret}"
        vocab = spec["model"].get("vocab")
        if isinstance(vocab, dict):
            spec["model"]["vocab"] = {f"{secret}{t}{secret}" if t in names else t: i for t, i in vocab.items()}
        elif isinstance(vocab, list):
            for entry in vocab:
                if entry[0] in names:
                    entry[0] = f"{secret}{entry[0]}{secret}"
        unknown = spec["model"].get("unk_token")
        if unknown in names:
            spec["model"]["unk_token"] = f"{secret}{unknown}{secret}"
        return secret, tokenizers.Tokenizer.from_str(json.dumps(spec))

    def token_bytes(self, id: int) -> bytes:
        """Bytes one token stands for; of a control token its name, of an id beyond the vocabulary none."""
        known = self._special.get(id)
        return known.encode() if known is not None else self._bytes(id)

    def incremental(self, context: Sequence[int] | IntArray = ()) -> Incremental:
        """A detokeniser for ids that come one after another behind ``context``.

        Behind a context the first token keeps its leading space; tokenizers that strip it do so at the start
        of a text only.
        """
        return Incremental(self, started=any(int(i) not in self._special for i in context))


class Incremental:
    """Text as its tokens come: ``push`` gives what became whole, ``flush`` what is left.

    Control tokens are left out, and bytes that are not UTF-8 become U+FFFD. However ids are cut into pushes, all
    pieces joined are the same text. Each token costs its own bytes only.
    """

    def __init__(self, tokenizer: Tokenizer, started: bool = False) -> None:
        self._tokenizer = tokenizer
        self._strip = tokenizer._strips and not started
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int] | IntArray) -> str:
        """Text that became whole with these ids."""
        return "".join([self._one(int(id)) for id in ids])

    def flush(self) -> str:
        """What is left at the end: U+FFFD for the bytes of an unfinished character, or nothing."""
        return self._utf8.decode(b"", final=True)

    def _one(self, id: int) -> str:
        if id in self._tokenizer.special:
            # A control token ends whatever character was unfinished.
            return self._utf8.decode(b"", final=True)
        data = self._tokenizer.token_bytes(id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)


# ---- what strangers type ------------------------------------------------------------------------------------


class _Controls:
    """Finds control tokens in texts: whole ones, and those that a text only ends or begins.

    Two strings of one user that a template writes side by side may spell a control token together, and so may one
    of them with the template's own text, so a part at an end of a string counts.
    """

    def __init__(self, controls: Iterable[str]) -> None:
        texts = sorted(filter(None, controls), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")  # (?!) matches nothing
        self._heads = {text[:n] for text in texts for n in range(1, len(text))}
        self._tails = {text[n:] for text in texts for n in range(1, len(text))}
        self._longest = len(texts[0]) if texts else 0

    def replaced(self, text: str, new: Callable[[str], str]) -> str:
        """The text with every control token replaced."""
        return self._pattern.sub(lambda found: new(found[0]), text)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where the control tokens of a text begin and end."""
        return [found.span() for found in self._pattern.finditer(text)]

    def marked(self, text: str, new: Callable[[str], str]) -> str:
        """The same, and with a part of one at either end replaced; templates strip spaces, so behind spaces too."""
        text = self.replaced(text, new)
        body = text.rstrip()
        if n := next((n for n in self._sizes(body) if body[-n:] in self._heads), 0):
            text = body[:-n] + new(body[-n:]) + text[len(body) :]
        body = text.lstrip()
        if n := next((n for n in self._sizes(body) if body[:n] in self._tails), 0):
            text = text[: len(text) - len(body)] + new(body[:n]) + body[n:]
        return text

    def _sizes(self, text: str) -> range:
        """Lengths a part can have, longest first."""
        return range(min(self._longest, len(text)), 0, -1)


def _encoded(backend: tokenizers.Tokenizer, text: str, start: bool, limit: int | None) -> IntArray:
    """Ids of a text; of one that may have too many, from a beginning of it to a longer one, as long as it may fit."""
    if limit is not None:
        size = max(2 * limit, _SHORT)
        while size < len(text):
            count = len(_ids(backend, text[:size], start))
            if count > limit + limit // 8 + _UNSURE:
                raise ContextTooLong(count, limit, unread=True)
            size *= 4
    return _ids(backend, text, start)


def _ids(backend: tokenizers.Tokenizer, text: str, start: bool) -> IntArray:
    """As other threads must go on in the meantime, long texts are read as a batch: for that the library lets them."""
    if len(text) < _SHORT:
        return np.asarray(backend.encode(text, add_special_tokens=start).ids, np.int32)
    (found,) = backend.encode_batch_fast([text], add_special_tokens=start)
    return np.asarray(found.ids, np.int32)


def _whole(text: str) -> str:
    """The text itself, if all its characters are whole."""
    try:
        text.encode()
    except UnicodeEncodeError as broken:
        half = ord(text[broken.start])
        raise InputError(
            f"the text has half a character, U+{half:04X}, at {broken.start}; decode it as UTF-16 or leave it out"
        ) from None
    return text


# ---- tokens as bytes ---------------------------------------------------------------------------------------


def _byte_map(backend: tokenizers.Tokenizer) -> tuple[Callable[[int], bytes], bool]:
    """A function from id to bytes, and whether a leading space of a text is stripped."""
    spec = json.loads(backend.to_str()).get("decoder") or {"type": "Fuse"}
    steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    replaced: list[tuple[str, str]] = []
    fallback = level = strips = False
    for step in steps:
        match step["type"]:
            case "ByteLevel":
                level = True
            case "ByteFallback":
                fallback = True
            case "Fuse":
                pass
            case "Replace" if "String" in step["pattern"]:
                replaced.append((step["pattern"]["String"], step["content"]))
            case "Metaspace":
                replaced.append((step["replacement"], " "))
                strips = step.get("prepend_scheme", "always") != "never"
            case "Strip" if (step["content"], step["start"], step["stop"]) == (" ", 1, 0):
                strips = True
            case other:
                raise ModelError(
                    f"the tokenizer's decoder step {other} is not known; known are ByteLevel, ByteFallback, Fuse, "
                    "Metaspace, Replace of a string, Strip of one leading space"
                )
    added = {id: token.content for id, token in backend.get_added_tokens_decoder().items()}

    @functools.cache
    def of(id: int) -> bytes:
        if id in added:
            return added[id].encode()
        token = backend.id_to_token(id)
        if token is None:
            return b""
        if level:
            return _from_byte_level(token)
        if fallback and re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes([int(token[3:5], 16)])
        for old, new in replaced:
            token = token.replace(old, new)
        return str(token).encode()

    return of, strips


@functools.cache
def _byte_level_alphabet() -> Mapping[str, int]:
    """GPT-2's spelling of bytes as printable characters: printable Latin-1 stands for itself, the rest follows."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def _from_byte_level(token: str) -> bytes:
    alphabet = _byte_level_alphabet()
    try:
        return bytes([alphabet[c] for c in token])
    except KeyError:
        return token.encode()


# ---- from files --------------------------------------------------------------------------------------------


def tokenizer_from_file(path: Path) -> Tokenizer:
    """From a ``tokenizer.json``. Raises ``ModelError`` when it cannot be read, or has ids beyond all measure."""
    try:
        text = path.read_text("utf-8")
        _check_ids(json.loads(text), path.name)
        return Tokenizer(tokenizers.Tokenizer.from_str(text))
    except ModelError:
        raise
    except Exception as damage:  # the library raises bare Exception
        why = first_line(damage)
        raise ModelError(f"{path.name} is not a tokenizer that the tokenizers library reads: {why}") from None


def _check_ids(spec: Any, name: str) -> None:
    """Refuse ids that would keep the library busy for hours. What else is wrong with the file it says itself."""
    parts = spec if isinstance(spec, dict) else {}
    model, added = parts.get("model"), parts.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocab.items()) if isinstance(vocab, dict) else []
    if isinstance(added, list):
        ids += [(token.get("content"), token.get("id")) for token in added if isinstance(token, dict)]
    for token, id in ids:
        if isinstance(id, int) and id >= MAX_IDS:
            raise ModelError(f"{name} gives token {shown(token)} the id {shown(id)}; ids must lie below {MAX_IDS}")
    if isinstance(vocab, list) and len(vocab) > MAX_IDS:
        raise ModelError(f"{name} has {len(vocab)} tokens, at most {MAX_IDS} are allowed")


_WORDS_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_QWEN2 = _WORDS_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PRE: Mapping[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": lambda: _split(_WORDS_LLAMA3),
    "qwen2": lambda: _split(_WORDS_QWEN2),
}
"""GGUF's name of a pre-tokenizer -> what it is."""

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = 1, 2, 3, 4, 5  # GGUF token types; 6 are bytes


def tokenizer_from_gguf(get: Callable[[str], Any]) -> Tokenizer:
    """From GGUF metadata.

    Args:
        get: metadata key -> value or None.

    Raises:
        ModelError: a tokenizer model or pre-tokenizer that is not known; names it.
    """
    tokens = get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError("the GGUF metadata hold no tokenizer.ggml.tokens")
    try:
        backend = _from_gguf(get, tokens, get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens))
    except ModelError:
        raise
    except Exception as damage:  # the library raises bare Exception
        raise ModelError(f"the GGUF metadata hold a damaged tokenizer: {first_line(damage)}") from None
    if backend.get_vocab_size() != len(tokens):
        raise ModelError(f"the GGUF tokenizer names {len(tokens)} tokens, {backend.get_vocab_size()} are different")
    return Tokenizer(backend)


def _from_gguf(get: Callable[[str], Any], tokens: Sequence[str], kinds: Sequence[int]) -> tokenizers.Tokenizer:
    model = get("tokenizer.ggml.model")
    if model == "gpt2":
        backend = _byte_level_bpe(get, tokens)
    elif model == "llama":
        backend = _sentencepiece_bpe(get, tokens, kinds)
    else:
        raise ModelError(f"GGUF tokenizer model {model!r} is not known; known are gpt2 and llama")
    for special, wanted in ((True, _CONTROL), (False, _USER)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == wanted
        ]
        backend.add_special_tokens(added) if special else backend.add_tokens(added)
    begins = get("tokenizer.ggml.add_bos_token")
    if begins is None:
        begins = model == "llama" or get("tokenizer.ggml.pre") == "llama-bpe"
    begin = get("tokenizer.ggml.bos_token_id")
    if begins and begin is not None:
        name = tokens[begin]
        backend.post_processor = processors.TemplateProcessing(
            single=[name, "$A"], pair=[name, "$A", name, "$B"], special_tokens=[(name, begin)]
        )
    return backend


def _byte_level_bpe(get: Callable[[str], Any], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    pre = get("tokenizer.ggml.pre")
    if pre not in _PRE:
        raise ModelError(f"GGUF pre-tokenizer {pre!r} is not known; known are {', '.join(sorted(_PRE))}")
    merges = [tuple(merge.split(" ")) for merge in get("tokenizer.ggml.merges") or ()]
    if not all(len(merge) == 2 for merge in merges):
        raise ModelError("the GGUF metadata hold a tokenizer merge that is not two tokens")
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _PRE[pre]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(get: Callable[[str], Any], tokens: Sequence[str], kinds: Sequence[int]) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: of all neighbours the pair whose union has the best score is joined first."""
    scores = get("tokenizer.ggml.scores")
    if not scores or len(scores) != len(tokens):
        raise ModelError("the GGUF metadata hold no tokenizer.ggml.scores for every token")
    vocab = {token: i for i, token in enumerate(tokens)}
    pieces = {t for t, kind in zip(tokens, kinds, strict=True) if kind in (_NORMAL, _USER, _UNUSED)}
    merges: list[tuple[float, int, int, str, str]] = []
    for token in pieces:
        score = scores[vocab[token]]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in pieces and right in pieces:
                merges.append((-score, vocab[left], vocab[right], left, right))
    merges.sort()
    unknown = next((t for t, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab, [(left, right) for *_, left, right in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    prefix = get("tokenizer.ggml.add_space_prefix")
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    ends: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix is None or prefix:
        spaces.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(ends)
    return backend
