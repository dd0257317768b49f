"""What a grammar allows is what its texts allow, token by token and behind any draft; what is no grammar is refused."""

from __future__ import annotations

import random
from itertools import product
from types import MappingProxyType

import numpy as np
import pytest
from tiny import VOCAB, byte_tokenizer

from augury.conformance.toys import ToyTarget
from augury.drafters import make
from augury.engine.engine import Engine
from augury.errors import InputError, MissingPackage, UnknownName
from augury.grammar import following, grammars, vocabulary
from augury.grammar.grammars import Grammars
from augury.models.tokenizer import Tokenizer, tokenizer_from_gguf
from augury.sampling import Sampling

END, STOP = 257, 258
"""Control tokens of the tiny tokenizer; the first ends answers."""


class Pieces:
    """All that real vocabularies have: bytes, pieces, two ids of the same bytes, control tokens, unused ids."""

    tokens = (
        *(bytes([b]) for b in range(256)),
        b"ab", b"abc", b"ab", b"c\xc3", b"\xa9", b"", b"<s>", b"</s>", b"bca", b'{"', b'":', b"aaaa", b"ca",
    )  # fmt: skip
    special = MappingProxyType({262: "<s>", 263: "</s>"})

    def encode(self, text):
        """Longest pieces first."""
        left, ids = text.encode(), []
        while left:
            best = max(
                (t for i, t in enumerate(self.tokens) if t and i not in self.special and left.startswith(t)), key=len
            )
            ids.append(self.tokens.index(best))
            left = left[len(best) :]
        return np.asarray(ids, np.int32)

    def token_bytes(self, id):
        return self.tokens[id] if id < len(self.tokens) else b""


SIZE = len(Pieces.tokens) + 3  # and padding
ENDS = (263, 262)
MADE = Grammars(Pieces(), SIZE)


def brute(texts, text):
    """bool[SIZE] by definition."""
    row = np.zeros(SIZE, bool)
    for id, piece in enumerate(Pieces.tokens):
        row[id] = bool(piece) and id not in Pieces.special and any(t.startswith(text + piece) for t in texts)
    row[list(ENDS)] = text in texts
    return row


def written(path):
    return b"".join(Pieces().token_bytes(t) for t in path)


WORDS = ("abc", "bca")
LARK = 'start: "a" rest | "{" "\\"" ":"\nrest: ("bc" | "b")+ "a"?'
PARTS = ["".join(parts) for n in range(1, 5) for parts in product(("bc", "b"), repeat=n)]
TIGHT = {"enum": ["ab", "abc", {"a": "b"}], "x-guidance": {"whitespace_flexible": False}}

LANGUAGES = {
    "choice": ("choice", ["abc", "abcab", "b", "é", "aé c", ""], ["abc", "abcab", "b", "é", "aé c", ""]),
    "regex": ("regex", "(abc|bca){1,3}", ["".join(w) for n in (1, 2, 3) for w in product(WORDS, repeat=n)]),
    "lark": ("lark", LARK, ['{":', *(f"a{part}{end}" for part in PARTS for end in ("", "a"))]),
    "schema": ("json_schema", TIGHT, ['"ab"', '"abc"', '{"a":"b"}']),
}
"""Kind, source and all texts. (Those of Lark are a part of them: at most four times "bc" or "b".)"""


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_token_is_allowed_if_some_text_goes_on_with_it(name):
    """Along random answers, with drafts that jump about: every row as if nothing had been asked before."""
    kind, source, texts = LANGUAGES[name]
    texts = [t.encode() for t in texts]
    rng = random.Random(0)
    seen = 0
    for _ in range(12):
        following = MADE.get(kind, source).follow(SIZE, ENDS)
        committed = []
        for _ in range(8):
            for _ in range(6):  # drafts, right and wrong
                path, row = [], brute(texts, written(committed))
                while rng.random() < 0.7 and row[: len(Pieces.tokens)].any() and not set(path) & set(ENDS):
                    legal = np.flatnonzero(row).tolist()
                    path.append(rng.choice(legal if rng.random() < 0.9 else range(SIZE)))
                    row = brute(texts, written([*committed, *path]))
                spoilt = next(
                    (i for i, t in enumerate(path) if not brute(texts, written([*committed, *path[:i]]))[t]), None
                )
                assert following.legal(path) == (len(path) if spoilt is None else spoilt)
                found = following.allowed(path)
                if spoilt is not None:
                    assert not found.any()
                elif path and path[-1] in ENDS:
                    assert found.all()
                else:
                    assert np.flatnonzero(found).tolist() == np.flatnonzero(row).tolist()
                    seen += 1
            forced = following.forced(9)
            for i, (token, alone) in enumerate(forced):
                row = following.allowed([t for t, _ in forced[:i]])
                assert row[token]
                assert row.sum() == 1 or not alone
            behind = written([*committed, *(t for t, _ in forced if t not in ENDS)])
            assert all(t.startswith(behind) for t in texts if t.startswith(written(committed)))
            choices = np.flatnonzero(following.allowed(())).tolist()
            token = rng.choice(choices)
            following.advance([token])
            committed.append(token)
            if token in ENDS:
                assert following.allowed(()).all()
                assert following.legal([97]) == 0
                assert following.forced(3) == []
                break
    assert seen > 50


