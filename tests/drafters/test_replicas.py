"""Several engines at once, each in a process of its own, that share what is learnt and what is indexed."""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager

import pytest
from corpus import Letters, built, written

from augury.conformance.toys import ToyTarget
from augury.datastore import answers, exchange, live
from augury.datastore.bucket import Bucket
from augury.datastore.change import add, remove
from augury.drafters import make
from augury.drafters.drafter import tenant_of
from augury.drafters.memory import MB, TENANTS, file_bytes
from augury.engine.engine import Engine

PROMPT = [1, 2, 3]
BYTES = file_bytes(MB)


def serve(spec, pipe):
    """An engine that answers until it is told to end: tokens, and how many of them were guessed."""
    live.EVERY_S = 0.0
    drafter = make(spec, tokenizer=Letters(), vocab_size=200)
    with Engine(ToyTarget(200, context=256), [(spec.partition(":")[0], drafter)]) as engine:
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            what, prompt, salt = asked
            if what == "forget":
                drafter.forget(salt)
                pipe.send(None)
            else:
                result = engine.generate(prompt, max_tokens=60, cache_salt=salt)
                pipe.send((list(result.tokens), result.record.accepted))


class Replica:
    """An engine in another process."""

    def __init__(self, pipe):
        self._pipe = pipe
        assert pipe.recv() == "ready"

    def ask(self, salt="", prompt=PROMPT):
        """Guessed tokens of an answer, which is the target's own."""
        self._pipe.send(("ask", prompt, salt))
        tokens, accepted = self._pipe.recv()
        assert tokens == plain(tuple(prompt))
        return accepted

    def forget(self, salt=""):
        self._pipe.send(("forget", None, salt))
        assert self._pipe.recv() is None


def plain(prompt):
    with Engine(ToyTarget(200, context=256), []) as engine:
        return list(engine.generate(list(prompt), max_tokens=60).tokens)


@contextmanager
def replicas(*specs):
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in specs]
    processes = [
        context.Process(target=serve, args=(spec, there)) for spec, (_, there) in zip(specs, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        yield [Replica(here) for here, _ in pipes]
        for here, _ in pipes:
            here.send(None)
        for process in processes:
            process.join(30)
        assert [process.exitcode for process in processes] == [0] * len(specs)
    finally:
        for process in processes:
            process.kill()


def test_what_one_learnt_the_other_guesses_at_that_tenant_s_next_request_and_forgets_with_it(tmp_path):
    spec = f"memory:{tmp_path / 'it'}"
    with replicas(spec, spec) as (one, two):
        other = [9, 8, 7]
        assert two.ask("a", other) < 15, "two has read the tenant"
        assert one.ask("a") < 15
        assert two.ask("a") > 30
        assert one.ask("a", other) > 30
        assert two.ask("b") < 15, "another tenant gets nothing of it"
        one.forget("a")
        assert two.ask("a") < 15
        assert one.ask("b") > 30
        answers.forget(tmp_path / "it", None)
        assert [replica.ask(salt) < 15 for replica, salt in ((one, "a"), (two, "b"))] == [True, True]
        found = {entry.tenant: entry.answers for entry in answers.entries(tmp_path / "it")}
    assert found == {tenant_of("a"): 1, tenant_of("b"): 1}


def test_replicas_without_a_common_disk_share_through_a_store(tmp_path):
    places = [tmp_path / "one", tmp_path / "two"]
    bucket = Bucket(f"file://{tmp_path}/store")
    with replicas(*(f"memory:{place}" for place in places)) as (one, two):
        assert two.ask("a", [9, 8, 7]) < 15
        assert one.ask("a") < 15
        exchange.push(places[0], bucket, BYTES)
        exchange.pull(places[1], bucket, BYTES, TENANTS)
        assert two.ask("a") > 30
        assert two.ask("b") < 15
        two.forget("a")
        exchange.push(places[1], bucket, BYTES)
        exchange.pull(places[0], bucket, BYTES, TENANTS)
        assert one.ask("a") < 15


@pytest.mark.parametrize("salt", ["", "a"])
def test_an_index_that_is_changed_while_engines_run_is_used_by_all(tmp_path, salt):
    """Of the answer itself, which toys spell in letters of their own."""
    place = tmp_path / "it"
    built(place, ["nothing of it"])
    spec = f"retrieval:{place}"
    with replicas(spec, spec) as engines:
        assert [engine.ask(salt) < 15 for engine in engines] == [True, True]
        text = "".join(map(chr, [*PROMPT, *plain(tuple(PROMPT))]))
        add(place, written(tmp_path / "more", [text]), Letters())
        assert [engine.ask(salt) > 30 for engine in engines] == [True, True]
        remove(place, [tmp_path / "more"])
        assert [engine.ask(salt) < 15 for engine in engines] == [True, True]
