"""Text of drafted answers: characters whose bytes lie in several tokens, and stops that end inside a path."""

from __future__ import annotations

import itertools

import pytest
from tiny import byte_tokenizer

from augury.conformance.toys import Half, ToyTarget, oracle
from augury.drafters import make
from augury.engine.engine import Engine
from augury.models.tokenizer import Tokenizer

VOCAB = 259
TOKENIZER = Tokenizer(byte_tokenizer())
PROMPT = [1, 2, 3]
SIGNS = "🎉🔥🚀 你好 ∑∫ é 👨‍👩‍👧"
CHINESE = "今天天气很好，我想去公园散步玩耍。" * 9
WORDS = "There is, a way to go on and on."


class Says(ToyTarget):
    """Says one text; how likely each byte of it is depends on the whole context, as with any toy."""

    def __init__(self, text):
        super().__init__(VOCAB, context=512)
        self.said = TOKENIZER.encode(text).tolist()

    def _logits(self, cells):
        row = super()._logits(cells).copy()
        row[self.said[(len(cells) - len(PROMPT)) % len(self.said)]] += 9.0
        return row


def engine(text, drafters=()):
    return Engine(Says(text), [(f"d{i}", d) for i, d in enumerate(drafters)], tokenizer=TOKENIZER)


def drafts(text, depth):
    """A drafter that is right all along, and one that is wrong at every place in turn; none for depth 0."""
    said = TOKENIZER.encode(text).tolist()
    return [[oracle(said, depth, VOCAB)], [Half(said, depth, range(depth + 1), VOCAB)]] if depth else [[]]


def streamed(one, **options):
    chunks = list(one.stream(PROMPT, **options))
    return [chunk.text for chunk in chunks], [token for chunk in chunks for token in chunk.tokens]


@pytest.mark.parametrize("depth", range(9))
def test_no_character_is_split_between_steps(depth):
    count = len(SIGNS.encode())
    for drafters in drafts(SIGNS, depth):
        with engine(SIGNS, drafters) as one:
            pieces, tokens = streamed(one, max_tokens=count)
            whole = one.generate(PROMPT, max_tokens=count)
        assert "".join(pieces) == whole.text == SIGNS
        assert "\ufffd" not in "".join(pieces)
        assert tuple(tokens) == whole.tokens
        assert depth == 0 or whole.record.accepted > 0


@pytest.mark.parametrize("name", ["suffix", "ngram", "prediction"])
def test_a_long_answer_of_wide_characters_streams_as_it_reads(name):
    count = len(CHINESE.encode())
    with engine(CHINESE, [make(name)]) as one:
        pieces, _ = streamed(one, max_tokens=count, prediction=CHINESE[40:] if one.reads_prediction else None)
        whole = one.generate(PROMPT, max_tokens=count)
    assert "".join(pieces) == whole.text == CHINESE
    assert len(pieces) < count / 2, "it was drafted"


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
@pytest.mark.parametrize("left", [1, 2, 3])
def test_bytes_of_an_unfinished_character_come_at_the_end(depth, left):
    """They are neither held back for ever nor shown before it is known that nothing follows."""
    for drafters in drafts(SIGNS, depth):
        with engine(SIGNS, drafters) as one:
            pieces, tokens = streamed(one, max_tokens=4 + left)
        assert len(tokens) == 4 + left
        assert "".join(pieces) == SIGNS.encode()[: 4 + left].decode(errors="replace")
        assert "\ufffd" not in "".join(pieces[:-1])


STOPS = [
    ("T",), ("here",), ("on",), ("on.",), ("way to go on and", "is,"), ("nowhere",),
    *itertools.permutations(["a", "is", ","]),
]  # fmt: skip


@pytest.mark.parametrize("stop", STOPS, ids="|".join)
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_cuts_text_ids_usage_and_logprobs_at_one_place(stop, include):
    options = {"stop": stop, "include_stop": include, "logprobs": 2, "max_tokens": len(WORDS)}
    with engine(WORDS) as one:
        plain = one.generate(PROMPT, **options)
    at, found = min(((WORDS.find(s), s) for s in stop if s in WORDS), default=(len(WORDS), ""))
    end = at + len(found)
    assert plain.text == WORDS[: end if include else at]
    assert plain.tokens == tuple(TOKENIZER.encode(WORDS[:end]).tolist())
    assert plain.tokens == tuple(entry.token for entry in plain.logprobs)
    assert (plain.record.stop, plain.record.completion_tokens) == (found or None, end)
    for depth in (1, 32):
        for drafters in drafts(WORDS, depth):
            with engine(WORDS, drafters) as one:
                whole = one.generate(PROMPT, **options)
                pieces, tokens = streamed(one, **options)
            assert ("".join(pieces), tuple(tokens)) == (whole.text, whole.tokens) == (plain.text, plain.tokens)
            assert whole.logprobs == plain.logprobs
            assert (whole.finish_reason, whole.record.stop) == (plain.finish_reason, plain.record.stop)
            assert whole.record.completion_tokens == end == sum(len(s.sources) for s in whole.record.steps)