def test_what_is_forced_is_spelt_as_the_tokenizer_spells_it():
    following = MADE.get("choice", ["xabcabx", "yab"]).follow(SIZE, ENDS)
    assert following.forced(9) == []
    following.advance([ord("x")])
    assert written([t for t, _ in following.forced(9)]).startswith(b"abcab")
    assert following.forced(1) == [(257, False)]
    following.advance([ord("a"), ord("b"), ord("c"), 256, ord("x")])
    assert np.flatnonzero(following.allowed(())).tolist() == sorted(ENDS)
    one = MADE.get("choice", ["ab"]).follow(SIZE, (263,))
    one.advance([256])
    assert one.forced(9) == [(263, True)]


WRONG = {
    "kind": ("yaml", "", UnknownName, "unknown kind of grammar"),
    "no JSON": ("json_schema", '{"type":', InputError, "no JSON"),
    "not an object": ("json_schema", "[1]", InputError, "must be a JSON object"),
    "a set": ("json_schema", {"enum": {1, 2}}, InputError, "no JSON"),
    "not a number": ("json_schema", {"const": float("nan")}, InputError, "no JSON"),
    "type": ("json_schema", {"type": "strin"}, InputError, "Invalid type: strin"),
    "keyword": ("json_schema", {"if": {}, "then": {}}, InputError, "Unimplemented keys"),
    "format": ("json_schema", {"type": "string", "format": "foo"}, InputError, "Unknown format: foo"),
    "reference": ("json_schema", {"$ref": "http://localhost:1/x.json"}, InputError, "retriev"),
    "file": ("json_schema", {"$ref": "file:///etc/passwd"}, InputError, "retriev"),
    "false": ("json_schema", "false", InputError, "must be a JSON object"),
    "nothing": ("json_schema", {"not": {}}, InputError, "json_schema"),
    "circle": ("json_schema", {"$ref": "#"}, InputError, "admits no text"),
    "deep": ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000, InputError, "json_schema"),
    "deeper": ("json_schema", '{"items":' * 200 + "{}" + "}" * 200, InputError, "recursion"),
    "large": ("json_schema", {"description": "x" * (1 << 17)}, InputError, "at most 131072 are allowed"),
    "half a character": ("regex", "\ud83d", InputError, "half a character"),
    "source": ("json_object", "{}", InputError, "takes no source"),
    "regex": ("regex", "(a", InputError, "unclosed group"),
    "look": ("regex", "(?=a)b", InputError, "look-around"),
    "deep regex": ("regex", "(" * 60000 + "a" + ")" * 60000, InputError, "regex"),
    "never": ("regex", r"[^\s\S]", InputError, "admits no text"),
    "regex list": ("regex", ["a"], InputError, "give a text"),
    "lark": ("lark", "start: (", InputError, "lark"),
    "start": ("lark", 'foo: "a"', InputError, "no start rule"),
    "deep lark": ("lark", "start: " + "(" * 60000 + '"a"' + ")" * 60000, InputError, "too deeply nested"),
    "fuel": ("lark", "start: A\nA: /.*a.{30}/ & /.*b.{30}/ & ~/.*c.{20}/", InputError, "fuel"),
    "circular rule": ("lark", "start: a\na: a", InputError, "admits no text"),
    "keys": ("json_schema", {"properties": {f"key{i}": {} for i in range(400)}, "type": "object"}, InputError, "work"),
    "choice text": ("choice", "ab", InputError, "give a list of texts"),
    "choice none": ("choice", [], InputError, "at least one"),
    "choice number": ("choice", ["a", 1], InputError, "give a text"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_grammar_is_refused_in_one_short_line(case):
    kind, source, error, says = WRONG[case]
    with pytest.raises(error, match=says) as caught:
        MADE.get(kind, source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320


def test_what_a_regex_has_between_slashes_is_its_own():
    for regex, text in {"a/b": "a/b", r"a\/b": "a/b", "a\nb": "a\nb", r"[/\\]": "\\", r"\\/": "\\/"}.items():
        following = MADE.get("regex", regex).follow(SIZE, ENDS)
        following.advance(list(text.encode()))
        assert following.allowed(())[ENDS[0]], regex


def test_a_choice_may_have_thousands_of_texts():
    texts = [f"{i:04d} or so" for i in range(5000)]
    following = MADE.get("choice", [*texts, ""]).follow(SIZE, ENDS)
    assert following.allowed(())[ENDS[0]]
    following.advance(list(b"417"))
    assert written([t for t, _ in following.forced(3)]) == b""
    following.advance(list(b"3"))
    assert written([t for t, _ in following.forced(9)]) == b" or so"


def test_control_tokens_written_in_a_source_are_text():
    following = MADE.get("choice", ["<s>a"]).follow(SIZE, ENDS)
    assert np.flatnonzero(following.allowed(())).tolist() == [ord("<")]


def test_grammars_are_kept_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(grammars, "MAX_KEPT", 3)
    made = Grammars(Pieces(), SIZE)
    first = made.get("regex", "a")
    assert made.get("regex", "a") is first
    assert made.get("choice", ["a"]) is not first
    for text in "bcd":
        made.get("regex", text)
    assert made.get("regex", "a") is not first


def test_what_one_answer_explores_fails_no_other(monkeypatch):
    """Matchers of one grammar share what their lexers found out, which is bounded for all of them together."""
    monkeypatch.setattr(grammars, "_LIMITS", {**grammars._LIMITS, "max_lexer_states": 300})
    compiled, compile_one = [], grammars.Grammar._compiled
    monkeypatch.setattr(grammars.Grammar, "_compiled", lambda self: compiled.append(1) or compile_one(self))
    made = Grammars(Pieces(), SIZE).get("regex", ".*a.{12}b")
    rng = random.Random(0)
    for _ in range(6):
        following = made.follow(SIZE, ENDS)
        for _ in range(4):
            following.allowed(())
            following.advance([rng.choice(b"abcd")])
        for _ in range(10):  # drafts that lead nowhere
            following.allowed([rng.choice(b"abcd") for _ in range(14)])
        assert following.allowed(())[97]
    assert len(compiled) > 2, "nobody met the bound"


def test_a_grammar_that_is_too_much_work_ends_its_answer_alone(monkeypatch):
    monkeypatch.setattr(grammars, "_LIMITS", {**grammars._LIMITS, "max_lexer_states": 40})
    with engine(slots=2) as one:
        costly = Sampling(temperature=1.0, seed=1, grammar=one.grammar("regex", "([ab]*a[ab]{9}c)*"))
        ids = one.tokenizer.encode("hello")
        other = one.stream(ids, Sampling(), max_tokens=30)
        next(other)
        with pytest.raises(InputError, match="the grammar takes too much work at token"):
            one.generate(ids, costly, max_tokens=60)
        assert sum(len(chunk.tokens) for chunk in other) == 29


def test_the_library_is_named_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingPackage, match="pip install 'llguidance"):
        vocabulary.library()


# ---- in an engine --------------------------------------------------------------------------------------------------


def engine(*names, **options):
    target = ToyTarget(VOCAB, seed=3, spread=3.0)
    drafters = [(name, make(name, target=target)) for name in names]
    return Engine(target, drafters, tokenizer=Tokenizer(byte_tokenizer()), eos_ids=(END,), **options)


def test_without_a_tokenizer_there_are_no_grammars():
    with pytest.raises(InputError, match="has no tokenizer"):
        Engine(ToyTarget(5)).grammar("regex", "a")


def test_a_grammar_of_another_vocabulary_is_refused():
    with engine() as one, pytest.raises(InputError, match="made for 272 tokens and the target has 300"):
        Engine(ToyTarget(300), eos_ids=(1,)).generate([1], Sampling(grammar=one.grammar("regex", "a")))


def test_what_is_no_grammar_is_no_parameter():
    with pytest.raises(InputError, match=r"make one with engine\.grammar"):
        Sampling(grammar="[a-z]+")


def test_an_answer_needs_something_to_end_with():
    with engine() as one:
        sampling = Sampling(grammar=one.grammar("regex", "[ab]{3}"))
        with pytest.raises(InputError, match="leave out ignore_eos, or give stop_token_ids"):
            one.generate("x", sampling, ignore_eos=True)
        found = one.generate(
            "x", Sampling(grammar=one.grammar("regex", "[ab]{3}"), stop_token_ids=(STOP,)), ignore_eos=True
        )
        assert found.tokens[-1] == STOP
        assert len(found.text) == 3


def test_a_grammar_of_the_empty_text_ends_at_once():
    with engine("grammar") as one:
        for kind, source in (("regex", ""), ("choice", [""]), ("lark", "start:")):
            found = one.generate("x", Sampling(grammar=one.grammar(kind, source)), max_tokens=9)
            assert (found.text, found.tokens, found.finish_reason) == ("", (END,), "stop")


def test_it_ends_where_it_may_and_must():
    with engine() as one:
        grammar = one.grammar("regex", "[ab]{2,5}")
        lengths = {len(one.generate("x", Sampling(temperature=1.5, seed=s, grammar=grammar)).text) for s in range(60)}
        assert lengths == {2, 3, 4, 5}
        cut = one.generate("x", Sampling(grammar=grammar), max_tokens=1)
        assert (len(cut.text), cut.finish_reason) == (1, "length")


def test_with_min_tokens_and_bad_words():
    with engine() as one:
        grammar = one.grammar("regex", "[ab]{2,5}")
        for seed in range(20):
            found = one.generate("x", Sampling(temperature=1.5, seed=seed, grammar=grammar, min_tokens=4))
            assert len(found.text) in (4, 5)
        b = int(one.tokenizer.encode("b")[0])
        only = one.generate("x", Sampling(temperature=1.5, seed=0, grammar=grammar, bad_words=((b,),)))
        assert set(only.text) == {"a"}
        with pytest.raises(InputError, match="every token is banned at position 6; lift a ban of min_tokens, grammar"):
            one.generate("x", Sampling(grammar=grammar, min_tokens=7))
        with pytest.raises(InputError, match="lift a ban of bad_words, grammar"):
            one.generate("x", Sampling(grammar=one.grammar("regex", "bb"), bad_words=((b,),)))


def test_a_stop_string_ends_an_answer_before_its_grammar_does():
    with engine("grammar", "suffix") as one:
        grammar = one.grammar("regex", "(ab){4}")
        found = one.generate("x", Sampling(grammar=grammar), stop="ba")
        assert (found.text, found.finish_reason) == ("a", "stop")
        a = int(one.tokenizer.encode("a")[0])
        none = Sampling(grammar=grammar, stop_token_ids=(a,))  # an end token where the text may not end
        with pytest.raises(InputError, match="every token is banned"):
            one.generate("x", none)


def test_no_bias_and_no_processor_lifts_a_ban():
    class Loud:
        def __call__(self, history, logits):
            logits[:] = np.where(np.arange(len(logits)) == 7, 100.0, 0.0)
            return logits

        def snapshot(self):
            return None

        def restore(self, state):
            pass

    with engine("grammar", "ngram") as one:
        grammar = one.grammar("regex", "(abab){2}")
        for sampling in (
            Sampling(grammar=grammar, logit_bias={7: 100.0}),
            Sampling(grammar=grammar, processors=(Loud(),)),
        ):
            assert one.generate("x", sampling).text == "abababab"


def test_what_is_banned_is_not_drafted_and_does_not_count():
    from augury.conformance.toys import Script
    from augury.tree import DraftTree

    with engine() as one:
        a, b, c = (int(one.tokenizer.encode(t)[0]) for t in "abc")
        tree = DraftTree.of([a, b, c, b, a], [-1, 0, 1, -1, 0], [0.9, 0.8, 0.7, 0.1, 0.1])
        drafted = Engine(one.target, [("s", Script([tree]))], tokenizer=one.tokenizer, eos_ids=(END,))
        found = drafted.generate("x", Sampling(grammar=drafted.grammar("regex", "ab{3}")))
        first = found.record.steps[0]
        assert found.text == "abbb"
        assert first.tree.tokens.tolist() == [a, b]
        assert first.proposals[0].nodes == 5
        assert first.drafted == 2
        drafted.close()


SOURCES = {
    "choice": ("choice", ["red", "reddish", "green", "greener than grass", "blue"]),
    "regex": ("regex", r"(cat|catalogue|dog){2,6} [0-9]{1,3}"),
    "schema": ("json_schema", {
        "type": "object", "additionalProperties": False, "required": ["name", "kinds"],
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "kinds": {"type": "array", "items": {"enum": ["cat", "category"]}, "maxItems": 3},
        },
    }),
    "lark": ("lark", 'start: sum ("=" sum)?\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,2}/'),
}  # fmt: skip


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_drafted_answer_is_a_text_of_the_grammar_and_under_the_default_rule_the_same(kind, rule):
    names = ("grammar", "suffix", "ngram", "recycle", "lookahead", "prediction", "self")
    with engine() as plain, engine(*names, acceptance=rule, slots=2) as drafted:
        grammar = drafted.grammar(*SOURCES[kind])
        accepted = 0
        for seed in range(6):
            sampling = Sampling(temperature=seed / 3, seed=seed, grammar=grammar)
            expected = plain.generate("a text", sampling, max_tokens=60)
            hint = expected.text[:5] + "x" + expected.text[5:] or "x"
            found = drafted.generate("a text", sampling, max_tokens=60, prediction=hint)
            accepted += found.record.accepted
            assert not [p.fault for s in found.record.steps for p in s.proposals if p.fault]
            if rule == "coupled" or not seed:
                assert found.tokens == expected.tokens
            together = drafted.generate_all(["a text", "b text"], sampling, max_tokens=60)
            assert rule != "coupled" or together[0].tokens == expected.tokens
            if found.finish_reason == "stop":
                following = grammar.follow(VOCAB, (END,))
                for token in found.tokens:
                    assert following.allowed(())[token]
                    following.advance([token])
        assert accepted > 0


