"""The plug-in for vLLM, without vLLM: its options, which vLLM it takes, and how counts get to another process."""

import errno
import gc
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import Literal

import numpy as np
import pytest
from augury_vllm import AuguryProposer, counts, fit
from augury_vllm.counts import Counts, Told, folder, named
from augury_vllm.options import Options
from augury_vllm.overhead import config

from augury.errors import InputError, ModelError
from augury.integrations.alongside import Alongside, Given, Measured


def of(**augury):
    return Options.of({"augury": augury})


def test_defaults_are_the_drafter_suffix_at_the_prices_of_the_device():
    for additional in ({}, {"augury": {}}, {"other": 1}, None):
        assert Options.of(additional) == Options.of(additional, "xpu") == Options(("suffix",), "given", 0.001, 256)
        assert Options.of(additional, "cpu") == Options(("suffix",), "measured", 0.05, 256)
    assert Options.of({"augury": {"prices": "given"}}, "cpu").row == 0.05
    assert Options.of({"augury": {"row": 0.2}}, "cpu") == Options(("suffix",), "measured", 0.2, 256)


@pytest.mark.parametrize(("device", "prices"), [("cpu", Measured), ("cuda", Given)])
def test_the_device_is_that_of_vllm(device, prices):
    made = AuguryProposer(config(5, 50, 64, 4, {}, device=device))
    assert isinstance(made._beside._prices, prices)


def test_drafters_are_a_list_or_a_comma_list():
    for given in ("suffix, ngram:min=2,max=3,memory", ["suffix", "ngram:min=2,max=3", "memory"]):
        assert of(drafters=given).drafters == ("suffix", "ngram:min=2,max=3", "memory")


