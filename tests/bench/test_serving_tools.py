"""The tools that watch a server must see what is wrong: a missing end, another text, memory that grows."""

from __future__ import annotations

import asyncio
import json

import pytest

from augury.bench.prompts import own
from augury.bench.serving.client import Heard, checked
from augury.bench.serving.load import Wave, table
from augury.bench.serving.soak import Life, Soak, Tally, report
from augury.errors import AuguryError

PROMPT = own()[0]


def judged(heard, kind="stream", stopped=False):
    soak = Soak([], 1.0, 1.0, 0)
    soak._texts[PROMPT.id] = "as it is"
    soak._judge(kind, PROMPT, heard, stopped)
    return soak.tally


def answer(**changes):
    given = {
        "status": 200,
        "texts": {0: "as it is"},
        "finish": "stop",
        "terminals": 1,
        "portions": [(0.1, 5)],
        **changes,
    }
    return Heard(**given)


@pytest.mark.parametrize(
    ("heard", "kind", "stopped", "event"),
    [
        (answer(), "stream", False, "stream answered"),
        (answer(terminals=0), "whole", False, "whole answered"),
        (answer(error={"message": "?"}, finish=None), "stream", False, "stream ended by an error event"),
        (Heard(503, error={"message": "full"}), "stream", False, "stream told to come again (503)"),
        (Heard(0, broken=True), "stream", True, "nobody there while restarting"),
        (answer(terminals=0), "stream", False, "WRONG no end"),
        (answer(terminals=2), "stream", False, "WRONG no end"),
        (answer(finish=None), "stream", False, "WRONG no end"),
        (answer(broken=True, terminals=0), "stream", False, "WRONG no end"),
        (answer(broken=True, terminals=0), "stream", True, "WRONG no end"),
        (Heard(0, broken=True), "stream", False, "WRONG no end"),
        (Heard(500, error={"message": "?"}), "stream", False, "WRONG no end"),
        (answer(texts={0: "as it is not"}), "stream", False, "WRONG another text"),
    ],
)
def test_every_kind_of_end_is_told_from_the_others(heard, kind, stopped, event):
    assert [*judged(heard, kind, stopped).events] == [
        *(["stream answered"] if event == "WRONG another text" else []),
        event,
    ]


def test_growth_is_the_last_quarter_against_the_second():
    life = Life()
    assert life.growth([1000] * 40) == 1.0
    assert life.growth([*[500] * 10, *[1000] * 30]) == 1.0, "a start is not held against it"
    assert life.growth([*range(1000, 1400, 10)]) == pytest.approx(1.17, abs=0.02)
    assert life.growth([1, 2, 3]) == 1.0, "too short to tell"


def test_open_files_come_and_go_and_must_not_pile_up():
    assert Life(files=[13, 17, 12] * 20, memory=[1000] * 60).flat
    assert Life(files=[13, 17, 12] * 15 + [21] * 15, memory=[1000] * 60).flat
    assert not Life(files=[*range(13, 73)], memory=[1000] * 60).flat
    assert not Life(files=[13] * 60, memory=[*range(1000, 1600, 10)]).flat
    assert Life().flat


def test_who_finds_nobody_when_it_is_over_was_not_let_down():
    soak = Soak([], 1.0, 1.0, 0)
    soak.tally.lives.append(Life())
    soak._up.set()
    assert not soak._gone(1)
    assert soak._gone(0)
    soak._over = True
    assert soak._gone(1)


def test_what_is_wrong_is_said():
    tally = Tally()
    tally.fault("no end", "as seen")
    tally.lives.append(Life(60.0, [*range(1000, 1400, 10)], [10] * 40, 0, 1.0))
    lines = report(tally)
    assert [line.strip() for line in lines if "WRONG" in line] == [
        "1  WRONG no end",
        "WRONG life 1 grew",
        "WRONG no end: as seen",
    ]
    tally = Tally(lives=[Life(60.0, [1000] * 40, [10] * 40, 0, 1.0)])
    tally.events["stream answered"] += 1
    assert not any("WRONG" in line for line in report(tally))


@pytest.mark.parametrize(
    "heard", [answer(terminals=0), answer(broken=True), answer(finish=None), Heard(400, error={"message": "no"})]
)
def test_a_load_is_measured_on_whole_answers_only(heard):
    with pytest.raises(AuguryError):
        checked(heard)


def test_a_level_is_the_ratio_of_its_waves():
    waves = [
        Wave(4, False, 100, 10.0, 50.0, 20.0, 0),
        Wave(4, True, 100, 5.0, 40.0, 10.0, 0),
        Wave(4, True, 100, 5.0, 40.0, 10.0, 1),
        Wave(4, False, 100, 20.0, 50.0, 20.0, 0),
    ]
    shown = table(waves)
    assert [list(column.cells) for column in shown.columns] == [
        ["4"], ["7.5"], ["20.0"], ["2.83"], ["50 / 40"], ["20 / 10"], ["-1"],
    ]  # fmt: skip


def test_a_stream_is_read_to_its_end(monkeypatch):
    """Frames that are cut anywhere, comments between them, several answers in turn."""
    import httpx2

    from augury.bench.serving.client import ask, connected, question

    events = [
        {"choices": [{"index": i, "delta": {"content": text}, "finish_reason": None}]}
        for i, text in ((0, "a"), (1, "b"), (0, "c"))
    ]
    last = {"choices": [], "usage": {"completion_tokens": 3}}
    whole = b": hello\n\n" + b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in [*events, last])
    whole += b": " + b" " * 50 + b"\ndata: [DONE]\n\n"

    def serve(request):
        async def portions():
            for at in range(0, len(whole), 7):
                yield whole[at : at + 7]

        return httpx2.Response(200, content=portions())

    async def heard():
        async with connected("http://here", None, 1) as client:
            monkeypatch.setattr(client, "_transport", httpx2.MockTransport(serve))
            monkeypatch.setattr(client, "_mounts", {})
            return await ask(client, question("?", 3))

    found = asyncio.run(heard())
    assert (found.text, found.tokens, found.terminals, found.broken) == ("acb", 3, 1, False)
    assert sum(size for _, size in found.portions) == len(whole)
