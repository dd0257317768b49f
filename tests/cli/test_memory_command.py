"""``augury memory`` and ``--cache-salt``: what is listed, deleted and refused, and that no secret is shown."""

from __future__ import annotations

import json
import os

import pytest
from corpus import Letters
from typer.testing import CliRunner

import augury
from augury.cli import app
from augury.conformance.toys import ToyTarget
from augury.datastore.records import HEADER_BYTES
from augury.drafters import make
from augury.drafters.drafter import tenant_of
from augury.engine.engine import Engine

SECRET = "hush-hush"


def ran(*args, code=0, **more):
    done = CliRunner().invoke(app, [*map(str, args)], **more)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    assert SECRET not in done.output
    if code == 2:
        assert done.stdout == ""
        assert done.stderr.startswith("augury: ")
        assert done.stderr.count("\n") == 1
    return done


class Talk:
    """A chat template that is none."""

    def encode(self, tokenizer, messages, add_generation_prompt=True):
        return tokenizer.encode(" ".join(message["content"] for message in messages))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory of answers; whatever is loaded is a toy that remembers there."""

    def load(model, drafters, **_):
        memory = make(drafters, tokenizer=Letters(), vocab_size=200)
        return Engine(ToyTarget(200), [("memory", memory)], tokenizer=Letters(), template=Talk())

    monkeypatch.setattr(augury, "load", load)
    return tmp_path / "it"


def generate(place, *args, **more):
    return ran("generate", "hello", "--max-tokens", 40, "--drafters", f"memory:{place}", *args, **more)


def test_the_life_of_a_memory(place):
    plain = generate(place).stdout
    assert generate(place, "--cache-salt", SECRET).stdout == plain
    generate(place, "--raw", env={"AUGURY_CACHE_SALT": SECRET})
    listed = ran("memory", "list", place).stdout.splitlines()
    assert listed[0].startswith(f"user {tenant_of(SECRET)[:12]}: 1 answers, 45 tokens, 0.00 MB, used 20")
    assert listed[1].startswith("the local user: 1 answers, 45 tokens")
    assert listed[2] == f"2 in {place}"
    assert ran("memory", "forget", place, "--cache-salt", "another").stdout == "nothing was kept\n"
    assert ran("memory", "forget", place).stdout.startswith("forgot ")
    assert len(ran("memory", "list", place).stdout.splitlines()) == 2
    ran("memory", "forget", place, env={"AUGURY_CACHE_SALT": SECRET})
    generate(place)
    generate(place, "--cache-salt", SECRET)
    ran("memory", "forget", place, "--all")
    assert ran("memory", "list", place).stdout == f"0 in {place}\n"
    assert os.listdir(place) == ["augury-memory.lock"]


def test_all_are_forgotten_whoever_the_environment_stands_for(place):
    generate(place)
    generate(place, "--cache-salt", SECRET)
    said = ran("memory", "forget", place, "--all", env={"AUGURY_CACHE_SALT": "another"}).stdout
    assert said.startswith("forgot ")
    assert ran("memory", "list", place).stdout == f"0 in {place}\n"


def test_a_memory_goes_through_a_store_and_is_forgotten_there(place, tmp_path):
    store, other = f"file://{tmp_path}/store", tmp_path / "other"
    generate(place, "--cache-salt", SECRET)
    generate(place)
    assert ran("memory", "push", place, store).stdout.startswith("sent 2 answers of 2 users, forgot 0 users, ")
    assert ran("memory", "pull", other, store).stdout.startswith("took up 2 answers of 2 users, forgot 0 users, ")
    assert "memory" in json.loads(generate(other, "--json", "--cache-salt", SECRET).stdout)["drafters"]
    assert ran("memory", "push", other, store).stdout.startswith("sent 0 answers of 0 users")
    ran("memory", "forget", other, "--cache-salt", SECRET)
    ran("memory", "push", other, store)
    assert ran("memory", "pull", place, store).stdout.startswith("took up 0 answers of 0 users, forgot 1 users, ")
    assert len(ran("memory", "list", place).stdout.splitlines()) == 2
    assert SECRET not in " ".join(str(path) for path in (tmp_path / "store").rglob("*"))
    (found,) = (tmp_path / "store" / "answers").iterdir()
    assert found.name.startswith(tenant_of(""))
    found.write_bytes(found.read_bytes()[:-1])
    done = ran("memory", "pull", tmp_path / "third", store)
    assert done.stderr.startswith(f"augury: {found.name} is damaged: its checksum is wrong")


def test_what_was_remembered_is_drafted_for_the_same_user_only(place):
    generate(place, "--cache-salt", SECRET)
    for args, known in ((["--cache-salt", SECRET], True), ([], False)):
        assert ("memory" in json.loads(generate(place, "--json", *args).stdout)["drafters"]) == known


def test_a_chat_remembers_for_whom_it_is(place):
    for _ in range(2):
        ran("chat", "--max-tokens", 30, "--drafters", f"memory:{place}", "--cache-salt", SECRET, input="hello\n")
    (listed, _) = ran("memory", "list", place).stdout.splitlines()
    assert listed.startswith(f"user {tenant_of(SECRET)[:12]}: 1 answers")


def test_damage_is_listed(place):
    generate(place)
    (path,) = place.glob("*.young")
    path.write_bytes(path.read_bytes()[:-1])
    listed = ran("memory", "list", place).stdout.splitlines()
    assert listed[0].startswith("the local user: 0 answers")
    assert listed[1] == f"  {path.name} is damaged behind byte {HEADER_BYTES} of {path.stat().st_size}"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["memory", "list", "{}/nowhere"], "there are no remembered answers at"),
        (["memory", "forget", "{}/nowhere"], "there are no remembered answers at"),
        (["memory", "list", "{}"], "is a directory of other files"),
        (["memory", "push", "{}/nowhere", "file://{}/store"], "there are no remembered answers at"),
        (["memory", "push", "{}/it", "{}/store"], "is no address of an object store"),
        (["memory", "pull", "{}", "file://{}/store"], "is a directory of other files"),
        (["memory", "pull", "{}/it", "nosuch://store"], "unknown protocol 'nosuch'"),
        (["memory", "forget", "{}/file"], "is no directory"),
        (["memory", "forget", "{}/it", "--all", "--cache-salt", SECRET], "--all forgets every user"),
        (["memory", "forget", "{}/it", "--cache-salt", SECRET * 200], "cache_salt has 1800 characters"),
        (["generate", "hello", "--cache-salt", SECRET * 200], "cache_salt has 1800 characters"),
        (["chat", "--cache-salt", SECRET * 200], "cache_salt has 1800 characters"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_and_exit_code_2(place, tmp_path, args, said):
    generate(place)
    (tmp_path / "file").write_text("mine")
    assert said in ran(*[arg.replace("{}", str(tmp_path)) for arg in args], code=2).stderr
    assert len(os.listdir(place)) == 2


def test_help_says_what_every_flag_means():
    for verb in ("list", "forget", "push", "pull"):
        done = CliRunner().invoke(app, ["memory", verb, "--help"], env={"COLUMNS": "200"})
        assert done.exit_code == 0
        for row in (r for r in done.stdout.splitlines() if r.startswith("│ --")):
            assert len(row.strip(" │").split("  ")) > 1, f"{verb}: {row}"
