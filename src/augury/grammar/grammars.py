"""From what a caller wants an answer to be to a grammar: JSON of a schema, a regular expression, Lark, some texts.

Whatever the source, it becomes one text in llguidance's dialect of Lark, with forcing off: where a text can only go on
in one way, every way to spell it in tokens is allowed. What an answer may be depends on texts and not on spellings.

Sources come from strangers. They are bounded in size, the library bounds the work of compiling and of every step
(``_LIMITS``; its parsers bound nesting), nothing is fetched that a schema refers to, and what is kept is bounded too.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from augury.errors import InputError, UnknownName, shown
from augury.grammar.following import Following
from augury.grammar.vocabulary import Tokens, Vocabulary, library

if TYPE_CHECKING:
    from llguidance import LLMatcher

Kind = Literal["json_schema", "json_object", "regex", "lark", "choice"]

MAX_SOURCE = 1 << 17
"""Characters of a source at most; the library takes a second for the worst of so many that we found."""

MAX_KEPT = 32
"""Compiled grammars one engine keeps, the last used ones."""

_LIMITS = MappingProxyType({
    "initial_lexer_fuel": 1_000_000,  # some 20 ms of building
    "step_lexer_fuel": 200_000,  # some 15 ms of one mask
    "step_max_items": 10_000,
    "max_lexer_states": 20_000,
    "max_items_in_row": 1_000,  # an object of 240 optional keys
    "max_grammar_size": 500_000,
    "precompute_large_lexemes": True,
    "verbose_errors": False,
})  # fmt: skip

_SPACE = r"[ ]{1,2}|\r?\n[ \t]{0,40}"
"""White space between the parts of JSON: bounded, else an answer could go on with it for ever."""

_TAIL = '\n%llguidance {"no_forcing": true}\n'
_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")


class Grammar:
    """A compiled grammar; see ``sampling.Grammar``. Safe in any thread.

    Raises:
        InputError: it is none, is too large, or admits no text.
    """

    def __init__(self, kind: str, lark: str, vocabulary: Vocabulary) -> None:
        self._lark, self._vocabulary = lark, vocabulary
        self._lock = threading.Lock()
        self._first = self._compiled()
        if said := self._first.get_error():
            raise InputError(f"the {kind} is none that can be followed: {_reason(said, kind)}")
        # The first mask of a grammar takes longest: not in the engine's thread.
        empty = self._first.is_accepting()
        mask = np.frombuffer(self._first.compute_bitmask(), np.uint8)
        said = self._first.get_error()
        tokens = np.flatnonzero(np.unpackbits(mask, count=vocabulary.size, bitorder="little"))
        if not said and len(tokens):  # one token on, since what is too large is often found there
            ahead = self._first.deep_copy()
            ahead.try_consume_tokens(tokens[:1].tolist())
            said = ahead.get_error()
        if said and not said.startswith("NoExtension"):
            raise InputError(f"the {kind} takes too much work: {_reason(said, kind)}")
        if not (empty or len(tokens)):
            raise InputError(f"the {kind} admits no text at all; change it so that some answer is possible")

    def follow(self, vocab_size: int, ends: Sequence[int]) -> Following:
        """See ``sampling.Grammar``."""
        if vocab_size != self._vocabulary.size:
            raise InputError(
                f"the grammar was made for {self._vocabulary.size} tokens and the target has {vocab_size}; "
                "make it with the engine that answers"
            )
        return Following(self._matcher, self._vocabulary.spelt, vocab_size, ends)

    def _matcher(self, anew: bool) -> LLMatcher:
        """A matcher at the beginning. Copies share what their lexers explored, which is bounded for all together."""
        if anew:
            first = self._compiled()
            with self._lock:
                self._first = first
        with self._lock:
            return self._first.deep_copy()

    def _compiled(self) -> LLMatcher:
        found: LLMatcher = library().LLMatcher(
            self._vocabulary.tokenizer, self._lark, log_level=0, limits=library().LLParserLimits(**_LIMITS)
        )
        return found


class Grammars:
    """Compiles for one model, and keeps what was used last. Safe in any thread; costs nothing until it is asked."""

    def __init__(self, tokenizer: Tokens | None, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[bytes, Grammar] = OrderedDict()
        self._making, self._lock = threading.Lock(), threading.Lock()

    def get(self, kind: str, source: object) -> Grammar:
        """See ``Engine.grammar``."""
        if kind not in _KINDS:
            raise UnknownName("kind of grammar", shown(kind), _KINDS)
        if self._tokenizer is None:
            raise InputError("a grammar is about text, and this engine has no tokenizer")
        lark = _KINDS[kind](source) + _TAIL
        key = hashlib.sha256(lark.encode(errors="surrogatepass")).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        with self._making:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._tokenizer, self._vocab_size)
        made = Grammar(kind, lark, self._vocabulary)
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return made


# ---- sources -------------------------------------------------------------------------------------------------------


def _bounded(kind: str, text: object) -> str:
    if not isinstance(text, str):
        raise InputError(f"the {kind} is {shown(text)}; give a text")
    if len(text) > MAX_SOURCE:
        raise InputError(f"the {kind} has {len(text)} characters; at most {MAX_SOURCE} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {kind} has half a character (a lone surrogate); leave it out") from None
    return text


def _json_schema(source: object) -> str:
    """A schema as a mapping, a truth value, or the JSON text of one."""
    schema: Any = source
    try:
        if isinstance(source, str):
            schema = json.loads(_bounded("json_schema", source))
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise InputError(f"the json_schema is {shown(schema)}; it must be a JSON object")
        # Before what was given: a schema may say for itself how its white space is to be.
        text = json.dumps({"x-guidance": {"whitespace_pattern": _SPACE}, **schema}, allow_nan=False)
    except InputError:
        raise
    except RecursionError:
        raise InputError("the json_schema is nested too deeply, or holds itself") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"the json_schema is no JSON: {str(error)[:200]}") from None
    return f"start: %json {_bounded('json_schema', text)}"


def _json_object(source: object) -> str:
    if source is not None:
        raise InputError(f"json_object takes no source, and was given {shown(source)}; use json_schema")
    return _json_schema({"type": "object"})


def _regex(source: object) -> str:
    """Between slashes, where a slash and a line break must be escaped."""
    text = _bounded("regex", source)
    text = re.sub(r"\\.|/|\n|\r", lambda f: _ESCAPED.get(f[0], f[0]), text, flags=re.DOTALL)
    return f"start: /{text}/"


_ESCAPED = MappingProxyType({"/": "\\/", "\n": "\\n", "\r": "\\r", "\\\n": "\\n", "\\\r": "\\r"})


def _lark(source: object) -> str:
    return _bounded("lark", source)


def _choice(source: object) -> str:
    """One of some texts, each whole."""
    if isinstance(source, str) or not isinstance(source, Sequence) or not source:
        raise InputError(f"the choice is {shown(source)}; give a list of texts, at least one")
    if len(source) > MAX_SOURCE:
        raise InputError(f"the choice has {len(source)} texts; at most {MAX_SOURCE} characters are allowed")
    texts = dict.fromkeys(_bounded("choice", text) for text in source)
    some = " | ".join(json.dumps(text) for text in texts if text)
    if not some:
        return "start:"
    # One terminal, however many texts: rows of the parser are bounded.
    return _bounded("choice", f"start: SOME{'?' if '' in texts else ''}\nSOME: {some}")


_KINDS: Mapping[str, Callable[[object], str]] = MappingProxyType(
    {"json_schema": _json_schema, "json_object": _json_object, "regex": _regex, "lark": _lark, "choice": _choice}
)


def _reason(said: str, kind: str) -> str:
    """The library's reason in one short line. Places are those of the source in Lark only; the others are embedded."""
    line = next((line.strip() for line in said.splitlines() if line.strip()), "no reason was given")
    if kind == "regex" and "error:" in said:
        line = said.rpartition("error:")[2].strip().splitlines()[0]
    return (line if kind == "lark" else _PLACE.sub("", line))[:200]
