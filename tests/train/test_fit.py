"""From a target's own text to a head that guesses it: it learns, it goes on where it stopped, it can be used."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from test_collect import loaded

from augury.cli import app
from augury.drafters import make
from augury.drafters.phrases import read_table
from augury.engine.engine import Engine
from augury.errors import InputError
from augury.models.heads import read_head
from augury.models.kinds import KINDS
from augury.train.collect import collect
from augury.train.fit import GUESSES, Measured, Recipe, batch_of, batches, is_greedy, read, vocabulary
from augury.train.head import default_taps, fit_head
from augury.train.learning import loss
from augury.train.shards import Conversation, Shard, existing

TAPS = (0, 1, 2)
RECIPE = Recipe(passes=4, rows=256, steps=3, rate=8e-3)
FITTED = {"kind": "eagle", "taps": TAPS, "recipe": RECIPE, "drafted": 96, "inner": 64, "seed": 0}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads cost such small models more than their arithmetic."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny():
    return loaded()


@pytest.fixture(scope="module")
def data(tiny, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("train")
    list(collect(tiny, directory / "data", shards=3, taps=TAPS, conversations=24, batch=4, answer_tokens=32))
    return directory


def copied(data: Path, to: Path) -> Path:
    shutil.copytree(data, to)
    return to


@pytest.fixture(scope="module")
def fitted(tiny, data, tmp_path_factory):
    directory = copied(data, tmp_path_factory.mktemp("fitted") / "a")
    return directory, list(fit_head(tiny, directory, **FITTED))


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_and_leaves_a_head_that_can_be_used(tiny, data, fitted, tmp_path, kind):
    directory, told = fitted
    if kind != "eagle":
        directory = copied(data, tmp_path / "a")
        told = list(fit_head(tiny, directory, **FITTED | {"kind": kind}))
    passes = [one for one in told if one.measured is not None]
    assert [one.done for one in passes] == [1.0, 2.0, 3.0, 4.0]
    assert passes[-1].loss < passes[0].loss - 0.05
    assert all(isinstance(one.measured, Measured) and one.measured.chains > 10 for one in passes)
    places = GUESSES if kind == "eagle" else RECIPE.steps
    assert all(len(one.measured.by_depth) == places for one in passes)
    head = read_head(directory / kind)
    assert (head.config.kind, head.config.guesses) == (kind, 1 if kind == "eagle" else RECIPE.steps)
    assert (head.config.taps, head.config.target_digest, len(head.draft_ids)) == (TAPS, tiny.target.info.digest, 96)
    prompt = [1, 2, 3, 70, 71]
    plain = Engine(tiny.target).generate(prompt, max_tokens=24).tokens
    with Engine(tiny.target, [(kind, make(f"{kind}:{directory / kind}", target=tiny.target))]) as engine:
        found = engine.generate(prompt, max_tokens=24)
    assert found.tokens == plain
    assert found.record.drafted > 10


def test_what_was_stopped_goes_on_as_if_it_had_not(tiny, data, fitted, tmp_path):
    whole, _ = fitted
    directory = copied(data, tmp_path / "b")
    for told in fit_head(tiny, directory, **FITTED):
        if told.done >= 2.0:
            break  # within a pass that has ended, and whatever follows is done anew
    list(fit_head(tiny, directory, **FITTED))
    ours, theirs = read_head(directory / "eagle").weights, read_head(whole / "eagle").weights
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert list(fit_head(tiny, directory, **FITTED)) == []


def test_passes_over_the_first_guess_alone_come_before_the_others(tiny, data, tmp_path, monkeypatch):
    from augury.train import fit

    seen = []
    monkeypatch.setattr(fit, "loss", lambda net, batch, steps: seen.append(steps) or loss(net, batch, steps))
    directory = copied(data, tmp_path / "i")
    told = list(fit_head(tiny, directory, **FITTED | {"recipe": replace(RECIPE, single=2, passes=1)}))
    each = len(seen) // 3
    assert seen == [1] * 2 * each + [RECIPE.steps] * each
    assert [one.done for one in told if one.measured is not None] == [1.0, 2.0, 3.0]
    assert list(fit_head(tiny, directory, **FITTED | {"recipe": replace(RECIPE, single=2, passes=1)})) == []


def test_a_state_of_something_else_is_refused(tiny, fitted, tmp_path):
    directory = copied(fitted[0], tmp_path / "c")
    for change in ({"recipe": replace(RECIPE, rate=1e-3)}, {"inner": 48}, {"drafted": 80}):
        with pytest.raises(InputError, match=r"state\.safetensors was left by another recipe, head or data"):
            list(fit_head(tiny, directory, **FITTED | change))


@pytest.mark.parametrize("damage", [lambda whole: whole[:1000], lambda whole: b"", lambda whole: b"x" * 64])
def test_a_damaged_state_is_one_line(tiny, fitted, tmp_path, damage):
    directory = copied(fitted[0], tmp_path / "d")
    state = directory / "eagle-state.safetensors"
    state.write_bytes(damage(state.read_bytes()))
    with pytest.raises(InputError, match=r"state\.safetensors is damaged \(.*\); delete it to begin anew") as one:
        list(fit_head(tiny, directory, **FITTED))
    assert "\n" not in str(one.value)


def test_a_state_left_by_other_text_is_refused(tiny, fitted, tmp_path):
    """As many conversations, other tokens: what was learnt from them is not this head's."""
    directory = copied(fitted[0], tmp_path / "e")
    shutil.rmtree(directory / "data")
    list(
        collect(loaded(), directory / "data", shards=3, taps=TAPS, conversations=24, batch=4, answer_tokens=32, seed=1)
    )
    with pytest.raises(InputError, match=r"was left by another recipe, head or data"):
        list(fit_head(tiny, directory, **FITTED | {"seed": 1}))


