"""Mistakes in the arguments of replicas are told before anything starts; metrics of several are one text."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from augury.engine.service import Service
from augury.errors import AuguryError, InputError, MissingPackage, UnknownName
from augury.integrations.ray_serve import application, build
from augury.integrations.ray_serve.application import ARGUMENTS, KEYS
from augury.integrations.ray_serve.exposition import merged
from augury.server.metrics import Metrics
from augury.server.settings import LOOPBACK, Settings

TWO_TEXTS = {
    "a": '# HELP x:y_total Of it.\n# TYPE x:y_total counter\nx:y_total{kind="k"} 2.0\n# TYPE x:z gauge\nx:z 1.0\n',
    "b": '# HELP x:y_total Of it.\n# TYPE x:y_total counter\nx:y_total{kind="k"} 5.0\n',
}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"replicas": 0}, "replicas is 0; it must be a whole number, 1 or more"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"replicas": True}, "replicas is True"),
        ({"drain_seconds": -1}, "drain_seconds is -1; it must be a number, 0 or more"),
        ({"gpus": "1"}, "gpus is '1'; it must be a number, 0 or more"),
        ({"model": 3}, "model is 3; give an embedded name, or a path"),
        ({"settings": {"names": ("small",)}}, "give a Settings(...)"),
        ({"room": 3}, "room is 3; give a Room(...)"),
        ({"acceptance": "coupld"}, "did you mean 'coupled'"),
        ({"dtype": "bf16"}, "did you mean 'bfloat16'"),
        ({"runner": 3}, "unknown runner '3'"),
        ({"max_model_len": 0}, "max_model_len is 0; it must be a whole number, 1 or more"),
        ({"draft_tokens": -1}, "draft_tokens is -1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"replica": 2}, "did you mean 'replicas'"),
        ({"drafters": "sufix"}, "did you mean 'suffix'"),
        ({"model": "smolm2-135m"}, "smollm2-135m"),
        ({"settings": Settings(page=True)}, "start augury serve"),
        ({"settings": Settings(requests_per_minute=3)}, "in front of the application"),
        ({"settings": Settings(stream_mode="quick")}, "unknown stream_mode 'quick'"),
        ({"settings": Settings(stream_mode="private"), "drafters": "memory"}, "exclude each other"),
    ],
)
def test_a_mistake_is_told(options, told):
    with pytest.raises(AuguryError) as raised:
        application(**options)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_words_of_the_command_line_are_read():
    with pytest.raises(UnknownName, match="did you mean 'replicas'"):
        build({"replica": "2"})
    with pytest.raises(InputError, match="replicas is 'two'; give a whole number"):
        build({"replicas": "two"})
    with pytest.raises(InputError, match="surge is 'perhaps'; give true or false"):
        build({"surge": "perhaps"})
    with pytest.raises(InputError, match="replicas is 0"):
        build({"replicas": "0"})


def test_what_is_called_a_setting_is_one():
    loads = {"drafters", "acceptance", "dtype", "device", "runner", "max_model_len", "max_num_seqs", "draft_tokens"}
    ours = {"surge", "model", "replicas", "threads", "gpus", "doors", "drain_seconds"}
    for name in set(ARGUMENTS) - loads - ours:
        replace(Settings(), **{name: getattr(Settings(), name)})


@pytest.fixture
def checked(monkeypatch) -> list[Settings]:
    """The settings that are looked at before anything is asked of Ray; there it ends."""
    seen: list[Settings] = []

    def check(settings, load):
        seen.append(settings)
        raise InputError("far enough")

    monkeypatch.setattr(sys.modules[build.__module__], "_check", check)
    return seen


@pytest.mark.parametrize(
    ("keys", "hosts", "answered"),
    [
        ((), (), LOOPBACK),
        ((), ("mine.example",), ("mine.example",)),
        ((), ("*",), ()),
        (("key",), (), ()),
        (("key",), ("mine.example",), ("mine.example",)),
        (("key",), ("*",), ()),
    ],
)
@pytest.mark.parametrize("way", ["words", "settings"])
def test_any_host_is_answered_with_keys_or_where_it_is_said(checked, monkeypatch, way, keys, hosts, answered):
    monkeypatch.setenv(KEYS, " ".join(keys))
    settings = Settings(names=("small",), api_keys=keys, hosts=hosts, local=False)
    words = {"hosts": ",".join(hosts)} if hosts else {}
    with pytest.raises(InputError, match="far enough"):
        _ = build(words) if way == "words" else application(settings=settings)
    assert [(one.hosts, one.api_keys) for one in checked] == [(answered, keys)]


@pytest.mark.parametrize("given", ["a.example,b.example", "a.example, b.example,", ["a.example", "b.example"]])
def test_lists_of_a_config_file_are_read_as_those_of_a_command(checked, given):
    """As in the ``args`` of Ray's own files."""
    with pytest.raises(InputError, match="far enough"):
        build({"hosts": given, "names": given})
    assert [(one.hosts, one.names) for one in checked] == [(("a.example", "b.example"),) * 2]
    with pytest.raises(UnknownName, match="did you mean 'suffix'"):
        build({"drafters": ["ngram:min=2,max=3", "sufix"]})
    with pytest.raises(InputError, match="names has no value; give one, or leave it out"):
        build({"names": None})


def test_without_settings_this_machines_names_alone_are_answered(checked):
    with pytest.raises(InputError, match="far enough"):
        application()
    assert [one.hosts for one in checked] == [LOOPBACK]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_command_that_installs_it_is_named():
    with pytest.raises(MissingPackage, match=r"pip install 'augury\[server\]' 'ray\[serve\]>=2.60'"):
        application()


def test_metrics_of_several_are_one_text_with_their_names():
    text = merged(TWO_TEXTS).decode()
    assert text.count("# TYPE x:y_total counter") == 1
    values = {(s.name, s.labels["replica"]): s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert values == {("x:y_total", "a"): 2.0, ("x:y_total", "b"): 5.0, ("x:z", "a"): 1.0}


def test_no_series_of_ours_is_lost_or_changed(engine):
    with Service(engine) as service:
        text = Metrics("m").exposition(service).decode()

    def values(text: str):
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}

    once, named = values(text), values(merged({"a": text}).decode())
    assert named == {(name, *sorted([*labels, ("replica", "a")])): value for (name, *labels), value in once.items()}
    assert len(once) > 100
