"""``--config``: a file's names are the flags', and who says a thing more closely comes first."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from augury.cli import app
from augury.cli.configuration import configured


def read(path):
    """What the verb's parameters would be by this file alone."""
    command = typer.main.get_command(app).commands["serve"]
    context = command.make_context("serve", ["--config", str(path)])
    return context.params


@pytest.fixture
def write(tmp_path):
    def written(text, name="c.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def test_every_kind_of_value(write):
    found = read(write(
        "model: m\nport: 8123\nhost: '::1'\napi-key: [a, b]\nrequest_timeout: 1.5\nserved-model-name: one\n"
        "drafters: [suffix, prediction]\nenable-force-include-usage: true\nmax-model-len: null\n"
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 5\nkv-cache-memory-bytes: 2G\n"
    ))  # fmt: skip
    assert found["model"] == "m"
    assert found["port"] == 8123
    assert found["host"] == "::1"
    assert [*found["api_key"]] == ["a", "b"]
    assert found["request_timeout"] == 1.5
    assert [*found["served_model_name"]] == ["one"]
    assert found["drafters"] == "suffix,prediction"
    assert found["enable_force_include_usage"] is True
    assert found["max_model_len"] is None
    assert json.loads(found["speculative_config"]) == {"method": "ngram", "num_speculative_tokens": 5}
    assert found["kv_cache_memory_bytes"] == "2G"


def test_json_is_read_too(write):
    assert read(write('{"port": 5, "stream-mode": "fast"}', "c.json"))["port"] == 5
    assert read(write('{"port": 6}', "c"))["port"] == 6
    assert read(write("", "empty.yaml"))["port"] == 8000


def test_command_line_then_environment_then_file(write, monkeypatch):
    path = str(write("port: 5\napi-key: [file]\n"))
    command = typer.main.get_command(app).commands["serve"]
    assert command.make_context("serve", ["--config", path, "--port", "6"]).params["port"] == 6
    assert [*command.make_context("serve", ["--port", "6", "--config", path]).params["api_key"]] == ["file"]
    monkeypatch.setenv("AUGURY_API_KEY", "environment")
    assert [*command.make_context("serve", ["--config", path]).params["api_key"]] == ["environment"]
    given = command.make_context("serve", ["--config", path, "--api-key", "line"])
    assert [*given.params["api_key"]] == ["line"]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("prot: 1", "c.yaml", "unknown name in {path} 'prot'; did you mean 'port'"),
        ("config: other.yaml", "c.yaml", "unknown name in {path} 'config'"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "c.yaml", "{path} names max_num_seqs twice"),
        ("port: 1\nport: 2", "c.yaml", "{path} names port twice"),
        ('{"port": 1, "port": 2}', "c.json", "{path} names port twice"),
        ('{"speculative-config": {"method": "ngram", "method": "suffix"}}', "c.json", "{path} names method twice"),
        ("api-key:\n  -", "c.yaml", "{path}: api-key has None, which is no text; write it in quotes"),
        ("api-key: [a, [b]]", "c.yaml", "{path}: api-key has ['b'], which is no text"),
        ("api-key: {a: b}", "c.yaml", "{path}: api-key has {{'a': 'b'}}, which is no text"),
        ("api-key: 0755", "c.yaml", "{path}: api-key has 493, which is no text; write it in quotes"),
        ("api-key: 'k '", "c.yaml", "--api-key begins or ends with white space"),
        ("served-model-name: 1.10", "c.yaml", "{path}: served-model-name has 1.1, which is no text"),
        ("drafters: [suffix, null]", "c.yaml", "{path}: drafters has None, which is no text"),
        ("- port", "c.yaml", "must be a mapping of flags without their dashes"),
        ("port: [", "c.yaml", "{path} is not YAML"),
        ("{", "c.json", "{path} is not JSON"),
        ("port: true", "c.yaml", "{path}: port is True; it needs a value, not true or false"),
        ("enable-force-include-usage: 3", "c.yaml", "{path}: enable-force-include-usage is 3; it needs true or false"),
        ("api-key: true", "c.yaml", "{path}: api-key is True; it needs a value"),
        ("speculative-config: {method: ngrm}", "c.yaml", "did you mean 'ngram'"),
    ],
)
def test_what_is_wrong_is_one_line(write, text, name, said, nothing_loaded):
    path = write(text, name)
    done = CliRunner().invoke(app, ["serve", "--config", str(path)])
    assert done.exit_code == 2
    assert done.stderr.startswith("augury: ")
    assert done.stderr.count("\n") == 1
    assert said.format(path=path) in done.stderr


def test_yaml_needs_its_package_and_json_does_not(write, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "yaml" else find(name))
    done = CliRunner().invoke(app, ["serve", "--config", str(write("port: 1"))])
    assert done.exit_code == 2
    assert "needs the package pyyaml" in done.stderr
    assert read(write('{"port": 5}', "c.json"))["port"] == 5


def test_without_a_file_nothing_changes():
    assert configured(None, None) is None