def test_a_loss_that_is_no_number_is_not_kept(tiny, data, tmp_path):
    directory = copied(data, tmp_path / "f")
    with pytest.raises(InputError, match=r"the loss is (nan|inf); begin anew with a smaller rate than 1e\+18"):
        list(fit_head(tiny, directory, **FITTED | {"recipe": replace(RECIPE, rate=1e18)}))
    assert not (directory / "eagle-state.safetensors").exists()


def test_without_text_there_is_nothing_to_learn(tiny, tmp_path):
    with pytest.raises(InputError, match="there is no conversation to learn from"):
        list(fit_head(tiny, tmp_path, **FITTED))


def test_batches_hold_every_conversation_once_and_little_padding():
    rng = np.random.default_rng(0)
    talks = [
        Conversation(np.arange(n, dtype=np.int32), 1, torch.zeros(n, 1, 1)) for n in rng.integers(8, 200, 300).tolist()
    ]
    groups = list(batches(talks, 800, random.Random(1)))
    assert sorted(id(t) for group in groups for t in group) == sorted(map(id, talks))
    padded = sum(len(group) * max(len(t.tokens) for t in group) for group in groups)
    assert padded < 1.15 * sum(len(t.tokens) for t in talks)
    assert all(len(group) * max(len(t.tokens) for t in group) <= 800 for group in groups)
    other = [[len(t.tokens) for t in group] for group in batches(talks, 800, random.Random(2))]
    assert other != [[len(t.tokens) for t in group] for group in groups]


def test_the_vocabulary_has_what_it_must_what_is_frequent_and_then_small_ids():
    talks = [Conversation(np.array([9, 9, 9, 7, 7, 50], np.int32), 1, torch.zeros(6, 1, 1))]
    assert vocabulary(talks, 100, 6, [99]).tolist() == [0, 1, 7, 9, 50, 99]
    assert vocabulary(talks, 100, 3, [99]).tolist() == [7, 9, 99]
    controls = range(7)
    assert vocabulary(talks, 100, 6, [99], controls).tolist() == [7, 8, 9, 10, 50, 99]
    assert vocabulary(talks, 100, 4, [99], [9]).tolist() == [7, 9, 50, 99]


def test_rows_of_a_batch_stand_where_the_head_will_read_them(tiny, data):
    talk = read([Shard(path) for path in existing(data / "data").values()], 1024)[0]
    forward = tiny.target.forward
    batch = batch_of([talk], forward.final_norm, 1e-5, torch.device("cpu"))
    t = len(talk.tokens) - 2
    assert batch.features.shape == (1, t, 3 * 48)
    assert torch.equal(batch.features[0, 3], talk.hidden[3, :3].float().reshape(-1))
    assert torch.equal(batch.weight[0] > 0, talk.known[1:-1])
    # The law of row r is that of token r + 2: greedy text says so.
    greedy = [
        one
        for one in read([Shard(path) for path in existing(data / "data").values()], 1024)
        if is_greedy(one, forward.words(np.arange(272, dtype=np.int32)).float(), forward.final_norm, 1e-5)
    ]
    assert len(greedy) > 2
    batch = batch_of(greedy[:1], forward.final_norm, 1e-5, torch.device("cpu"))
    words = forward.words(np.arange(272, dtype=np.int32)).float()
    assert batch.answer[0].sum() == len(greedy[0].answer)
    known = (batch.weight[0] > 0) & batch.answer[0]
    said = (batch.laws[0] @ words.T).argmax(-1)
    assert (said == batch.tokens[0, 2:])[known].float().mean() > 0.9


