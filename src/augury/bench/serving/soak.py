"""A server under mixed load for as long as you like: ``python -m augury.bench.serving.soak --minutes 60``.

It starts ``augury serve`` itself, and stops and restarts it by SIGTERM now and then. Callers ask whole answers and
streams, several answers at once, structured and predicted ones, leave in the middle or before the first byte, and send
what no server should take. What must hold is counted:

- whoever stays, and is told 200, gets exactly one end: ``[DONE]``, behind an error event where the answer broke off;
- every whole answer to a question is the text that the question alone is given;
- what is wrong is refused by an error object of its own status, and by nothing else;
- the server ends by itself after SIGTERM, with exit code 0;
- memory and open files of one server's life do not grow: the last quarter beside the second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.bench.prompts import Prompt, own
from augury.bench.serving.client import Heard, ask, connected, question
from augury.errors import AuguryError

if TYPE_CHECKING:
    import httpx2

CALLERS = 6
GROWTH, MORE_FILES = 1.05, 4
"""Of memory in one life, beyond which it is not flat, and of open files, which come and go with callers."""

_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_WRONG: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [{"role": "king", "content": "?"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": "?"}], "temperature": -1},
    {"messages": [{"role": "user", "content": "?"}], "max_tokens": -1},
    {"messages": [{"role": "user", "content": "?"}], "max_tokens": "5"},
    {"messages": [{"role": "user", "content": "?"}], "top_p": 0},
    {"messages": [{"role": "user", "content": "?"}], "logit_bias": {"-1": 5}},
    {"messages": [{"role": "user", "content": "?"}], "logit_bias": {"99999999": 5}},
    {"messages": [{"role": "user", "content": "?"}], "stop": [""]},
    {"messages": [{"role": "user", "content": "?"}], "n": 0},
    {"messages": [{"role": "user", "content": "?"}], "logprobs": True, "top_logprobs": 21},
    {"messages": [{"role": "user", "content": "?"}], "model": "nobody"},
    {"messages": [{"role": "user", "content": "?"}], "speculative": {"drafters": ["nobody"]}},
    {"messages": [{"role": "user", "content": "word " * 20_000}]},
    {"messages": [{"role": "user", "content": "?"}], "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "no such type"}}}},
    {"prompt": "?"},
]  # fmt: skip


@dataclass
class Life:
    """One server from start to exit.

    Attributes:
        seconds: it lived.
        memory: resident bytes, every few seconds.
        files: open ones, at the same times.
        exit: its exit code.
        stopping_s: seconds from SIGTERM to its end.
    """

    seconds: float = 0.0
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    exit: int | None = None
    stopping_s: float = 0.0

    def growth(self, values: Sequence[int]) -> float:
        """The median of the last quarter against that of the second."""
        quarter = len(values) // 4
        if quarter < 3:
            return 1.0
        second, last = sorted(values[quarter : 2 * quarter]), sorted(values[-quarter:])
        return last[quarter // 2] / max(second[quarter // 2], 1)

    @property
    def flat(self) -> bool:
        """Whether neither memory nor open files grew."""
        half, quarter = len(self.files) // 2, len(self.files) // 4
        more = max(self.files[-quarter:]) - max(self.files[:half]) if quarter else 0
        return self.growth(self.memory) <= GROWTH and more <= MORE_FILES


@dataclass
class Tally:
    """What was seen.

    Attributes:
        events: how often each thing happened.
        wrong: what must not happen, the first of each kind in words.
        lives: of the server.
    """

    events: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)

    def fault(self, kind: str, what: str) -> None:
        """Note what must not happen."""
        self.events[f"WRONG {kind}"] += 1
        if self.events[f"WRONG {kind}"] <= 3:
            self.wrong.append(f"{kind}: {what[:300]}")


class Soak:
    """The whole run.

    Args:
        options: of ``augury serve``, the model first.
        seconds: of the run.
        restart_seconds: of one life.
        seed: of what is asked.
    """

    def __init__(self, options: Sequence[str], seconds: float, restart_seconds: float, seed: int) -> None:
        self._options, self._seconds, self._life_seconds = list(options), seconds, restart_seconds
        self._random = random.Random(seed)
        self._asked = own()[:24]
        self._texts: dict[str, str] = {}
        self._port = _free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._up = asyncio.Event()
        self._over = False
        self.tally = Tally()

    async def run(self) -> Tally:
        """Live, ask, count."""
        end = time.monotonic() + self._seconds
        async with connected(f"http://127.0.0.1:{self._port}", None, 2 * CALLERS) as client:
            await self._start(client)
            for prompt in self._asked:
                heard = await ask(client, question(prompt.text, 32, speculative={"enabled": False}))
                if heard.terminals != 1 or heard.error:
                    raise AuguryError(f"the first questions are not answered: {heard.error or 'the stream broke'}")
                self._texts[prompt.id] = heard.text
            callers = [asyncio.create_task(self._call(client, i)) for i in range(CALLERS)]
            while time.monotonic() < end:
                await self._live(client, min(self._life_seconds, end - time.monotonic()))
                await self._stop()
                if time.monotonic() < end:
                    await self._start(client)
            self._over = True
            self._up.set()
            await asyncio.gather(*callers)
        return self.tally

    # ---- the server -------------------------------------------------------------------------------------

    async def _start(self, client: httpx2.AsyncClient) -> None:
        import httpx2

        command = [sys.executable, "-m", "augury", "serve", *self._options, "--port", str(self._port)]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.tally.lives.append(Life())
        for _ in range(600):
            if self._server.poll() is not None:
                raise AuguryError(f"augury serve ended with {self._server.returncode} before it was ready")
            try:
                if (await client.get("/ready", timeout=2.0)).status_code == 200:
                    break
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(0.2)
        self._up.set()

    async def _live(self, client: httpx2.AsyncClient, seconds: float) -> None:
        assert self._server
        life, begin = self.tally.lives[-1], time.monotonic()
        while time.monotonic() - begin < seconds:
            if self._server.poll() is not None:
                self.tally.fault("the server died", f"exit code {self._server.returncode}")
                break
            life.memory.append(_memory(self._server.pid))
            life.files.append(len(list(Path(f"/proc/{self._server.pid}/fd").iterdir())))
            life.seconds = time.monotonic() - begin
            await asyncio.sleep(2.0)

    async def _stop(self) -> None:
        assert self._server
        life = self.tally.lives[-1]
        self._up.clear()
        self._server.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        while self._server.poll() is None:
            if time.monotonic() - begin > 60.0:
                self.tally.fault("SIGTERM", "the server did not end within 60 s")
                self._server.kill()
            await asyncio.sleep(0.05)
        life.exit, life.stopping_s = self._server.returncode, time.monotonic() - begin
        if life.exit:
            self.tally.fault("SIGTERM", f"exit code {life.exit}")

    # ---- the callers ------------------------------------------------------------------------------------

    async def _call(self, client: httpx2.AsyncClient, number: int) -> None:
        chance = random.Random(self._random.random())
        ways = {
            self._whole: 6, self._streamed: 10, self._leaves: 6, self._refused: 4, self._several: 2,
            self._structured: 2, self._late: 1, self._predicted: 2,
        }  # fmt: skip
        while not self._over:
            await self._up.wait()
            life = len(self.tally.lives)
            way = chance.choices(list(ways), list(ways.values()))[0]
            try:
                # Who was told nothing when the server stopped may ask again.
                await way(client, chance, lambda life=life: self._gone(life))
            except Exception as error:
                self.tally.fault("a caller failed", f"{way.__name__}: {type(error).__name__}: {error}")
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random())

    def _gone(self, life: int) -> bool:
        """Whether the server of that life has stopped or is stopping."""
        return self._over or not self._up.is_set() or len(self.tally.lives) != life

    async def _streamed(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        prompt = chance.choice(self._asked)
        self._judge("stream", prompt, await ask(client, question(prompt.text, 32)), stopped())

    async def _whole(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        prompt = chance.choice(self._asked)
        body = {k: v for k, v in question(prompt.text, 32).items() if not k.startswith("stream")}
        self._judge("whole", prompt, await ask(client, body), stopped())

    async def _predicted(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        prompt = chance.choice(self._asked)
        expected = {"type": "content", "content": self._texts[prompt.id] + " and more"}
        self._judge("predicted", prompt, await ask(client, question(prompt.text, 32, prediction=expected)), stopped())

    async def _leaves(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        prompt = chance.choice(self._asked)
        body = question(prompt.text, 200, n=chance.choice([1, 1, 2]))
        if chance.random() < 0.3:  # before the first byte, perhaps while it waits
            try:
                await asyncio.wait_for(ask(client, body), chance.random() * 0.3)
            except TimeoutError:
                self.tally.events["left before the first byte"] += 1
            return
        await ask(client, body, leave_after=chance.randrange(1, 12))
        self.tally.events["left in the middle"] += 1

    async def _refused(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        body = chance.choice(_WRONG)
        heard = await ask(client, {**body, "stream": chance.random() < 0.5})
        if heard.status in (400, 404, 413) and heard.error and heard.error.get("message"):
            self.tally.events[f"refused with {heard.status}"] += 1
        elif heard.status == 503 and heard.error:  # a full queue says so before it reads what is wrong
            self.tally.events["refused with 503"] += 1
        elif not (stopped() and heard.status == 0):
            self.tally.fault("not refused", f"{heard.status} {heard.error} for {json.dumps(body)[:120]}")

    async def _several(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        body = question(chance.choice(self._asked).text, 16, n=3, temperature=1.0, logprobs=True, top_logprobs=2)
        self._ended("several", await ask(client, body), stopped())

    async def _structured(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}}
        body = question("Invent a person.", 64, temperature=1.0, response_format=form)
        heard = await ask(client, body)
        if self._ended("structured", heard, stopped()) and heard.finish == "stop" and heard.error is None:
            try:
                value = json.loads(heard.text)
                if set(value) != {"name", "age"} or len(value["name"]) > 12 or not 0 <= value["age"] <= 99:
                    raise ValueError("it breaks the schema")
            except (ValueError, TypeError) as error:
                self.tally.fault("structured", f"{error}: {heard.text}")

    async def _late(self, client: httpx2.AsyncClient, chance: random.Random, stopped: Any) -> None:
        """More at once than the queue takes."""
        prompt = chance.choice(self._asked)
        many = await asyncio.gather(*(ask(client, question(prompt.text, 8)) for _ in range(CALLERS)))
        for heard in many:
            self._ended("burst", heard, stopped())

    def _judge(self, kind: str, prompt: Prompt, heard: Heard, stopped: bool) -> None:
        if self._ended(kind, heard, stopped) and heard.error is None and heard.text != self._texts[prompt.id]:
            self.tally.fault("another text", f"{prompt.id} by {kind}: {heard.text!r}")

    def _ended(self, kind: str, heard: Heard, stopped: bool) -> bool:
        """Whether an answer came that was given to its end."""
        whole = heard.status == 200 and not heard.broken and heard.terminals == (0 if kind == "whole" else 1)
        if whole and heard.error is not None:
            self.tally.events[f"{kind} ended by an error event"] += 1
            return False
        if whole and heard.finish is not None:
            self.tally.events[f"{kind} answered"] += 1
            return True
        if heard.status in (503, 504) and heard.error:
            self.tally.events[f"{kind} told to come again ({heard.status})"] += 1
        elif heard.status == 0 and stopped:
            self.tally.events["nobody there while restarting"] += 1
        else:
            self.tally.fault(
                "no end", f"{kind}: status {heard.status}, {heard.terminals} ends, broken {heard.broken}, {heard.error}"
            )
        return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _memory(process: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


def report(tally: Tally) -> list[str]:
    """Lines that say what was seen; what must not be begins with WRONG."""
    lines = [f"{count:>8}  {event}" for event, count in sorted(tally.events.items())]
    for number, life in enumerate(tally.lives, 1):
        memory = life.growth(life.memory)
        lines.append(
            f"life {number}: {life.seconds:.0f} s, {max(life.memory, default=0) / 1e6:.0f} MB at most, "
            f"memory x {memory:.3f}, {max(life.files, default=0)} open files at most, "
            f"ended {life.stopping_s:.1f} s after SIGTERM, exit code {life.exit}"
        )
        if not life.flat:
            lines.append(f"   WRONG life {number} grew")
    return [*lines, *(f"   WRONG {what}" for what in tally.wrong)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m augury.bench.serving.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--restart-every", type=float, default=15.0, help="minutes of one life")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("serve", nargs="*", default=[], help="behind --: model and options of augury serve")
    given = parser.parse_args(arguments)
    options = given.serve or ["smollm2-135m", "--max-num-seqs", "4", "--max-num-queued-reqs", "4"]
    try:
        tally = asyncio.run(Soak(options, 60.0 * given.minutes, 60.0 * given.restart_every, given.seed).run())
    except AuguryError as error:
        print(f"augury: {error}", file=sys.stderr)
        return 2
    lines = report(tally)
    print("\n".join(lines))
    if given.json:
        document = {"events": dict(tally.events), "wrong": tally.wrong, "lives": [asdict(one) for one in tally.lives]}
        given.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return 1 if any("WRONG" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
