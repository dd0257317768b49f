"""An engine on its own thread: whoever was taken gets exactly one ending, and nobody waits for ever."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from augury.conformance.toys import Half, ToyTarget
from augury.engine.engine import Engine
from augury.engine.request import Chunk
from augury.engine.service import HOPELESS, Ending, Room, Service
from augury.errors import InputError, ModelError, Overloaded, Stopping, TooLate
from augury.sampling import Sampling

V = 12
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def made(slots=2, target=None, room=None, watch=None, drafters=()):
    one = Engine(target or ToyTarget(V, slots=slots, context=512), drafters, slots=slots)
    return Service(one, room, watch)


def alone(prompt, n, **options):
    with Engine(ToyTarget(V, context=512)) as one:
        return one.generate(prompt, max_tokens=n, **options).tokens


class Held(ToyTarget):
    """A toy whose forwards wait until they are let go."""

    def __init__(self, slots=1):
        super().__init__(V, slots=slots, context=512)
        self.go, self.at = threading.Semaphore(0), threading.Semaphore(0)
        self.free = False

    def verify(self, slots, roots, trees):
        self.at.release()
        if not self.free:
            assert self.go.acquire(timeout=20)
        return super().verify(slots, roots, trees)

    def let_go(self):
        self.free = True
        self.go.release(10_000)


class Heard:
    """What one caller was told."""

    def __init__(self):
        self.events, self.over = [], threading.Event()

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, Ending):
            self.over.set()

    def wait(self):
        assert self.over.wait(20), "no ending came"
        assert [type(e) for e in self.events].count(Ending) == 1
        assert isinstance(self.events[-1], Ending)
        return self.events[-1]

    @property
    def tokens(self):
        return tuple(t for e in self.events if isinstance(e, Chunk) for t in e.tokens)


def ask(service, prompt=PROMPT, n=8, **how):
    heard = Heard()
    ticket = service.submit(service.engine.request(prompt, max_tokens=n), heard, **how)
    return heard, ticket


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("drafted", [False, True])
def test_everybody_gets_the_answer_that_he_would_have_had_alone(slots, drafted):
    prompts = [np.random.default_rng(i).integers(0, V, 5 + i).tolist() for i in range(9)]
    drafters = [("half", Half(alone(prompts[0], 40), 4, range(9), V))] if drafted else []
    with made(slots, drafters=drafters) as service:
        heard = [ask(service, p, 5 + i)[0] for i, p in enumerate(prompts)]
        endings = [h.wait() for h in heard]
    assert [e.finish for e in endings] == ["length"] * 9
    assert [h.tokens for h in heard] == [alone(p, 5 + i) for i, p in enumerate(prompts)]


def test_an_answer_of_no_tokens_ends():
    with made() as service:
        heard, ticket = ask(service, n=0)
        assert heard.wait() == Ending("length")
    assert heard.events == [Ending("length")]
    assert ticket.first is None
    assert ticket.arrived <= ticket.admitted <= ticket.ended


def test_times_are_told_in_order():
    with made() as service:
        heard, ticket = ask(service)
        heard.wait()
    assert ticket.arrived <= ticket.admitted <= ticket.first <= ticket.last <= ticket.ended


def test_the_queue_is_bounded_and_says_so():
    target = Held()
    with made(1, target, Room(requests=2, tokens=1000)) as service:
        running = ask(service)[0]
        assert target.at.acquire(timeout=20)
        waiting = [ask(service)[0] for _ in range(2)]
        assert (service.running, service.waiting) == (1, 2)
        with pytest.raises(Overloaded, match="2 requests wait, which is the limit"):
            ask(service)
        with pytest.raises(Overloaded):
            service.check()
        target.let_go()
        assert [h.wait().finish for h in (running, *waiting)] == ["length"] * 3
        ask(service)[0].wait()
        assert (service.running, service.waiting) == (0, 0)


def test_the_tokens_that_wait_are_bounded_too():
    target = Held()
    with made(1, target, Room(requests=9, tokens=20)) as service:
        heard = [ask(service)[0]]
        assert target.at.acquire(timeout=20)
        heard.append(ask(service, PROMPT * 8)[0])  # alone it may be longer than the limit
        with pytest.raises(Overloaded, match="20 tokens of prompts may wait, and 72 would"):
            ask(service)
        target.let_go()
        for one in heard:
            one.wait()
        ask(service)[0].wait()


def test_the_urgent_come_first_and_then_the_oldest():
    target, order = Held(), []
    with made(1, target) as service:
        first = ask(service)[0]
        assert target.at.acquire(timeout=20)
        heard = {}
        for name, priority in (("late", 5), ("a", 0), ("b", 0), ("urgent", -1)):
            request = service.engine.request(PROMPT, max_tokens=1)
            heard[name] = Heard()

            def deliver(event, name=name):
                if isinstance(event, Ending):
                    order.append(name)
                heard[name](event)

            service.submit(request, deliver, priority=priority)
        target.let_go()
        for one in (first, *heard.values()):
            one.wait()
    assert order == ["urgent", "a", "b", "late"]


def test_who_is_cancelled_leaves_before_the_next_step_running_or_waiting():
    target = Held(2)
    with made(1, target) as service:
        gone, ticket = ask(service, n=100)
        stays = ask(service)[0]
        waits, other = ask(service)
        assert target.at.acquire(timeout=20)
        service.cancel(ticket)
        service.cancel(other)
        service.cancel(other)
        target.let_go()
        assert [h.wait().finish for h in (gone, waits)] == ["cancelled"] * 2
        assert stays.wait() == Ending("length")
        assert len(gone.tokens) <= 1
        assert stays.tokens == alone(PROMPT, 8)
        service.cancel(ticket)  # too late, and nothing happens
    assert ticket.request.record.finish == "cancelled"


def test_time_runs_out_in_the_queue_and_in_a_slot():
    target = Held()
    with made(1, target) as service:
        runs = ask(service, n=100, seconds=0.05)[0]
        waits = ask(service, n=100, seconds=0.05)[0]
        assert target.at.acquire(timeout=20)
        time.sleep(0.1)
        target.let_go()
        said = [h.wait() for h in (runs, waits)]
        assert all(isinstance(e.error, TooLate) for e in said)
        assert "ran when its time was over" in str(said[0].error)
        assert "waited for a slot when its time was over" in str(said[1].error)
        assert ask(service)[0].wait() == Ending("length")


def test_stopping_lets_who_is_here_end():
    target = Held()
    service = made(1, target)
    heard = [ask(service)[0] for _ in range(3)]
    assert target.at.acquire(timeout=20)
    stopper = threading.Thread(target=service.stop, args=(20.0,))
    stopper.start()
    while not service.stopping:
        time.sleep(0.001)
    with pytest.raises(Stopping):
        ask(service)
    target.let_go()
    stopper.join(20)
    assert [h.wait() for h in heard] == [Ending("length")] * 3
    assert not stopper.is_alive()
    assert target._cells == {}, "every slot was given back"


def test_who_is_not_ready_when_the_time_is_over_is_told():
    target = Held()
    service = made(1, target)
    runs, waits = ask(service, n=400)[0], ask(service)[0]
    assert target.at.acquire(timeout=20)
    threading.Timer(0.2, target.let_go).start()
    assert service.stop(0.05)
    assert all(isinstance(h.wait().error, Stopping) for h in (runs, waits))
    assert service.stop(), "again does nothing"


class Broken(ToyTarget):
    """A toy whose logits are no numbers behind one token, or whose forward fails."""

    raises = False

    def verify(self, slots, roots, trees):
        if self.raises and 7 in roots:
            raise RuntimeError("the forward failed")
        rows = super().verify(slots, roots, trees)
        for root, logits in zip(roots, rows.logits, strict=True):
            if root == 7:
                logits[:] = np.nan
        return rows


def test_logits_that_are_no_numbers_end_their_own_request_only():
    with made(3, Broken(V, slots=3, context=512)) as service:
        heard = [ask(service, p, 1)[0] for p in ([1, 2], [3, 7], [2, 1])]
        good, bad, fine = (h.wait() for h in heard)
        assert (good.finish, bad.finish, fine.finish) == ("length", "error", "length")
        assert isinstance(bad.error, ModelError)
        assert heard[0].tokens == alone([1, 2], 1)
        assert service.fault is None


def test_a_forward_that_fails_ends_who_shared_it_and_the_next_are_served():
    target = Broken(V, slots=2, context=512)
    target.raises = True
    with made(2, target) as service:
        assert ask(service, [3, 7])[0].wait().finish == "error"
        assert service.fault is None
        heard = ask(service, [1, 2], 1)[0]
        assert heard.wait() == Ending("length")
        assert heard.tokens == alone([1, 2], 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_says_so_and_leaves_nobody_waiting(monkeypatch):
    service = made()
    monkeypatch.setattr(service.engine, "turn", lambda: (_ for _ in ()).throw(SystemExit()))
    heard = ask(service)[0]
    assert heard.wait().finish == "error"
    service._thread.join(20)
    assert service.fault == "the engine's thread ended: SystemExit"
    with pytest.raises(Stopping):
        ask(service)


def test_a_turn_that_hangs_is_seen():
    target = Held()
    with made(1, target) as service:
        assert service.stalled == 0.0
        heard = ask(service)[0]
        assert target.at.acquire(timeout=20)
        time.sleep(0.05)
        assert service.stalled > 0.04
        target.let_go()
        heard.wait()


class Noting:
    """A watch that keeps what it is told, and fails at it."""

    def __init__(self):
        self.said = []

    def refused(self, reason):
        self.said.append(("refused", reason))
        raise RuntimeError("lost")

    def brought(self, ticket, chunk, ms):
        self.said.append(("brought", ticket.request.number, len(chunk.tokens), ms >= 0.0))
        raise RuntimeError("lost")

    def left(self, ticket):
        self.said.append(("left", ticket.request.number, ticket.ending.finish))
        raise RuntimeError("lost")


def test_a_watch_is_told_everything_and_may_fail():
    watch = Noting()
    service = made(1, watch=watch)
    heard, ticket = ask(service)
    heard.wait()
    service.stop()
    with pytest.raises(Stopping):
        ask(service)
    number = ticket.request.number
    brought = [("brought", number, len(e.tokens), True) for e in heard.events if isinstance(e, Chunk)]
    assert watch.said == [*brought, ("left", number, "length"), ("refused", "stopping")]


def test_a_caller_who_fails_to_listen_hurts_nobody():
    def deaf(event):
        raise RuntimeError("not listening")

    with made(2) as service:
        service.submit(service.engine.request(PROMPT, max_tokens=8), deaf)
        heard = ask(service)[0]
        assert heard.wait() == Ending("length")
    assert heard.tokens == alone(PROMPT, 8)


def test_many_threads_at_once():
    """Submitting, cancelling and stopping at random: one ending each, all slots back."""
    service = made(3, room=Room(requests=40))
    heard, lock = [], threading.Lock()

    def caller(seed):
        rng = np.random.default_rng(seed)
        for _ in range(25):
            try:
                one, ticket = ask(service, rng.integers(0, V, 6).tolist(), int(rng.integers(0, 12)))
            except (Overloaded, Stopping):
                continue
            with lock:
                heard.append(one)
            if rng.random() < 0.3:
                service.cancel(ticket)
            if rng.random() < 0.2:
                time.sleep(0.001)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert service.stop(30)
    assert heard
    assert {h.wait().finish for h in heard} <= {"length", "cancelled"}
    assert service.engine.target._cells == {}


def test_a_seed_gives_the_same_text_in_any_company():
    sampling = Sampling(temperature=1.0, seed=5)
    wanted = alone(PROMPT, 20, sampling=sampling)
    with made(3) as service:
        heard = Heard()
        for i in range(5):
            ask(service, [i, 2, 3], 15)
        service.submit(service.engine.request(PROMPT, sampling, max_tokens=20), heard)
        heard.wait()
    assert heard.tokens == wanted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_forwards_that_fail_for_good_are_a_fault():
    target = Broken(V, slots=1, context=512)
    target.raises = True
    service = made(1, target)
    for failed in range(HOPELESS):
        assert service.fault is None, f"after {failed}"
        assert ask(service, [3, 7])[0].wait().finish == "error"
    service._thread.join(20)
    assert service.fault == "the engine's thread ended: RuntimeError"


def test_a_forward_that_works_again_is_forgiven():
    target = Broken(V, slots=1, context=512)
    target.raises = True
    with made(1, target) as service:
        for _ in range(2 * HOPELESS):
            ask(service, [3, 7])[0].wait()
            assert ask(service, [1, 2], 1)[0].wait() == Ending("length")
        assert service.fault is None


def together(service, *prompts, n=8):
    heard = [Heard() for _ in prompts]
    asked = [(service.engine.request(p, max_tokens=n), h) for p, h in zip(prompts, heard, strict=True)]
    service.submit_all(asked)
    return heard


def test_several_are_taken_together_or_none_of_them():
    target = Held(2)
    with made(2, target, Room(requests=3, tokens=1000)) as service:
        running = together(service, PROMPT, PROMPT)
        assert target.at.acquire(timeout=20)
        waiting = together(service, PROMPT, PROMPT)
        with pytest.raises(Overloaded, match="2 requests wait, which is below the limit of 3, and 2 more would"):
            together(service, PROMPT, PROMPT)
        assert (service.running, service.waiting) == (2, 2)
        target.let_go()
        assert [h.wait() for h in (*running, *waiting)] == [Ending("length")] * 4
        assert [h.wait() for h in together(service, *[PROMPT] * 5)] == [Ending("length")] * 5


@pytest.mark.parametrize(
    ("prompts", "said"),
    [([PROMPT] * 6, "6 answers .* 2 run, and 3 with 20 tokens may wait"), ([PROMPT] * 5, "prompts of 40 tokens")],
)
def test_what_will_never_fit_is_a_mistake_and_not_asked_again(prompts, said):
    watch = Noting()
    with made(2, room=Room(requests=3, tokens=20), watch=watch) as service:
        with pytest.raises(InputError, match=said):
            together(service, *prompts)
        assert watch.said == []
        assert [h.wait() for h in together(service, PROMPT, PROMPT, PROMPT * 9)] == [Ending("length")] * 3
        assert [h.wait() for h in together(service, *[PROMPT] * 4)] == [Ending("length")] * 4


def test_the_record_says_how_it_ended_where_no_step_was_made():
    target = Held()
    with made(1, target) as service:
        runs = ask(service)[0]
        assert target.at.acquire(timeout=20)
        late, gone = ask(service, seconds=0.0), ask(service)
        service.cancel(gone[1])
        target.let_go()
        nothing = ask(service, n=0)
        for heard in (runs, late[0], gone[0], nothing[0]):
            heard.wait()
    assert [one[1].request.record.finish for one in (late, gone, nothing)] == ["error", "cancelled", "length"]
