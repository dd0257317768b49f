"""The ring: numbers, bytes, what is lost, and many threads."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import InputError
from augury.trace.ring import LEAST, Part, Ring


def test_numbers_run_from_one():
    ring = Ring(LEAST)
    assert (ring.first, ring.last, ring.since(0, 10)) == (1, 0, Part((), 0, 0))
    assert [ring.put({"n": n}) for n in range(3)] == [1, 2, 3]
    assert ring.since(0, 10) == Part((b'{"n":0}', b'{"n":1}', b'{"n":2}'), 3, 0)
    assert ring.since(1, 1) == Part((b'{"n":1}',), 2, 0)
    assert ring.since(3, 10) == Part((), 3, 0)
    assert ring.since(0, 0) == Part((), 0, 0)
    assert ring.since(90, 10) == Part((), 3, 0), "numbers of a ring before this one"
    assert ring.since(-5, 2).lines == (b'{"n":0}', b'{"n":1}')


def test_the_oldest_go_when_the_bytes_are_full():
    ring = Ring(LEAST)
    for n in range(5000):
        ring.put({"n": n, "text": "x" * 100})
        assert ring.taken <= LEAST
    part = ring.since(0, 10_000)
    assert part.lost == ring.first - 1 > 0
    assert part.next == ring.last == 5000
    assert [json.loads(line)["n"] for line in part.lines] == list(range(ring.first - 1, 5000))


def test_an_event_larger_than_all_of_it_is_lost_and_counted():
    ring = Ring(LEAST)
    ring.put({"n": 1})
    assert ring.put({"text": "x" * LEAST}) == 2
    assert ring.since(0, 10) == Part((), 2, 2)
    ring.put({"n": 3})
    assert ring.since(0, 10) == Part((b'{"n":3}',), 3, 2)


@given(
    st.lists(st.integers(0, 30_000), max_size=60),
    st.lists(st.tuples(st.integers(-3, 70), st.integers(0, 70)), max_size=5),
)
def test_it_is_the_end_of_all_that_was_put(sizes, asked):
    ring, whole = Ring(LEAST), []
    for n, size in enumerate(sizes):
        ring.put({"n": n, "x": "y" * size})
        whole.append(n)
    held = whole[ring.first - 1 :]
    assert len(held) == ring.last - ring.first + 1
    for after, limit in asked:
        part = ring.since(after, limit)
        got = [json.loads(line)["n"] for line in part.lines]
        known = min(max(after, 0), len(whole))
        assert got == whole[max(known, ring.first - 1) :][:limit]
        assert part.lost == max(ring.first - 1 - known, 0)
        assert part.next == max(known, ring.first - 1) + len(got)


def test_readers_follow_writers():
    ring, seen = Ring(1 << 20), []

    def write(who):
        for n in range(1000):
            ring.put({"who": who, "n": n})

    threads = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    after = 0
    while after < 3000:
        part = ring.since(after, 100)
        assert part.lost == 0
        seen += [json.loads(line) for line in part.lines]
        after = part.next
    for thread in threads:
        thread.join()
    for who in range(3):
        assert [one["n"] for one in seen if one["who"] == who] == list(range(1000))


def test_a_ring_that_holds_nothing_is_refused():
    with pytest.raises(InputError, match="a trace of 100 bytes holds too little; give 65536 or more"):
        Ring(100)