@pytest.mark.parametrize("layers", [4, 5, 6, 12, 30, 80])
def test_taps_are_three_layers(layers):
    taps = default_taps(layers)
    assert all(a < b for a, b in pairwise(taps))
    assert (taps[0] >= 0, taps[-1]) == (True, layers - 1)
    assert GUESSES > 1


def test_three_layers_are_too_few():
    with pytest.raises(InputError, match="a target of 3 layers has no three"):
        default_taps(3)


# ---- the verb ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["eagel", "smollm2-135m"], "unknown kind of head 'eagel'; did you mean 'eagle'"),
        (["block", "smollm2-135m", "--steps", "1"], "steps is 1; a head of kind block is trained on 2 to 16"),
        (["medusa", "smollm2-135m", "--steps", "1"], "steps is 1; a head of kind medusa is trained on 2 to 16"),
        (["eagle", "smollm2-135m", "--rate", "2"], "rate is 2.0; it must lie between 0 and 1"),
        (["eagle", "smolm2"], "unknown model 'smolm2'; did you mean 'smollm2-135m'"),
    ],
)
def test_bad_input_is_one_line(arguments, says, tmp_path):
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["train", *arguments, "--out", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert says in done.output
    assert not (tmp_path / "x").exists()


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_loaded(tmp_path):
    from typer.testing import CliRunner

    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        done = CliRunner().invoke(app, ["train", "eagle", "smolm2", "--out", str(out)])
        assert done.exit_code == 2
        assert "no directory that can be written to" in done.output.replace("\n", " ")


def test_fewer_shards_than_there_are_give_the_head_of_these_alone(tiny, data, tmp_path):
    whole, some = copied(data, tmp_path / "g"), copied(data, tmp_path / "h")
    next(iter(sorted((some / "data").glob("*"), reverse=True))).unlink()
    recipe = {"recipe": replace(RECIPE, passes=1)}
    list(fit_head(tiny, whole, **FITTED | recipe, shards=2))
    list(fit_head(tiny, some, **FITTED | recipe))
    ours, theirs = read_head(whole / "eagle").weights, read_head(some / "eagle").weights
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_conversations_that_are_too_short_for_the_steps_are_one_line(tiny, data, tmp_path, monkeypatch):
    from augury.train import head

    monkeypatch.setattr(head, "read", lambda shards, _longest: read(shards, 8))
    directory = copied(data, tmp_path / "j")
    with pytest.raises(InputError, match="no conversation is longer than the 8 steps of the recipe"):
        list(fit_head(tiny, directory, **FITTED | {"recipe": replace(RECIPE, steps=8)}))


@pytest.mark.real
def test_one_command_trains_a_head_for_the_embedded_model(tmp_path):
    from typer.testing import CliRunner

    out = tmp_path / "head of mine"
    small = [
        "--shards",
        "1",
        "--conversations",
        "4",
        "--answer-tokens",
        "24",
        "--single",
        "1",
        "--passes",
        "1",
        "--drafted",
        "512",
    ]
    done = CliRunner().invoke(app, ["train", "eagle", "smollm2-135m", "--out", str(out), *small])
    assert done.exit_code == 0, done.output
    assert f"eagle:{out / 'eagle'}" in done.output.replace("\n", "")
    lines = [json.loads(line) for line in (out / "eagle-log.jsonl").read_text().splitlines()]
    assert lines[-1]["pass"] == 2.0
    assert read_head(out / "eagle").config.target == "smollm2-135m"
    (shard,) = (out / "data").iterdir()
    made = shard.stat().st_mtime_ns
    done = CliRunner().invoke(app, ["train", "phrases", "smollm2-135m", "--out", str(out), *small])
    assert done.exit_code == 0, done.output
    assert f"self:phrases={out / 'phrases.safetensors'}" in done.output.replace("\n", "")
    assert read_table(out / "phrases.safetensors").target == "smollm2-135m"
    assert shard.stat().st_mtime_ns == made  # what is there is only counted
