"""Who is let in, when, and who leaves: nobody waits for ever, and nobody pays for somebody else's failure."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

from augury.conformance.toys import Empty, ToyTarget, oracle
from augury.drafters.drafter import Drafter
from augury.engine import engine as engine_module
from augury.engine.engine import Engine
from augury.errors import AuguryError, InputError
from augury.sampling import Sampling

V = 5
PROMPT = [1, 2, 3, 1]


def engine(drafters=(), target=None, **options):
    return Engine(target or ToyTarget(V), [(f"d{i}", d) for i, d in enumerate(drafters)], **options)


with engine() as plain:
    ANSWER = plain.generate(PROMPT, max_tokens=64).tokens


def tokens(chunks):
    return tuple(t for chunk in chunks for t in chunk.tokens)


def within(seconds, work):
    """What ``work`` gives or raises; fails if it is not back in time."""
    box = []

    def run():
        try:
            box.append(work())
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert box, "it is still at it"
    return box[0]


@pytest.mark.parametrize("slots", [0, -1, 1.5, True, "2"])
def test_slots_must_be_a_number_of_them(slots):
    with pytest.raises(InputError, match="slots is"):
        engine(slots=slots)


def test_more_slots_than_the_target_has_are_refused_at_once():
    with pytest.raises(InputError, match=r"slots is 3, and the target can open 2 now: all 2 slots are taken"):
        engine(target=ToyTarget(V, slots=2), slots=3)
    target = ToyTarget(V, slots=2)
    engine(target=target, slots=2)
    assert not target._cells, "asking does not take them"


def test_a_slot_that_cannot_be_had_ends_its_own_request_only():
    target = ToyTarget(V, slots=2)
    one = engine(target=target, slots=2)
    stream = one.stream(PROMPT, max_tokens=12)
    first = next(stream)
    target.open = lambda: 1 / 0
    failed = within(10, lambda: one.generate([2, 2], max_tokens=3))
    assert isinstance(failed, ZeroDivisionError)
    assert tokens([first, *stream]) == ANSWER[:12]


def test_a_slot_that_cannot_be_rolled_back_is_not_used_again():
    target = ToyTarget(V, slots=2)
    one = engine(target=target, slots=1)
    one.generate(PROMPT, max_tokens=8)
    truncate = target.truncate
    target.truncate = lambda *a: 1 / 0
    with pytest.raises(ZeroDivisionError):
        one.generate(PROMPT, max_tokens=8)
    target.truncate = truncate
    assert one._slots.free == 1
    assert one.generate(PROMPT, max_tokens=8).tokens == ANSWER[:8]


def test_a_request_that_got_lost_is_an_error_and_no_endless_loop():
    one = engine()
    one._admit = one._waiting.clear
    lost = within(10, lambda: one.generate(PROMPT, max_tokens=3))
    assert isinstance(lost, AuguryError)
    assert "nothing runs" in str(lost)


class Closes(Drafter):
    """Closes a stream in the middle of a step."""

    def __init__(self, when):
        self.when, self.victim, self.seen = when, None, []

    def _close(self):
        if self.victim is not None:
            victim, self.victim = self.victim, None
            victim.close()

    def propose(self, view, limit):
        if self.when == "propose":
            self._close()
        return Empty.propose(self, view, limit)

    def observe(self, view, seen):
        if self.when == "observe":
            self._close()

    def close(self, view):
        self.seen.append(view.id)


@pytest.mark.parametrize("when", ["propose", "observe"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stream_closed_in_the_middle_of_a_step_leaves_behind_it(when, victim):
    drafter = Closes(when)
    one = engine([drafter], slots=3)
    streams = [one.stream(PROMPT, max_tokens=12) for _ in range(3)]
    got = [list(next(stream).tokens) for stream in streams]
    drafter.victim = streams[victim]
    while (chunk := next(streams[2], None)) is not None:
        got[2] += chunk.tokens
    other = 1 - victim
    assert tuple(got[2]) == ANSWER[:12]
    assert (*got[other], *tokens(streams[other])) == ANSWER[:12]
    assert sorted(drafter.seen) == [1, 2, 3], "each is closed once"
    assert one._slots.free == 3
    assert not one._running
    for slot, held in one._slots._idle.items():
        assert one.target.length(slot) == len(held)
    assert one.generate(PROMPT, max_tokens=12).tokens == ANSWER[:12]


def test_a_stream_forgotten_in_a_ring_is_collected_in_a_step():
    target = ToyTarget(V, slots=2)
    one = engine(target=target, slots=2)
    ring = [one.stream(PROMPT, max_tokens=12)]
    next(ring[0])
    ring.append(ring)
    del ring
    verify = target.verify

    def collects(*args):
        gc.collect()
        return verify(*args)

    target.verify = collects
    assert one.generate(PROMPT, max_tokens=12).tokens == ANSWER[:12]
    assert one._slots.free == 2
    assert not one._running


def test_a_drafter_may_not_call_the_engine_back():
    class Calls(Empty):
        def propose(self, view, limit):
            one.generate([2], max_tokens=1)

        def observe(self, view, seen):
            one.close()

    one = engine([Calls()], slots=2)
    result = one.generate(PROMPT, max_tokens=6)
    assert result.tokens == ANSWER[:6]
    assert "within one of its own steps" in result.record.steps[0].proposals[0].fault


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", 8)
    monkeypatch.setattr(engine_module, "PREFILL_BESIDE", 8)


@pytest.mark.usefixtures("small_chunks")
def test_a_running_stream_goes_on_while_long_prompts_are_read():
    target = ToyTarget(V, slots=3)
    one = engine([oracle(ANSWER, 1, V)], target=target, slots=3)
    events = []
    for name in ("prefill", "verify"):
        whole = getattr(target, name)
        setattr(target, name, lambda *a, name=name, whole=whole: (events.append((name, len(a[1]))), whole(*a))[1])
    stream = one.stream(PROMPT, max_tokens=40)
    got = [next(stream)]
    long = np.random.default_rng(0).integers(0, V, 50).tolist()
    late = one.generate_all([long, long[::-1]], max_tokens=4)
    got += stream
    assert tokens(got) == ANSWER[:40]
    for result, prompt in zip(late, (long, long[::-1]), strict=True):
        with engine() as alone:
            assert result.tokens == alone.generate(prompt, max_tokens=4).tokens
        assert result.record.prefill_ms > 0.0
    sizes = [size for name, size in events if name == "prefill"]
    assert sum(sizes) == 3 + 49 + 49
    assert max(sizes) == 8
    names = [name for name, _ in events]
    for i, size in enumerate(sizes[1:-1]):
        if size == 8:  # a whole turn's share: a step comes before the next
            at = [j for j, name in enumerate(names) if name == "prefill"][i + 1]
            assert names[at + 1] == "verify"


@pytest.mark.usefixtures("small_chunks")
def test_short_prompts_are_read_together():
    one = engine(slots=3)
    results = one.generate_all([[1, 2], [2, 3], [3, 1]], max_tokens=4)
    assert {step.rows for result in results for step in result.record.steps} == {3}


@pytest.mark.usefixtures("small_chunks")
def test_a_request_cancelled_while_its_prompt_is_read_leaves_a_usable_slot():
    one = engine(slots=2)
    stream = one.stream(PROMPT, max_tokens=30)
    first = next(stream)
    long = [int(t) for t in np.random.default_rng(0).integers(0, V, 50)]
    other = one.request(long, None, max_tokens=4)
    one._waiting.append(other)
    second = next(stream)
    assert 0 < other.filled < 49
    one._leave(other)
    assert other.record.finish == "cancelled"
    assert tokens([first, second, *stream]) == ANSWER[:30]
    again = one.generate(long, max_tokens=4)
    assert again.record.cached_tokens == other.filled
    with engine() as alone:
        assert again.tokens == alone.generate(long, max_tokens=4).tokens


class Refuses:
    """A processor that fails for prompts that begin with a token."""

    def __init__(self, token):
        self.token = token

    def __call__(self, history, logits):
        if history[0] == self.token:
            raise RuntimeError("this one fails")
        return logits

    def snapshot(self):
        return None

    def restore(self, state):
        pass


def test_one_failing_prompt_of_several_is_named_and_the_others_end():
    one = engine(slots=2)
    ended = []
    take = one._remove

    def note(request):
        if request.slot >= 0:
            ended.append((request.prompt[0], request.record.finish, request.record.completion_tokens))
        take(request)

    one._remove = note
    with pytest.raises(RuntimeError, match="this one fails") as caught:
        one.generate_all([[1, 2], [4, 2], [3, 2], [4, 1]], Sampling(processors=(Refuses(4),)), max_tokens=5)
    assert caught.value.__notes__ == ["failed of prompts 0 to 3: 1, 3"]
    assert sorted(ended) == [(1, "length", 5), (3, "length", 5), (4, "error", 0), (4, "error", 0)]
    with pytest.raises(RuntimeError) as caught:
        one.generate([4, 2], Sampling(processors=(Refuses(4),)), max_tokens=5)
    assert not hasattr(caught.value, "__notes__")


def interrupted(work, moment):
    """Runs ``work`` with Ctrl-C at one of the moments that CPython looks for it: calls begun, built-in calls ended."""
    seen = 0

    def look(frame, event, _):
        nonlocal seen
        if frame.f_code.co_name == "<genexpr>":  # what is raised where one is thrown away is lost
            return
        files = [f.f_code.co_filename for f in (frame, frame.f_back) if f]
        if event in ("call", "c_return") and any(f.endswith(("engine/engine.py", "models/slots.py")) for f in files):
            seen += 1
            if seen == moment:
                sys.setprofile(None)
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


@pytest.mark.parametrize(
    "work",
    [
        lambda one: one.generate_all([PROMPT, [2, 3], [4]], max_tokens=3),
        lambda one: list(one.stream(PROMPT, max_tokens=3)),
    ],
    ids=["whole", "stream"],
)
def test_ctrl_c_at_any_moment_leaves_nothing_behind(work):
    target = ToyTarget(V, slots=2)
    one = engine([Empty()], target, slots=2)
    moment = 1
    while interrupted(lambda: work(one), moment):
        gc.collect(0)
        assert not one._waiting
        assert not one._running
        assert one._slots.free == 2
        assert len(one._slots._idle) == len(target._cells), moment
        if moment % 16 == 0:
            one.close()  # the next begins with slots to open
        moment += 1
    assert moment > 50
    assert one.generate(PROMPT, max_tokens=8).tokens == ANSWER[:8]


def test_a_slot_that_cannot_be_taken_back_costs_nobody_else_his(monkeypatch):
    target = ToyTarget(V, slots=2)
    one = engine(target=target, slots=2)
    real = target.length

    def length(slot):
        if slot == 0:
            raise RuntimeError("lost")
        return real(slot)

    monkeypatch.setattr(target, "length", length)
    with pytest.raises(RuntimeError, match="lost"):
        one.generate_all([PROMPT, PROMPT], max_tokens=1)
    assert not one._running
    assert set(one._slots._idle) == {1}
