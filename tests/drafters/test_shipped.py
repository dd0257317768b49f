"""Heads that come with the package are found by the weights they were trained for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_eagle import Ridden, V, made

from augury.api import automatic
from augury.drafters import brought, shipped
from augury.drafters.shipped import SHIPPED, fitting
from augury.errors import InputError
from augury.models.heads import read_head
from augury.models.kinds import KINDS


@pytest.fixture
def info(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    made(tmp_path / "toy" / "eagle", target_digest="d1")
    (tmp_path / "toy" / "README.md").write_text("of whom")
    return replace(Ridden(V).info, name="toy", taps=True, digest="d1")


def test_a_head_is_brought_along_by_the_target_it_was_trained_for_and_by_no_other(info):
    assert fitting(info) == ["eagle"]
    assert "eagle" in brought(info)
    assert fitting(replace(info, name="a copy of it")) == ["eagle"]
    for other in ({"digest": "d2"}, {"digest": ""}, {"taps": False}):
        assert fitting(replace(info, **other)) == []


def test_it_is_one_of_the_drafters_of_auto(info):
    target = Ridden(V)
    target.info = replace(info, short=())
    assert automatic(target)[-1] == "eagle"
    target.info = replace(info, short=(16, 8, 4))  # then its own guesses are better, and the head is in their way
    assert automatic(target)[-1] == "self"
    assert "eagle" in brought(target.info)


def test_what_is_not_shipped_says_how_to_train_it(info):
    assert shipped.shipped("eagle", info).is_dir()
    with pytest.raises(InputError, match=r"no head is shipped for toy; train one \(augury train block toy --out DIR\)"):
        shipped.shipped("block", info)


@pytest.mark.parametrize("directory", sorted(path.parent for path in SHIPPED.glob("*/*/config.json")), ids=str)
def test_every_shipped_head_is_sound_and_says_whose_it_is(directory):
    head = read_head(directory)
    assert head.config.kind == directory.name
    assert head.config.kind in KINDS
    assert head.config.target == directory.parent.name
    assert head.config.target_digest
    assert (directory.parent / "README.md").is_file()
