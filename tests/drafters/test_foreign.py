"""A draft model that cuts text into other tokens: what it reads, and what comes back."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.conformance.kit import check_drafter
from augury.conformance.toys import ToyTarget
from augury.drafters.foreign import Told
from augury.drafters.retold import Retold
from augury.drafters.vocabulary import same_tokens
from augury.engine.engine import Engine
from augury.errors import UnknownName
from augury.models.tokenizer import Tokenizer
from augury.sampling import Sampling

RULES = ("coupled", "rejection", "block")


def tokenizer(*words):
    """A byte-level vocabulary; words of two letters and more are merged from the left."""
    merges = [(w[:-1], w[-1]) for w in words if len(w) > 1]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({w: i for i, w in enumerate(words)}, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend)


HERE = {3: ("a", "b", "ab"), 4: ("a", "b", "ab", "aba"), 5: ("a", "b", "c", "ab", "bc")}
"""The target's words by the size of its vocabulary."""
THERE = ("b", "ba", "a", "c", "bb")


def told(size, method="shared", **options):
    return Told(
        ToyTarget(len(THERE), seed=2), tokenizer(*THERE), tokenizer(*HERE[size]), size, 4, method=method, **options
    )


@pytest.mark.parametrize(("method", "rules"), [("shared", RULES[:1]), ("text", RULES[:1]), ("shared", RULES[1:])])
def test_the_kit_passes(method, rules):
    report = check_drafter(lambda target: told(target.info.vocab_size, method, depth=2), rules=rules, samples=2000)
    assert report.passed, str(report)


@pytest.mark.parametrize(("method", "rules"), [("shared", RULES[1:2]), ("text", RULES[:1])])
def test_the_kit_passes_in_fewer_bits(method, rules):
    report = check_drafter(
        lambda target: told(target.info.vocab_size, method, depth=2, width=1, bits=8), rules=rules, samples=2000
    )
    assert report.passed, str(report)


def test_tokens_are_matched_by_their_bytes():
    assert same_tokens(tokenizer(*HERE[5]), tokenizer(*THERE), 7, 5).tolist() == [2, 0, 3, -1, -1, -1, -1]


def test_only_shared_tokens_are_drafted_by_the_shared_method():
    with Engine(ToyTarget(5), [("foreign", told(5))]) as engine:
        record = engine.generate([0, 1], Sampling(temperature=1.0, seed=1), max_tokens=80, ignore_eos=True).record
    drafted = {int(t) for step in record.steps for t in step.tree.tokens}
    assert drafted == {0, 1, 2}


def test_text_is_cut_into_the_targets_tokens():
    """The model writes b, then a; the target has a word for ab, and reads the text behind a as a, ba -> ab, a."""
    drafter = told(5, "text")
    assert drafter._cut(np.array([2, 0], np.int32), "ba") == [] or drafter._cut(np.array([2], np.int32), "ab") == [3]
    assert drafter._cut(np.array([2], np.int32), "abc") == [3, 2]
    assert drafter._cut(np.array([2], np.int32), "") == []


def test_where_the_last_token_would_be_cut_otherwise_less_is_looked_behind():
    """Behind "a" the text "b" would make the word ab of both: cut alone it is a token that may follow."""
    assert told(5, "text")._cut(np.array([0], np.int32), "b") == [1]


def test_an_unknown_method_is_named():
    with pytest.raises(UnknownName, match="method"):
        told(5, "telepathy")


TEXT = st.text(st.sampled_from("ab c\n"), min_size=0, max_size=1500)
SPACED = ("a", "b", "c", "Ġ", "Ċ", "ab", "Ġa", "bc")
OTHER = ("c", "b", "a", "Ċ", "Ġ", "ba", "Ġb", "cc", "Ġba")


@settings(max_examples=40, deadline=None)
@given(TEXT, st.lists(st.integers(1, 200), max_size=20))
def test_a_text_that_grows_reads_as_the_whole(text, cuts):
    """Whatever the pieces, what is told is the text; and before pieces are settled its tokens are the same."""
    source, into = tokenizer(*SPACED), tokenizer(*OTHER)
    tokens = source.encode(text)
    retold, length = Retold(source, into), 0
    for cut in [*cuts, len(tokens)]:
        length = min(length + cut, len(tokens))
        ids = retold.follow(tokens[:length])
        assert into.incremental().push(ids) == source.incremental().push(tokens[:length])
    if len(text) <= 480:
        assert np.array_equal(ids, into.encode(text))


def test_a_character_cut_by_a_token_border_is_read_when_it_is_whole():
    words = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    source, into = tokenizer(*words), tokenizer(*words[::-1])
    retold = Retold(source, into)
    tokens = source.encode("天a")
    assert len(tokens) == 4
    assert len(retold.follow(tokens[:2])) == 0
    assert into.incremental().push(retold.follow(tokens)) == "天a"