def test_forced_text_is_drafted_for_free():
    with engine("grammar") as one:
        found = one.generate("x", Sampling(grammar=one.grammar("choice", ["a long text that is forced", "b"])))
        assert one.generate("x", Sampling()).record.drafted == 0
        steps = found.record.steps
        if found.text != "b":
            assert len(steps) == 2  # its first token is a choice
            assert steps[1].accepted == len(found.tokens) - 1


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_vocabulary_spells_texts_with_spaces_and_bytes(prefix):
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{b:02X}>", 0.0, 6) for b in range(256))]
    pieces += [(p, -float(i), 1) for i, p in enumerate(["▁t", "he", "▁the", "▁a", "▁the▁", "▁▁", *"▁thea{}"])]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [p for p, _, _ in pieces],
        "tokenizer.ggml.scores": [s for _, s, _ in pieces],
        "tokenizer.ggml.token_type": [k for _, _, k in pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    tokenizer = tokenizer_from_gguf(fields.get)
    made = Grammars(tokenizer, len(pieces) + 2)
    texts = ["the the a", "at  é", "{a}"]
    for text in texts:
        following = made.get("choice", texts).follow(len(pieces) + 2, (2,))
        left = text.encode()
        while left:
            allowed = np.flatnonzero(following.allowed(())).tolist()
            assert {tokenizer.token_bytes(t) for t in allowed} == {
                piece for t in range(len(pieces)) if t not in tokenizer.special and (piece := tokenizer.token_bytes(t))
                and any(one.encode().startswith(text.encode()[: -len(left)] + piece) for one in texts)
            }  # fmt: skip
            for token, _ in following.forced(20):
                assert token == 2 or tokenizer.token_bytes(token) in left
            token = max(
                allowed, key=lambda t: len(tokenizer.token_bytes(t)) * left.startswith(tokenizer.token_bytes(t))
            )
            following.advance([token])
            left = left[len(tokenizer.token_bytes(token)) :]
        assert np.flatnonzero(following.allowed(())).tolist() == [2]


def test_an_answer_whose_masks_take_too_long_ends(monkeypatch):
    """Whoever asks for it pays, not those who step with him."""
    follow = MADE.get("regex", "[abc]{1,50}").follow(SIZE, ENDS)
    follow.allowed([])
    monkeypatch.setattr(following, "_PATIENCE_S", 0.0)
    assert follow.allowed([97], guess=True).sum() < SIZE
    assert follow.allowed([98], guess=True).all(), "a guess need not know, and fails nothing"
    assert not follow.forced(4)
    assert follow.allowed([97]).sum() < SIZE, "it was found out before"
    follow.allowed([98])
    with pytest.raises(InputError, match="the grammar's masks took more than the 0 s that they may take"):
        follow.allowed([99])
