"""Phrases are what the target's answers say most often behind a few tokens, by any way of counting them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from augury.conformance.toys import ToyTarget
from augury.drafters.phrases import LONGEST, Phrases, Table
from augury.errors import InputError
from augury.train.phrases import SEEN, count, count_phrases
from augury.train.shards import Conversation, Origin, write_shard

V = 40
TAPS = (0,)
INFO = replace(ToyTarget(V).info, name="toy", digest="d1")


def table(*talks):
    """Phrases of conversations, each of which is (prompt, answer)."""
    arrays = count([(np.array([*p, *a], np.int32), len(p)) for p, a in talks], V)
    return Phrases(Table(*arrays, V, "toy", ""))


def test_what_was_said_most_often_is_kept_with_its_rate():
    said = table(*[([1], [2, 3])] * 4, ([1], [2, 4]))
    token, rate = said.after([2])
    assert (token, round(rate, 2)) == (3, round(4 / 6, 2))
    assert said.after([1]) == (2, pytest.approx(5 / 6, abs=0.01))  # a context may lie in the prompt
    assert said.after([3]) is None


def test_questions_are_not_counted_and_conversations_not_joined():
    said = table(*[([5, 6, 7], [8])] * SEEN)
    assert said.after([5]) is None
    assert said.after([7])[0] == 8
    assert said.after([8]) is None  # the next conversation's 5 is not behind it
    assert table(*[([7], [8])] * (SEEN - 1)).after([7]) is None


def test_a_longer_context_is_kept_only_where_it_says_something_else():
    same = [([9, 1], [2])] * 10
    assert len(table(*same)) == 1  # behind 9 1 as behind 1
    other = table(*same, *[([8, 1], [3])] * 5)
    assert other.after([1])[0] == 2
    assert other.after([8, 1])[0] == 3
    assert other.after([9, 1])[0] == 2
    assert other.after([9, 1])[1] > other.after([1])[1] + 0.2  # the same token, but surer


@pytest.mark.parametrize("seed", range(3))
def test_looking_up_is_backing_off(seed):
    """Against a count in so many words, of all contexts and none left out."""
    rng = np.random.default_rng(seed)
    steps = rng.permutation(V)
    talks = []
    for _ in range(60):
        tokens = [int(rng.integers(V))]
        while len(tokens) < 80:  # mostly a walk that depends on two tokens
            near = (int(steps[tokens[-1]]) + (tokens[-2] if len(tokens) > 1 else 0) // 20) % V
            tokens.append(near if rng.random() < 0.7 else int(rng.integers(V)))
        talks.append((np.array(tokens, np.int32), 10))
    found = defaultdict(Counter)
    for tokens, n in talks:
        for at in range(n, len(tokens)):
            for length in range(1, LONGEST + 1):
                found[tuple(tokens[at - length : at].tolist())][int(tokens[at])] += 1
    phrases = Phrases(Table(*count(talks, V), V, "toy", ""))
    assert V / 2 < len(phrases) < sum(max(c.values()) >= SEEN for c in found.values())
    judged = 0
    for tokens, _ in talks:
        for at in range(LONGEST, len(tokens)):
            recent = tokens[at - LONGEST : at].tolist()
            known = (found.get(tuple(recent[-n:]), Counter()) for n in range(LONGEST, 0, -1))
            best = next((c for c in known if c and max(c.values()) >= SEEN), None)
            rate = max(best.values()) / (best.total() + 1) if best else 0.0
            if rate >= 0.1:
                token, stated = phrases.after(recent)
                assert best[token] == max(best.values())
                assert stated == pytest.approx(rate, abs=0.06)
                judged += 1
    assert judged > 1000


def shard(directory, number, answers, digest="d1"):
    origin = Origin("toy", digest, V, INFO.hidden_size, (*TAPS, INFO.layers), 0, "")
    rows = [np.array([1, *answer], np.int32) for answer in answers]
    talks = [Conversation(t, 1, torch.zeros(len(t), 2, INFO.hidden_size, dtype=torch.bfloat16)) for t in rows]
    write_shard(directory, origin, number, talks)


def test_the_shards_of_a_directory_are_counted_together(tmp_path):
    shard(tmp_path, 0, [[2, 3]] * 2)
    shard(tmp_path, 1, [[2, 3]] * 3)
    found = count_phrases(INFO, tmp_path, TAPS, 0)
    assert (found.vocab_size, found.target, found.digest) == (V, "toy", "d1")
    assert Phrases(found).after([2]) == (3, pytest.approx(5 / 6, abs=0.01))
    assert Phrases(count_phrases(INFO, tmp_path, TAPS, 0, shards=1)).after([2]) is None


def test_text_of_another_target_is_refused(tmp_path):
    with pytest.raises(InputError, match="no conversation to count"):
        count_phrases(INFO, tmp_path, TAPS, 0)
    shard(tmp_path, 0, [[2, 3]], digest="d2")
    with pytest.raises(InputError, match="another target"):
        count_phrases(INFO, tmp_path, TAPS, 0)


def test_a_vocabulary_whose_contexts_share_numbers_is_counted_all_the_same():
    wide = 1 << 18
    talks = [(np.array([wide - 1, wide - 2, wide - 3, 5, 7], np.int32), 4)] * 5
    talks += [(np.array([wide - 1, wide - 2, 11, 5, 8], np.int32), 4)] * 4
    phrases = Phrases(Table(*count(talks, wide), wide, "toy", ""))
    assert phrases.after([wide - 1, wide - 2, wide - 3, 5])[0] == 7
    assert phrases.after([wide - 1, wide - 2, 11, 5])[0] == 8
    assert phrases.after([5])[0] == 7
