"""What clients see when a replica dies, and when all are replaced."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from replicated import NAME, question, said

from augury.server.settings import Settings

pytestmark = pytest.mark.slow

CLIENTS, EACH, TOKENS = 8, 3, 16


def test_under_load_nothing_is_lost_when_one_is_killed(two, alone):
    """Answers in one piece: who asks is told nothing of it, and needs not ask again."""
    asked = [[question(10 * client + turn) for turn in range(EACH)] for client in range(CLIENTS)]
    wanted = [[said(alone, messages, TOKENS) for messages in own] for own in asked]
    done, killed = threading.Semaphore(0), {}

    def client(number: int) -> list[tuple[str, str]]:
        came = []
        with two.client(retries=2) as client:
            for messages in asked[number]:
                answer, replica = two.chat(client, messages, TOKENS)
                came.append((answer.choices[0].message.content, replica))
                done.release()
        return came

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client, number) for number in range(CLIENTS)]
        for _ in range(CLIENTS // 2):
            done.acquire()
        busy = two.metrics()["augury:num_requests_running"]
        name = max(busy, key=busy.get)
        killed["at"], killed["running"] = time.monotonic(), busy[name]
        two.kill(name)
        came = [one.result() for one in running]
    assert killed["running"] > 0
    assert [[text for text, _ in own] for own in came] == wanted
    print(f"{CLIENTS * EACH} answers, all right; {killed['running']:.0f} ran on the replica that was killed")
    assert name not in two.wait_for(2)


def streams(two, tokens: int, apart: int = 2):
    """Open streams, one on each replica."""
    found = {}
    for number in range(20):
        opened = two.streaming(question(number), tokens, cache_salt="streams", ignore_eos=True)
        came, lines = opened.__enter__()
        while not came.text:
            next(lines)
        if came.replica in found:
            opened.__exit__(None, None, None)
        else:
            found[came.replica] = (number, opened, came, lines)
        if len(found) == apart:
            return found
    raise AssertionError(f"all streams went to {list(found)}")


def test_streams_of_the_other_are_untouched_and_of_the_killed_end_with_an_error(two, alone):
    tokens = 60
    found = streams(two, tokens)
    (killed, (_, first, broken, broken_lines)), (_, (number, second, whole, whole_lines)) = found.items()
    two.kill(killed)
    for _ in broken_lines:
        pass
    for _ in whole_lines:
        pass
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert not broken.broke
    assert broken.events[-1] == "[DONE]"
    assert broken.error["code"] == "replica_ended"
    assert set(broken.error) == {"message", "type", "param", "code"}
    assert broken.text
    assert whole.whole
    assert whole.text == said(alone, question(number), tokens, ignore_eos=True)
    two.wait_for(2)


def test_openais_client_raises_for_such_a_stream_and_asks_again_with_success(two, alone):
    messages, tokens = question(77), 60
    with two.client(retries=2) as client:

        def stream(kill: bool) -> str:
            text = ""
            raw = client.chat.completions.with_raw_response.create(
                model=NAME, messages=messages, temperature=0, max_tokens=tokens, stream=True
            )
            for chunk in raw.parse():
                text += chunk.choices[0].delta.content or ""
                if kill and text:
                    two.kill(raw.headers["augury-replica"])
                    kill = False
            return text

        with pytest.raises(openai.APIError, match="ask again"):
            stream(kill=True)
        assert stream(kill=False) == said(alone, messages, tokens)
    two.wait_for(2)


def test_a_stream_of_responses_ends_with_an_event_of_its_kind(two):
    body = {"model": NAME, "input": "Count to a hundred, in words.", "temperature": 0, "stream": True,
            "max_output_tokens": 200}  # fmt: skip
    lines, killed = [], False
    with httpx.stream("POST", f"{two.url}/v1/responses", json=body, timeout=120) as response:
        for line in response.iter_lines():
            lines.append(line)
            if not killed and "output_text.delta" in line:
                two.kill(response.headers["augury-replica"])
                killed = True
    assert "event: error" in lines
    assert "replica_ended" in lines[lines.index("event: error") + 1]
    assert [line for line in lines if line][-1] == "data: [DONE]"
    two.wait_for(2)


def test_no_stream_is_dropped_while_all_are_replaced(two, alone):
    """The name of the model is another one afterwards; who asked before is answered by who was asked."""
    two.run(fresh=True)
    old, tokens = set(two.replicas()), 250
    found = streams(two, tokens)
    names = (NAME, "renamed")
    settings = Settings(names=names, local=False)
    replacing = threading.Thread(target=lambda: two.run(settings))
    meanwhile, failed = [], []
    with ThreadPoolExecutor(3) as pool:
        read = {number: pool.submit(lambda lines=lines: [*lines]) for number, _, _, lines in found.values()}
        replacing.start()

        def ask(worker: int) -> None:
            turn = 0
            while replacing.is_alive():
                came = two.stream(question(1000 * worker + turn), 8)
                (meanwhile if came.whole else failed).append(came)
                turn += 1

        asking = pool.submit(ask, 1)
        for one in read.values():
            one.result()
        asking.result()
    replacing.join()
    for number, opened, came, _ in found.values():
        opened.__exit__(None, None, None)
        assert came.whole, came.lines[-4:]
        assert came.text == said(alone, question(number), tokens, ignore_eos=True)
    assert not failed, failed[0]
    assert {came.replica for came in meanwhile} - old, "no new replica was asked before the old ones had ended"
    assert not set(two.replicas()) & old
    models = [one["id"] for one in httpx.get(f"{two.url}/v1/models").json()["data"]]
    assert models == list(names)
    print(f"2 streams ended on the old replicas, {len(meanwhile)} were begun meanwhile, none was dropped")


def test_who_takes_longer_than_is_given_is_told(two):
    """A replica that is replaced while it answers is killed when the time is over; its stream ends as in any death."""
    options = {"drain_seconds": 2.0, "surge": False, "drafters": "none"}
    two.run(**options)
    found = streams(two, 900)
    two.run(fresh=True, **options)
    for _, opened, came, lines in found.values():
        for _ in lines:
            pass
        opened.__exit__(None, None, None)
        assert not came.broke
        assert came.events[-1] == "[DONE]"
    errors = [came.error["code"] for _, _, came, _ in found.values() if came.error]
    assert set(errors) == {"replica_ended"}
