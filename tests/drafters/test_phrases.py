"""A table of phrases: what it says, what of a file is refused, and whose it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save

import augury
from augury.conformance.toys import ToyTarget
from augury.drafters import make, shipped
from augury.drafters.phrases import FILE, Phrases, Table, check_table, power, read_table, write_table
from augury.drafters.shipped import SHIPPED, shipped_phrases
from augury.errors import InputError, ModelError, UnknownName

V = 50
INFO = replace(ToyTarget(V).info, name="toy", digest="d1")


def number(*tokens, vocab_size=V):
    """Of a context."""
    return sum((t + 1) * power(vocab_size, n) for n, t in enumerate(reversed(tokens))) % 2**64


def a_table(entries=(((1,), 7, 255), ((2, 1), 8, 51), ((9, 3, 2, 1), 0, 102)), **more):
    rows = sorted((number(*context), token, rate) for context, token, rate in entries)
    keys, tokens, rates = (np.array([row[i] for row in rows]) for i in range(3))
    return replace(
        Table(keys.astype(np.uint64), tokens.astype(np.int32), rates.astype(np.uint8), V, "toy", "d1"), **more
    )


def test_the_longest_known_context_speaks():
    phrases = Phrases(a_table())
    assert phrases.after([1]) == (7, 1.0)
    assert phrases.after([40, 1]) == (7, 1.0)
    assert phrases.after([2, 1]) == (8, pytest.approx(0.2))
    assert phrases.after([3, 2, 1]) == (8, pytest.approx(0.2))  # three are not known, two are
    assert phrases.after([9, 3, 2, 1]) == (0, pytest.approx(0.4))
    assert phrases.after([5, 5, 9, 3, 2, 1]) == (0, pytest.approx(0.4))  # what is further back does not count
    assert phrases.after([1, 2]) is None
    assert phrases.after([]) is None


def test_no_two_contexts_of_a_usual_vocabulary_have_one_number():
    rng = np.random.default_rng(0)
    edge = [0, 1, 49150, 49151]
    some = {tuple(rng.choice(edge, n).tolist()) for n in range(1, 5) for _ in range(400)}
    assert len(some) > 200
    assert len({number(*context, vocab_size=49152) for context in some}) == len(some)


def test_a_file_holds_what_was_written(tmp_path):
    write_table(tmp_path / "new" / FILE, a_table())
    found = read_table(tmp_path / "new" / FILE)
    for name in ("keys", "tokens", "rates"):
        assert np.array_equal(getattr(found, name), getattr(a_table(), name))
    assert (found.vocab_size, found.target, found.digest) == (V, "toy", "d1")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [FILE]
    empty = a_table(())
    write_table(tmp_path / FILE, empty)
    assert Phrases(read_table(tmp_path / FILE)).after([1]) is None
    with pytest.raises(InputError, match="cannot write"):
        write_table(tmp_path / FILE / "below" / FILE, empty)


def told(**more):
    return {"augury": json.dumps({"format": 1, "target": "toy", "digest": "d1", "vocab_size": V} | more)}


def arrays(**more):
    table = a_table()
    return {"keys": table.keys, "tokens": table.tokens, "rates": table.rates} | more


@pytest.mark.parametrize(
    ("tensors", "metadata", "says"),
    [
        (arrays(), None, "its metadata are None; it was not written by augury train phrases"),
        (arrays(), {"augury": "{"}, "Expecting property name"),
        (arrays(), told(format=2), "it is of format 2; this version reads 1"),
        (arrays(), told(vocab_size="many"), "target, digest and vocab_size are expected"),
        (arrays(), told(digest=None), "target, digest and vocab_size are expected"),
        (arrays(more=np.zeros(1)), told(), "keys, tokens, rates are expected"),
        (arrays(keys=np.arange(3)), told(), "keys is int64 of shape [3]; uint64 [3] is expected"),
        (arrays(rates=np.zeros(2, np.uint8)), told(), "rates is uint8 of shape [2]; uint8 [3] is expected"),
        (arrays(tokens=np.zeros((3, 1), np.int32)), told(), "tokens is int32 of shape [3, 1]"),
        (arrays(tokens=np.array([1, V, 0], np.int32)), told(), "tokens lie outside 0..49"),
        (arrays(tokens=np.array([1, -1, 0], np.int32)), told(), "tokens lie outside 0..49"),
        (arrays(keys=np.array([1, 3, 3], np.uint64)), told(), "keys do not ascend"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, tensors, metadata, says):
    save_file(tensors, tmp_path / FILE, metadata)
    with pytest.raises(ModelError, match=re.escape(says)) as refused:
        read_table(tmp_path / FILE)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path, monkeypatch):
    for path, says in ((tmp_path, "no such file"), (tmp_path / "gone", "no such file")):
        with pytest.raises(ModelError, match=says):
            read_table(path)
    write_table(tmp_path / FILE, a_table())
    whole = (tmp_path / FILE).read_bytes()
    for length in (0, 5, 40, len(whole) - 1):
        (tmp_path / FILE).write_bytes(whole[:length])
        with pytest.raises(ModelError, match=f"{FILE} holds no phrases that are read here"):
            read_table(tmp_path / FILE)
    with (tmp_path / FILE).open("wb") as file:
        file.truncate(1 << 40)  # of holes
    with pytest.raises(ModelError, match="at most 13697024 are read"):
        read_table(tmp_path / FILE)


def test_they_belong_to_one_target():
    check_table(a_table(), INFO)
    check_table(a_table(digest=""), INFO)
    check_table(a_table(), replace(INFO, digest=""))
    with pytest.raises(ModelError, match=r"phrases of 'toy' do not fit this target toy, whose weights are others; "):
        check_table(a_table(), replace(INFO, digest="d2"))
    with pytest.raises(ModelError, match=r"know 50 tokens, this target toy has 51; .*augury train phrases toy"):
        check_table(a_table(), replace(INFO, vocab_size=51))


# ---- as an option of the drafter -------------------------------------------------------------------------------------


@pytest.fixture
def target():
    toy = ToyTarget(V)
    toy.info = INFO
    return toy


def usual(drafter):
    return drafter._hints._phrases


def test_the_drafter_takes_a_file_or_none(tmp_path, target):
    write_table(tmp_path / "mine.safetensors", a_table())
    assert usual(make(f"self:phrases={tmp_path / 'mine.safetensors'}", target=target)).after([1])[0] == 7
    assert usual(make("self", target=target)) is None
    with pytest.raises(ModelError, match="no such file"):
        make("self:phrases=gone", target=target)
    with pytest.raises(UnknownName, match="phrase"):
        make("self:phrase=gone", target=target)
    target.info = replace(INFO, digest="d2")
    with pytest.raises(ModelError, match="whose weights are others"):
        make(f"self:phrases={tmp_path / 'mine.safetensors'}", target=target)


def test_what_is_shipped_is_taken_by_the_very_weights_it_was_counted_for(tmp_path, target, monkeypatch):
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    write_table(tmp_path / "toy" / FILE, a_table())
    assert usual(make("self", target=target)).after([1])[0] == 7
    assert usual(make("self:phrases=none", target=target)) is None
    assert shipped_phrases(replace(INFO, name="a copy of it")) is not None
    for other in ({"digest": "d2"}, {"digest": ""}):
        assert shipped_phrases(replace(INFO, **other)) is None
        target.info = replace(INFO, **other)
        assert usual(make("self", target=target)) is None


@pytest.mark.parametrize("path", sorted(SHIPPED.glob(f"*/{FILE}")), ids=str)
def test_every_shipped_table_is_sound_small_and_says_whose_it_is(path):
    assert path.stat().st_size < 1_500_000
    table = read_table(path)
    assert len(Phrases(table)) > 10000
    assert table.target == path.parent.name
    assert table.digest
    assert FILE.partition(".")[0] in (path.parent / "README.md").read_text()


@pytest.mark.real
def test_the_embedded_model_has_phrases_that_it_says():
    with augury.load(drafters="none", max_model_len=64, measure=False) as engine:
        table = shipped_phrases(engine.target.info)
        assert table is not None
        check_table(table, engine.target.info)
        assert shipped_phrases(replace(engine.target.info, digest="another")) is None
        phrases = Phrases(table)
        token, rate = phrases.after(engine.tokenizer.encode("Here are some of the most").tolist())
        assert rate > 0.1
        assert engine.tokenizer.token_bytes(token).startswith(b" ")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_numbers_that_numpy_has_not_are_refused(tmp_path, dtype):
    tensors = {"keys": torch.zeros(3, dtype=dtype), "tokens": torch.zeros(3), "rates": torch.zeros(3)}
    torch_save(tensors, tmp_path / FILE, told())
    with pytest.raises(ModelError, match="holds no phrases that are read here"):
        read_table(tmp_path / FILE)
