"""Names, options, and what is said when they are wrong."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

import augury
from augury.drafters import DRAFTERS, check, free, make, split
from augury.drafters.drafter import Drafter
from augury.drafters.ngram import Ngram
from augury.errors import InputError, UnknownName
from augury.tree import DraftTree


class Mine(Drafter):
    """A user's drafter with an option of every type and one that no spec can say."""

    def __init__(self, target: object, depth: int = 1, share: float = 0.5, eager: bool = False, name: str = "") -> None:
        self.given = (target, depth, share, eager, name)

    def propose(self, view, limit):
        return DraftTree.empty()


HERE = f"{__name__}:Mine"


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_name_has_its_class_and_a_line(name):
    module, _, attribute = DRAFTERS[name].target.partition(":")
    assert issubclass(getattr(importlib.import_module(module), attribute), Drafter)
    assert DRAFTERS[name].doc


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_s_file_is_read_without_the_others(name):
    """What several of them need has a file of its own."""
    own, *others = dict.fromkeys(spec.target.partition(":")[0] for spec in (DRAFTERS[name], *DRAFTERS.values()))
    tree = ast.parse(inspect.getsource(importlib.import_module(own)))
    assert not {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} & {*others}


NEED_LITTLE = ("prediction", "memory", "grammar")
"""Who needs something that comes with requests; they are made of nothing all the same."""


@pytest.mark.parametrize("name", [*free(), *NEED_LITTLE])
def test_who_needs_nothing_is_made_of_nothing(name):
    assert isinstance(make(name), Drafter)


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name not in (*free(), *NEED_LITTLE)])
def test_who_needs_something_says_what(name, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(
        InputError, match=r"drafter \w+ needs \w+; give it as|there is no index 'default'; .*augury index"
    ):
        make(name, tokenizer=None, vocab_size=10, slots=1, costs=lambda: None)


def test_free_are_those_without_a_need():
    assert free() == [name for name, spec in DRAFTERS.items() if spec.needs == ""]
    assert {"ngram", "suffix"} <= set(free())
    assert not {"prediction", "memory", "grammar"} & set(free())


def test_a_name_is_checked_without_importing_what_it_names():
    for spec in ("suffix", "ngram:min=2", "model", "no.such.module:Thing"):
        check(spec)
    with pytest.raises(UnknownName, match="did you mean 'suffix'"):
        check("sufix")


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ("self:int4,int8", "unknown drafter 'int8'.*write self:int4,NAME=int8, or .* drafters self:int4,self:int8"),
        ("ngram, self:int4,depth=3,int8", "self:int4,depth=3,NAME=int8, or .* drafters self:int4,depth=3,self:int8"),
        (f"{HERE}:3,4", f"unknown drafter '4'.*{HERE}:3,NAME=4, or for two drafters {HERE}:3,{HERE}:4"),
        ("model:smollm2-135m,sufix", "did you mean 'suffix'.*NAME=sufix"),
        ("suffix,sufix", "did you mean 'suffix'.* suffix$"),
        (f"{HERE},sufix", "did you mean 'suffix'.* suffix$"),
    ],
)
def test_what_may_have_been_an_option_in_a_list_says_how_it_is_written(specs, says):
    with pytest.raises(UnknownName, match=says) as caught:
        augury.load(drafters=specs)
    assert "\n" not in str(caught.value)


def test_lists_are_split_at_names_only():
    assert split("ngram:min=2,max=4, suffix") == ["ngram:min=2,max=4", "suffix"]
    assert split("a.b:C:x=1, y = 2,prediction") == ["a.b:C:x=1, y = 2", "prediction"]


def test_options_and_resources_reach_the_constructor():
    assert isinstance(make("ngram:min=2,max=2"), Ngram)
    assert make(f"{HERE}:depth=3,share=0.25,eager=yes,name=x", target=7).given == (7, 3, 0.25, True, "x")
    assert make(HERE, target=7, unasked=1).given == (7, 1, 0.5, False, "")
    assert make(f"{HERE}:eager=0", target=7).given[3] is False


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("sufix", UnknownName, "did you mean 'suffix'.*module:Class"),
        ("", UnknownName, "Valid"),
        ("ngram:maxx=3", UnknownName, "did you mean 'max'"),
        ("ngram:max=3,max=4", UnknownName, "'max'"),
        ("ngram:min=2,mx", UnknownName, "did you mean 'max'.* write ngram:min=2,NAME=mx, or .*ngram:min=2,ngram:mx"),
        ("self:int4,int8", UnknownName, "'int8'.*layers.* write self:int4,NAME=int8, or .* self:int4,self:int8"),
        (f"{HERE}:3,4", UnknownName, f"'4'.*share.* or for two drafters {HERE}:3,{HERE}:4"),
        ("ngram:max=many", InputError, "'many'; it must be a whole number"),
        ("ngram:max", InputError, "whole number"),
        ("ngram:min=5", InputError, "1 <= min <= max <= 32"),
        ("ngram:min=0", InputError, "1 <= min"),
        ("ngram:max=33", InputError, "1 <= min"),
        ("suffix:voters=0", InputError, "voters is 0"),
        ("suffix:shortest=-1", InputError, "shortest is -1"),
        (f"{HERE}:share=x,target=1", InputError, "it must be a number"),
        (f"{HERE}:eager=maybe,target=1", InputError, "true or false"),
        (HERE, InputError, "needs target"),
        ("augury.tree:DraftTree", InputError, "not a Drafter"),
        ("augury.tree:Nothing", InputError, "cannot be imported"),
        ("no.such.module:Thing", InputError, "cannot be imported"),
        ("..:Thing", InputError, "cannot be imported"),
    ],
)
def test_what_cannot_be_made_says_why_in_one_line(spec, error, says):
    with pytest.raises(error, match=says) as caught:
        make(spec)
    assert "\n" not in str(caught.value)


def test_nothing_is_imported_until_it_is_named():
    code = "import sys, augury.drafters; print([m for m in sys.modules if m.startswith(('numpy', 'augury.d'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "['augury.drafters']"


def test_an_option_without_a_value_is_refused():
    with pytest.raises(InputError, match="min has no value; give it as ngram:min=VALUE"):
        make("ngram:min=")
