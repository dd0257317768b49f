"""How tests ask the replicas, and what Ray knows of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import ray
from ray import serve
from ray.serve.context import _get_global_client

from augury.integrations.ray_serve import application
from augury.server.settings import Settings

NAME = "smollm2-135m"
LOADING = {
    "drafters": "suffix,prediction", "max_model_len": 1024, "max_num_seqs": 2, "measure": False,
    "drain_seconds": 600.0}  # fmt: skip


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def narrow(address: tuple[str, int]) -> socket.socket:
    """A connection that takes little before somebody reads: a small window, and small segments, which keep the sender's
    buffer small, too."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.settimeout(300)
    connection.connect(address)
    return connection


def held() -> int:
    """Bytes that such a connection takes."""
    with socket.create_server(("127.0.0.1", 0)) as listening, narrow(listening.getsockname()):
        sender, _ = listening.accept()
        with sender:
            sender.setblocking(False)
            count = 0
            try:
                while True:
                    count += sender.send(bytes(4096))
            except BlockingIOError:
                return count


def question(number: int, text: str = "") -> list[dict[str, str]]:
    """The messages of a conversation of its own."""
    return [{"role": "user", "content": text or f"Count from {number} upwards, in words, as far as you can."}]


@dataclass
class Streamed:
    """What came over a stream."""

    status: int
    replica: str
    lines: list[str] = field(default_factory=list)
    broke: bool = False

    @property
    def events(self) -> list[Any]:
        data = [line[6:] for line in self.lines if line.startswith("data: ")]
        return [one if one == "[DONE]" else json.loads(one) for one in data]

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content") or ""
            for event in self.events
            if event != "[DONE]"
            for choice in event.get("choices", ())
        )

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event["error"] for event in self.events if event != "[DONE]" and "error" in event), None)

    @property
    def whole(self) -> bool:
        """Whether it ended as it should."""
        ends = [c["finish_reason"] for e in self.events if e != "[DONE]" for c in e.get("choices", ())]
        return self.error is None and not self.broke and self.events[-1:] == ["[DONE]"] and ends[-1] is not None


@dataclass
class Cluster:
    """What runs on it is asked at one port."""

    port: int
    _runs: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, settings: Settings | None = None, fresh: bool = False, **options: Any) -> None:
        """Run two replicas; nothing is done where they run already as they are."""
        wanted = repr((settings, options))
        if fresh or self._runs != wanted or len(self.replicas()) != 2:
            settings = settings or Settings(names=(), local=False)
            serve.run(application(NAME, replicas=2, settings=settings, **{**LOADING, **options}), name="augury")
            self._runs = wanted
        self.wait_for(2)

    def client(self, retries: int = 0, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=retries, timeout=300)

    def chat(self, client: openai.OpenAI, messages: list[dict[str, str]], tokens: int = 16, **more: Any) -> Any:
        """One answer, and the replica that gave it."""
        raw = client.chat.completions.with_raw_response.create(
            model=NAME, messages=messages, temperature=0, max_tokens=tokens, extra_body=more
        )
        return raw.parse(), raw.headers["augury-replica"]

    @contextmanager
    def streaming(
        self, messages: list[dict[str, str]], tokens: int, **more: Any
    ) -> Iterator[tuple[Streamed, Iterator[str]]]:
        """A stream whose lines are read one by one."""
        body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": tokens, "stream": True, **more}
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=300) as response:
            came = Streamed(response.status_code, response.headers.get("augury-replica", ""))

            def lines() -> Iterator[str]:
                try:
                    for line in response.iter_lines():
                        came.lines.append(line)
                        yield line
                except httpx.HTTPError:
                    came.broke = True

            yield came, lines()

    def stream(self, messages: list[dict[str, str]], tokens: int, **more: Any) -> Streamed:
        """All of a stream."""
        with self.streaming(messages, tokens, **more) as (came, lines):
            for _ in lines:
                pass
        return came

    def replicas(self) -> dict[str, int]:
        """Engines that take requests: name and process."""
        details = _get_global_client().get_serve_details()["applications"].get("augury")
        if details is None:
            return {}
        found = details["deployments"]["replica"]["replicas"]
        return {one["replica_id"]: one["pid"] for one in found if one["state"] == "RUNNING"}

    def wait_for(self, count: int, seconds: float = 120.0) -> dict[str, int]:
        """Until so many take requests."""
        end = time.monotonic() + seconds
        while len(found := self.replicas()) != count or not all(map(alive, found.values())):
            assert time.monotonic() < end, found
            time.sleep(0.5)
        return found

    def kill(self, replica: str) -> None:
        os.kill(self.replicas()[replica], signal.SIGKILL)

    def metrics(self) -> dict[str, dict[str, float]]:
        """The values of every series, by replica; labels beside it are summed."""
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics", timeout=30).text):
            for sample in family.samples:
                of = found.setdefault(sample.name, {})
                of[sample.labels["replica"]] = of.get(sample.labels["replica"], 0.0) + sample.value
        return found

    def at_rest(self, seconds: float = 20.0) -> bool:
        """Whether nothing runs or waits anywhere, soon."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            now = self.metrics()
            if not any(map(sum, (now[f"augury:num_requests_{k}"].values() for k in ("running", "waiting")))):
                return True
            time.sleep(0.2)
        return False

    @property
    def logs(self) -> Path:
        return Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def said(engine: Any, messages: list[dict[str, str]], tokens: int, **more: Any) -> str:
    """What the model says to that by itself."""
    from augury import Sampling

    return engine.generate(engine.render(messages), Sampling(temperature=0.0), max_tokens=tokens, **more).text
