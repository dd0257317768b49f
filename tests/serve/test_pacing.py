"""What a reader on the way sees of a stream in each mode; what the client reads is the same in all."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise

import httpx2
import pytest
from served import NAME, serving

from augury.bench.serving.client import ask, checked, connected, question
from augury.engine.request import Chunk
from augury.record import RequestRecord
from augury.server import pacing
from augury.server.faults import Fault
from augury.server.pacing import FEWEST, MODES, PORTION, RUNG, SMALLEST, TICK, Frames, padding, rung
from augury.server.settings import Settings

QUESTION = "Name three fruits, each with its colour."


@pytest.fixture
def mode(service, request):
    with serving(service, Settings(names=(NAME,), stream_mode=request.param)) as made:
        yield made.url


def heard(url, *bodies):
    async def all_of_them():
        async with connected(url, None, 8) as client:
            return await asyncio.gather(*(ask(client, body) for body in bodies))

    return asyncio.run(all_of_them())


def sent(url, body):
    """Portions of a stream as the server wrote them: one chunk of HTTP each."""
    with (
        httpx2.Client(base_url=url, timeout=60.0) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as r,
    ):
        return [(time.monotonic(), portion) for portion in r.iter_raw()]


@pytest.mark.parametrize("mode", ["smooth", "private"], indirect=True)
@pytest.mark.parametrize("more", [{}, {"n": 2, "temperature": 1.0, "seed": 3}, {"logprobs": True, "top_logprobs": 3}])
def test_the_client_reads_the_same_in_every_mode(server, mode, more):
    body = question(QUESTION, 24, **more)
    (fast,), (other,) = heard(server.url, body), heard(mode, body)
    assert checked(other).text == checked(fast).text
    assert (other.finish, other.tokens) == (fast.finish, fast.tokens)


@pytest.mark.parametrize("mode", ["private"], indirect=True)
def test_private_streams_of_any_text_look_alike(mode):
    bodies = [question(QUESTION, 8), question("Count from one to twenty.", 30), question("Hi", 1)]
    for body in bodies:
        portions = sent(mode, body)
        assert {len(portion) for _, portion in portions} == {PORTION}
        assert len(portions) in {FEWEST, FEWEST * RUNG}
        pauses = [b - a for (a, _), (b, _) in pairwise(portions)]
        assert sorted(pauses)[len(pauses) // 2] == pytest.approx(TICK, abs=0.03)
        text = b"".join(portion for _, portion in portions)
        assert text.endswith(b"data: [DONE]\n\n")
        events = [line for line in text.split(b"\n") if line]
        assert all(line.startswith((b":", b"data: ")) for line in events)


@pytest.mark.parametrize("mode", ["private"], indirect=True)
def test_a_private_answer_in_one_piece_has_its_size_and_time(mode):
    body = {k: v for k, v in question(QUESTION, 8).items() if not k.startswith("stream")}
    begin = time.monotonic()
    answer = httpx2.post(f"{mode}/v1/chat/completions", json=body, timeout=60.0)
    assert len(answer.content) == SMALLEST
    assert time.monotonic() - begin >= FEWEST * TICK - 0.05
    assert json.loads(answer.content)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("mode", ["private"], indirect=True)
def test_private_answers_find_nothing_in_the_cache(mode):
    first, again = heard(mode, question(QUESTION, 2)) + heard(mode, question(QUESTION, 2))
    assert first.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert again.usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("mode", ["smooth"], indirect=True)
def test_smooth_streams_have_no_more_portions_than_ticks(mode):
    begin = time.monotonic()
    portions = sent(mode, question("Count from one to twenty.", 40))
    assert len(portions) <= (time.monotonic() - begin) / TICK + 3
    assert portions[-1][1].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("mode", ["private", "smooth"], indirect=True)
def test_what_fails_is_told_in_every_mode(mode):
    (refused,) = heard(mode, question(QUESTION, 8, temperature=-1))
    assert (refused.status, refused.error["param"]) == (400, "temperature")


def test_who_leaves_a_private_stream_is_noticed(service):
    with serving(service, Settings(names=(NAME,), stream_mode="private")) as made:

        async def leave():
            async with connected(made.url, None, 1) as client:
                await ask(client, question("Count to a thousand.", 600), leave_after=2)

        asyncio.run(leave())
        until = time.monotonic() + 10.0
        while service.running and time.monotonic() < until:
            time.sleep(0.01)
        assert not service.running


class Broken:
    """An answer that has failed behind what had come: a whole choice, and a part of another."""

    done = False

    def __init__(self, *chunks):
        self._came = list(enumerate(chunks))

    async def next(self, seconds=None):
        return self.ready()

    def ready(self):
        if not self._came:
            raise RuntimeError("lost")
        return self._came.pop(0)


class Plain:
    """A form that writes texts as they are."""

    def begin(self):
        return [b"role "]

    def piece(self, index, chunk):
        return [f"{index}:{chunk.text}:{chunk.finish_reason} ".encode()]

    def failed(self, fault):
        return [b"failed"]


@pytest.mark.parametrize("mode", ["fast", "smooth", "private"])
@pytest.mark.parametrize("interval", [1, 9])
def test_what_came_before_a_failure_is_sent_before_it(mode, interval):
    record = RequestRecord(1, ())
    whole = Chunk("one", (1,), (), (), "stop", None, record)
    part = Chunk("tw", (2,), (), (), None, None, record)
    frames = Frames(Plain(), interval, lambda error: Fault(500, str(error)))

    async def read():
        return b"".join([portion async for portion in MODES[mode](Broken(whole, part), frames, Settings())])

    said = asyncio.run(read())
    for text in (b"role ", b"0:one:stop ", b"1:tw:None ", b"failed"):
        assert said.count(text) == 1
    assert said.index(b"role ") < said.index(b"0:one") < said.index(b"1:tw") < said.index(b"failed")


@pytest.mark.parametrize("size", [*range(40), 999, 1000, 1001, 1002, 2001, 5000, 81_921])
def test_padding_is_of_its_size_and_says_nothing(size):
    made = padding(size)
    assert len(made) == size
    assert all(line.strip() in (b"", b":") for line in made.split(b"\n"))
    assert size == 0 or made.endswith(b"\n")
    assert max(map(len, made.split(b"\n"))) <= 1001


def test_rungs():
    assert [rung(n) for n in (0, 1, 32, 33, 128, 129, 4000)] == [32, 32, 32, 128, 128, 512, 8192]


def test_an_answer_larger_than_its_pace_ends_when_it_is_sent(monkeypatch, service):
    """Log-probabilities are many bytes a token: the stream takes longer, and its portions stay what they are."""
    monkeypatch.setattr(pacing, "TICK", 0.02)
    monkeypatch.setattr(pacing, "PORTION", 512)
    with serving(service, Settings(names=(NAME,), stream_mode="private")) as made:
        portions = sent(made.url, question(QUESTION, 24, logprobs=True, top_logprobs=20))
    assert {len(portion) for _, portion in portions} == {512}
    assert len(portions) == rung(len(portions)) > FEWEST
    assert b"".join(portion for _, portion in portions).endswith(b"data: [DONE]\n\n")