@pytest.mark.parametrize(
    ("augury", "says"),
    [
        ({"drafter": "suffix"}, "unknown option of augury 'drafter'; did you mean 'drafters'"),
        ({"drafters": "sufix"}, "unknown drafter 'sufix'; did you mean 'suffix'"),
        ({"drafters": []}, r"drafters is \[\]"),
        ({"drafters": ""}, "drafters is ''|unknown drafter ''"),
        ({"drafters": [1]}, r"drafters is \[1\]"),
        ({"drafters": ["suffix", "suffix"]}, "suffix is named twice"),
        ({"drafters": [f"ngram:min={i}" for i in range(40)]}, "40 drafters; there may be up to 32"),
        ({"drafters": "auto"}, "name drafters, such as suffix,ngram"),
        ({"row": "0.1"}, "row is '0.1'; it must be a number"),
        ({"row": True}, "row is True"),
        ({"row": 2.0}, "row is 2.0"),
        ({"row": 10**400}, "row is inf; a row costs from 0 to 1"),
        ({"knee": 0}, "knee is 0; it must be from 1 to 4096 rows"),
        ({"knee": 10**9}, "knee is 1000000000; it must be from 1 to 4096 rows"),
        ({"knee": 10**5000}, "knee is .*; it must be from 1 to 4096 rows"),
        ({"knee": 1.5}, "knee is 1.5; it must be a whole number"),
        ({"prices": "free"}, "prices is 'free'; it must be given or measured"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_one_line(augury, says):
    with pytest.raises(InputError) as caught:
        of(**augury)
    assert re.search(says, str(caught.value))
    assert "\n" not in str(caught.value)


def test_options_that_are_no_object_are_refused():
    with pytest.raises(InputError, match="augury is 'suffix'; give an object"):
        Options.of({"augury": "suffix"})


@pytest.mark.parametrize(
    ("additional", "says"),
    [
        ({"drafters": "ngram"}, """has 'drafters'; write {"augury": {"drafters": "ngram"}}"""),
        ({"augury": {}, "row": 0.1}, """has 'row'; write {"augury": {"row": 0.1}}"""),
        ({"agury": {"row": 0.1}}, """has 'agury'; write {"augury": {...}}"""),
        ({"Augury": {}}, "has 'Augury'"),
        ({"augury_vllm": {}}, "has 'augury_vllm'"),
    ],
)
def test_options_in_another_place_are_refused(additional, says):
    with pytest.raises(InputError) as caught:
        Options.of(additional)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_of_others_are_theirs():
    assert Options.of({"augury": {}, "gdn_prefill_backend": "x", "ascend_scheduler_config": {}, 3: 4}) == Options()


@pytest.mark.parametrize("spec", ["eagle", "self", "grammar", "recycle"])
def test_drafters_that_need_a_target_of_ours_are_refused(spec):
    with pytest.raises(InputError, match=f"{spec} has no part in another engine"):
        AuguryProposer(config(5, 50, 64, 4, {"drafters": spec}))


def test_an_index_needs_the_tokenizer_of_the_target():
    with pytest.raises(InputError, match=r"drafter retrieval:mine needs the target's tokenizer.json"):
        AuguryProposer(config(5, 50, 64, 4, {"drafters": "retrieval:mine"}))


@pytest.mark.parametrize("spec", ["model:smollm2-135m", "foreign:smollm2-135m"])
def test_drafters_with_a_cache_for_every_text_are_refused(spec):
    with pytest.raises(InputError, match=f"drafter {spec} keeps a cache for every text, .*: memory, ngram") as caught:
        AuguryProposer(config(5, 50, 64, 4, {"drafters": ["suffix", spec]}))
    assert "\n" not in str(caught.value)


def test_a_memory_on_disk_needs_the_tokenizer_and_one_without_does_not(tmp_path):
    AuguryProposer(config(5, 50, 64, 4, {"drafters": "memory:mb=4"}))
    for spec in (f"memory:{tmp_path}", f"memory:mb=4,path={tmp_path}"):
        with pytest.raises(InputError, match="answers are kept by tokenizer, and here is none"):
            AuguryProposer(config(5, 50, 64, 4, {"drafters": [spec]}))


# ---- which vLLM ------------------------------------------------------------------------------------------------


def test_a_vllm_that_lacks_something_is_refused_with_what_was_tried():
    lacking = config(5, 50, 64, 4, {})
    del lacking.scheduler_config.max_num_seqs
    with pytest.raises(ModelError, match=r"tried with vLLM 0\.32\.0; this one .* has no scheduler_config.max_num_seqs"):
        AuguryProposer(lacking)


def test_asynchronous_scheduling_is_refused():
    early = config(5, 50, 64, 4, {})
    early.scheduler_config.async_scheduling = True
    with pytest.raises(ModelError, match="leave out --async-scheduling"):
        AuguryProposer(early)


def test_ranks_that_each_go_by_their_own_guesses_are_refused():
    launched = config(5, 50, 64, 4, {}, ranks=2)
    launched.parallel_config.distributed_executor_backend = "external_launcher"
    with pytest.raises(ModelError, match="let vLLM start the ranks, with --distributed-executor-backend mp or ray"):
        AuguryProposer(launched)
    alone = config(5, 50, 64, 4, {})
    alone.parallel_config.distributed_executor_backend = "external_launcher"
    assert AuguryProposer(alone).options.drafters == ("suffix",)


def test_another_way_to_call_is_refused():
    with pytest.raises(ModelError, match="calls propose with a int first"):
        AuguryProposer(config(5, 50, 64, 4, {})).propose(5, [[1]], None)


@pytest.mark.parametrize(("methods", "said"), [(("ngram", "custom_class"), 0), (("ngram",), 1), (None, 1)])
def test_a_vllm_without_such_proposers_is_announced(methods, said, monkeypatch, caplog):
    for name in ("vllm", "vllm.config", "vllm.config.speculative"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm"].__version__ = "0.9.1"
    if methods:
        sys.modules["vllm.config.speculative"].SpeculativeMethod = Literal[*methods, "eagle"]
    with caplog.at_level(logging.WARNING):
        fit.announce()
    assert len(caplog.records) == said
    if said:
        assert "tried with vLLM 0.32.0; this one (0.9.1) has no speculative method custom_class" in caplog.text


# ---- counts ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A temporary directory of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_counts_come_to_one_reader_once():
    counts = Counts(named("one", 0))
    told = Told(named("one", 0))
    counts.add(0, 5, 3)
    counts.add(2, 1, 0)
    drafted, accepted = told.take()
    assert (drafted[:3], accepted[:3]) == ([5, 0, 1], [3, 0, 0])
    counts.add(0, 2, 2)
    drafted, accepted = told.take()
    assert (drafted[:3], accepted[:3]) == ([2, 0, 0], [2, 0, 0])
    counts.close()


def test_only_this_user_can_see_them():
    counts = Counts(named("one", 0))
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    assert stat.S_IMODE(named("one", 0).stat().st_mode) == 0o600
    counts.close()
    assert not named("one", 0).exists()


def test_a_folder_that_others_can_enter_is_refused(elsewhere):
    path = elsewhere / f"augury-vllm-{os.getuid()}"
    path.mkdir(mode=0o755)
    with pytest.raises(ModelError, match="not a folder of this user's alone"):
        folder()
    path.rmdir()
    (elsewhere / "other").mkdir(mode=0o700)
    path.symlink_to(elsewhere / "other")
    with pytest.raises(ModelError, match="not a folder of this user's alone"):
        folder()


@pytest.mark.parametrize("instance", ["../up", "a/b", "", "x" * 65])
def test_an_instance_cannot_lead_elsewhere(instance):
    with pytest.raises(ModelError, match="cannot name a file"):
        named(instance, 0)


def test_another_kind_of_file_is_refused():
    named("one", 0).write_bytes(b"something else")
    with pytest.raises(ModelError, match="holds no counts"):
        Told(named("one", 0))


def test_without_a_place_for_counts_guesses_do_not_suffer(elsewhere, caplog):
    (elsewhere / f"augury-vllm-{os.getuid()}").write_text("in the way")
    made = AuguryProposer(config(5, 50, 64, 4, {}))
    assert made._counts is None
    assert "is not counted" in caplog.text


def test_what_is_mapped_has_its_place_on_the_disk(monkeypatch):
    """A hole in a file has none, and touching it on a full disk would end vLLM's process."""
    page, blocks = counts._Page, []

    def mapped(descriptor):
        blocks.append(os.fstat(descriptor).st_blocks)
        return page(descriptor)

    monkeypatch.setattr(counts, "_Page", mapped)
    Counts(named("one", 0)).close()
    assert blocks[0] * 512 >= counts._BYTES


@pytest.mark.parametrize("room", [0, 100])
def test_a_full_disk_costs_the_counts_and_not_the_engine(room, monkeypatch, caplog):
    write = os.write

    def full(descriptor, data):
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:room])

    monkeypatch.setattr(counts, "os", SimpleNamespace(**{**vars(os), "write": full}))
    made = AuguryProposer(config(5, 50, 64, 4, {}))
    assert made._counts is None
    assert "is not counted" in caplog.text
    assert "No space left" in caplog.text
    assert not list(folder().iterdir())


READER = """
import sys
from augury_vllm.counts import Told, named
told = Told(named("shared", 0))
for _ in sys.stdin:
    taken = told.take()
    print(taken and taken[0][0], flush=True)
"""


def child(code, *arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_of_several_readers_one_reports_and_the_next_goes_on_where_it_ended():
    counts = Counts(named("shared", 0))
    first, second = child(READER), child(READER)

    def asked(reader):
        reader.stdin.write("\n")
        reader.stdin.flush()
        return reader.stdout.readline()

    counts.add(0, 5, 1)
    assert (asked(first), asked(second)) == ("5\n", "None\n")
    first.communicate(timeout=30)
    counts.add(0, 2, 1)
    assert asked(second) == "2\n"
    second.communicate(timeout=30)
    counts.close()


WRITER = """
import sys
from augury_vllm import AuguryProposer
from augury_vllm.overhead import config
made = AuguryProposer(config(5, 50, 64, 4, {}, instance=sys.argv[1], ranks=int(sys.argv[2]), rank=int(sys.argv[3])))
print("ready", flush=True)
sys.stdin.readline()
"""


def test_files_end_with_their_processes():
    one, other = child(WRITER, "a", "1", "0"), child(WRITER, "b", "1", "0")
    assert one.stdout.readline() == other.stdout.readline() == "ready\n"
    assert {p.name for p in folder().iterdir()} == {"a-0", "b-0"}
    one.communicate("\n", timeout=30)
    assert {p.name for p in folder().iterdir()} == {"b-0"}
    other.send_signal(signal.SIGKILL)
    other.communicate(timeout=30)
    assert {p.name for p in folder().iterdir()} == {"b-0"}
    Counts(named("c", 0)).close()  # whoever comes next
    assert not list(folder().iterdir())


def test_an_engine_that_ends_before_its_process_leaves_nothing(monkeypatch):
    """As one of two in a process."""
    closed, close = [], Alongside.close
    monkeypatch.setattr(Alongside, "close", lambda self, text: (closed.append(text), close(self, text)))
    one, other = (AuguryProposer(config(5, 50, 64, 4, {"drafters": "memory"}, instance=name)) for name in "ab")
    tokens = np.tile(np.arange(8, dtype=np.int32), (4, 8))
    assert one.propose([[4]], np.array([5], np.int32), tokens) == [[]]
    del one
    gc.collect()
    assert len(closed) == 1, "what was answered last is not remembered"
    assert {path.name for path in folder().iterdir()} == {"b-0"}
    other._counts.close()
    other._counts.close()
    assert not list(folder().iterdir())


def test_a_process_that_was_forked_takes_nothing_along():
    counts = Counts(named("one", 0))
    if not (child := os.fork()):
        counts.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert named("one", 0).exists()
    counts.close()


def test_of_several_ranks_one_counts():
    ranks = [child(WRITER, "a", "2", str(rank)) for rank in range(2)]
    assert [rank.stdout.readline() for rank in ranks] == ["ready\n"] * 2
    assert {p.name for p in folder().iterdir()} == {"a-0"}
    for rank in reversed(ranks):
        rank.communicate("\n", timeout=30)


def test_engines_of_one_instance_count_apart():
    second = config(5, 50, 64, 4, {}, instance="both")
    second.parallel_config = SimpleNamespace(**{**vars(second.parallel_config), "data_parallel_index": 1})
    made = [AuguryProposer(config(5, 50, 64, 4, {}, instance="both")), AuguryProposer(second)]
    assert {p.name for p in folder().iterdir()} == {"both-0", "both-1"}
    for one in made:
        one._counts.close()
