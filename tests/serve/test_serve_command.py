"""``augury serve``: what it refuses at once, how it starts, answers and stops; as a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.errors import InputError

COMMAND = [sys.executable, "-c", "from augury.cli import main; main()", "serve"]


def one_line(text):
    assert text.startswith("augury: ")
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["smolm2-135m"], "did you mean 'smollm2-135m'"),
        (["/nonexistent/model"], "there is no directory or file /nonexistent/model"),
        (["--drafters", "sufix"], "did you mean 'suffix'"),
        (["--drafters", "model:smollm2-135m,4"], "write model:smollm2-135m,NAME=4"),
        (["--acceptance", "couple"], "did you mean 'coupled'"),
        (["--port", "65536"], "--port is 65536; it must be from 0 to 65535"),
        (["--host", "999.1.1.1"], "--host 999.1.1.1: "),
        (["--max-num-seqs", "0"], "--max-num-seqs is 0; it must be 1 or more"),
        (["--max-num-queued-reqs", "-1"], "--max-num-queued-reqs is -1; it must be 0 or more"),
        (["--request-timeout", "nan"], "--request-timeout is nan"),
        (["--shutdown-timeout", "inf"], "--shutdown-timeout is inf"),
        (["--stream-interval", "0"], "--stream-interval is 0"),
        (["--stream-mode", "smoth"], "did you mean 'smooth'"),
        (["--per-request-spec-decode-metrics", "full"], "Valid: detailed, none, summary"),
        (["--metrics-compat", "vlm"], "did you mean 'vllm'"),
        (["--api-key", ""], "--api-key is empty"),
        (["--num-draft-tokens", "65"], "--num-draft-tokens is 65; it must be from 1 to 64"),
        (["--speculative-config", "{"], "--speculative-config is not JSON"),
        (["--speculative-config", '{"methd": "ngram"}'], "did you mean 'method'"),
        (["--speculative-config", '{"method": "ngram"}', "--drafters", "suffix"], "exclude each other"),
        (["--speculative-config", '{"method": "ngram"}', "-md", "x"], "--draft-model exclude each other"),
        (
            ["--speculative-config", '{"method": "suffix", "rejection_sample_method": "block"}', "--acceptance",
             "rejection"],
            "asks for block",
        ),
        (["--kv-cache-memory-bytes", "0"], "give a number, as in 2000000000 or 2G"),
        (["--kv-cache-memory-bytes", "2Q"], "--kv-cache-memory-bytes is '2Q'"),
        (["--config", "/nonexistent/c.yaml"], "cannot read /nonexistent/c.yaml"),
        (["--stream-mode", "private", "--drafters", "suffix,memory:/tmp/x"], "private and the drafter memory exclude"),
        (["--max-total-body-bytes", "1000"], "--max-total-body-bytes is 1000; it must be 8388608 or more"),
        (["--model", "smollm2-135m"], "the model is an argument: augury serve smollm2-135m"),
        (["--default-max-tokens", "0"], "--default-max-tokens is 0; it must be 1 or more"),
        (["--max-tokens-limit", "-5"], "--max-tokens-limit is -5; it must be 1 or more"),
        (["--default-max-tokens", "9", "--max-tokens-limit", "8"], "is 9, above --max-tokens-limit 8"),
        (["--trace-bytes", "5k"], "--trace-bytes is 5k; it must be 0, or 65536 or more"),
        (["--trace-bytes", "much"], "--trace-bytes is 'much'; give a number"),
        (["--trace-bytes", "٦٤M"], "--trace-bytes is '٦٤M'; give a number"),
        (["--trace-bytes", "1_0M"], "--trace-bytes is '1_0M'; give a number"),
        (["--trace-bytes", "99999999999999999999T"], "is '99999999999999999999T'; at most 1024T can be given"),
        (["--kv-cache-memory-bytes", "1e30"], "--kv-cache-memory-bytes is '1e30'; give a number"),
        (["--kv-cache-memory-bytes", "9" * 400], "at most 1024T can be given"),
        (["--trace-bytes", "0", "--trace", "t.jsonl"], "--trace-bytes 0 and --trace exclude each other"),
        (["--trace-bytes", "0", "--trace-text"], "--trace-bytes 0 and --trace-text exclude each other"),
        (["--trace", "/nonexistent/t.jsonl"], "there is no directory /nonexistent"),
        (["--trace-key", " look"], "--trace-key begins or ends with white space"),
        (["--stream-mode", "private", "--trace", "t.jsonl"], "--stream-mode private and --trace exclude each other"),
        (["--stream-mode", "private", "--trace-key", "look"], "private and --trace-key exclude each other"),
        (["--stream-mode", "private", "--trace-text"], "private and --trace-text exclude each other"),
        (["--trace-bytes", "0", "--trace-key", "look"], "--trace-bytes 0 and --trace-key exclude each other"),
        (["--trace-text", "--api-key", "k"], "--trace-text has no effect: no trace is shown, as it asks for API keys"),
        (["--trace-text", "--host", "0.0.0.0"], "no trace is shown, as other machines reach it, and its operator set"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_one_line_and_exit_code_2(args, said, nothing_loaded):
    done = CliRunner().invoke(app, ["serve", *args])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in one_line(done.stderr)


def test_fewer_requests_run_at_once_where_their_caches_do_not_fit(capsys):
    from augury.cli.flags import Running
    from augury.cli.serve import Admitting

    running = Running(max_model_len=1024)
    for budget, slots in (("26000000", 1), ("50M", 2), ("1G", 4), (None, 4)):
        assert Admitting(kv_cache_memory_bytes=budget).slots("smollm2-135m", running) == slots
    assert "caches for 1 of 4 requests fit into 26000000 bytes" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"is 1048576, and one request's cache takes [0-9]+; allow more, or a shorter"):
        Admitting(kv_cache_memory_bytes="1M").slots("smollm2-135m", running)


def test_the_figure_of_a_cache_is_what_it_takes(loaded):
    from augury.models.load import cache_bytes

    forward = loaded.target.forward
    if not hasattr(forward, "_k"):
        pytest.skip("the native forward does not run here")
    assert forward._k.nbytes + forward._v.nbytes == loaded.slots * cache_bytes("smollm2-135m", max_model_len=2048)


@pytest.mark.parametrize("args", [["--speculative-config", '{"methd": 1}'], ["--drafters", "sufix"], ["nonsense"]])
def test_a_mistake_is_known_before_anything_heavy_is_imported(args):
    code = (
        "import sys; sys.argv = ['augury', 'serve', *sys.argv[1:]]\n"
        "from augury.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'transformers', 'fastapi', 'uvicorn'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_port_in_use_is_known_before_anything_heavy_is_imported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = (
            "import sys; from augury.cli import app\n"
            "try: app(['serve', '--port', sys.argv[1]])\n"
            "except SystemExit as e: print(e.code, {'torch', 'fastapi', 'uvicorn'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code, str(port)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 set()\n"
    assert f"port {port} of 127.0.0.1 is in use" in one_line(done.stderr)


def test_a_missing_package_is_named_with_its_command(monkeypatch, nothing_loaded):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    done = CliRunner().invoke(app, ["serve"])
    assert done.exit_code == 2
    assert "pip install 'augury[server]'" in one_line(done.stderr)


# ---- a process of its own ----------------------------------------------------------------------------------


class Served:
    """A server that was started; what it writes to stderr is kept."""

    def __init__(self, args, env):
        self.process = subprocess.Popen(
            args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def said(self):
        return "".join(self.lines)

    def wait_for(self, pattern, seconds=120.0):
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said)):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.05)
        return found

    def ended(self, seconds=60.0):
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


@contextmanager
def process(args, env=None):
    served = Served(args, env or {})
    try:
        yield served
    finally:
        served.process.kill()
        served.ended(10)
        served.process.stdout.close()
        served.process.stderr.close()


def ask(port, method, path, body=None, headers=None):
    """(status, headers, body) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    text = None if body is None else json.dumps(body)
    kind = {"Content-Type": "application/json"} if text else {}
    connection.request(method, path, text, {**kind, **(headers or {})})
    with connection.getresponse() as response:
        said = response.read()
    connection.close()
    return response.status, dict(response.headers), said


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


KEY = {"Authorization": "Bearer secret"}
CHAT = {"model": "small", "messages": [{"role": "user", "content": "Count: one, two, three."}]}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server from a config file, with its key from the environment: (process, port, answers while it loaded)."""
    port = free_port()
    config = tmp_path_factory.mktemp("serve") / "config.yaml"
    config.write_text(
        f"model: smollm2-135m\nport: {port}\nmax-model-len: 1024\nmax_num_seqs: 2\ndrafters: none\n"
        "served-model-name: [small, other]\nshutdown-timeout: 0.5\nenable-force-include-usage: true\n"
        "per-request-spec-decode-metrics: summary\nmetrics-compat: vllm\n"
    )
    args = [*COMMAND, "--config", str(config), "--max-num-seqs", "3"]
    with process(args, {"AUGURY_API_KEY": "secret second"}) as one:
        early = []
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert one.process.poll() is None, one.said
            try:
                status, headers, body = ask(port, "GET", "/ready", headers=KEY)
            except ConnectionRefusedError:
                time.sleep(0.02)
                continue
            if status == 200:
                break
            early.append((status, headers, body))
            time.sleep(0.05)
        yield one, port, early


def test_who_asks_while_the_model_loads_is_told_so(served):
    _, _, early = served
    assert early
    for status, headers, body in early:
        assert status == 503
        assert headers["retry-after"] == "5"
        assert json.loads(body)["error"]["message"] == "the model is being loaded; ask again in a moment"


def test_the_start_says_what_is_served_and_where(served):
    one, port, _ = served
    said = one.wait_for(r"address .*\n") and one.said
    assert re.search(r"model +smollm2-135m, as small, other\n", said)
    assert re.search(r"drafters +none: plain decoding\n", said)
    assert re.search(r"at once +3 of 1024 tokens each\n", said)  # the command line comes before the file
    assert re.search(r"keys +2 API keys\n", said)
    assert f"http://127.0.0.1:{port}/v1\n" in said
    assert f"  page        http://127.0.0.1:{port}/\n" in said
    assert "  trace " not in said  # with keys, and none of them for it
    assert "secret" not in said


def test_it_answers_and_counts(served):
    _, port, _ = served
    before = ask(port, "GET", "/metrics", headers=KEY)[2].decode()
    status, headers, body = ask(port, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 8}, KEY)
    assert status == 200, body
    answer = json.loads(body)
    assert answer["usage"]["completion_tokens"] == 8
    assert "server" not in headers
    after = ask(port, "GET", "/metrics", headers=KEY)[2].decode()
    count = r'^vllm:generation_tokens_total\{engine="0",model_name="small"\} (\S+)$'
    tokens = [float(re.search(count, text, re.M)[1]) for text in (before, after)]
    assert tokens[1] - tokens[0] == 8


def test_state_is_open_and_the_rest_asks_for_a_key(served):
    _, port, _ = served
    assert ask(port, "GET", "/health")[::2] == (200, b"")
    for path in ("/ready", "/version", "/metrics", "/v1/models"):
        assert ask(port, "GET", path)[0] == 401
        assert ask(port, "GET", path, headers={"X-Api-Key": "second"})[0] == 200


def test_a_foreign_host_header_is_refused(served):
    _, port, _ = served
    assert ask(port, "GET", "/version", headers={**KEY, "Host": "evil.example"})[0] == 400


def test_a_head_without_an_end_is_not_read_for_ever(served):
    _, port, _ = served
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nX: " + b"a" * 200_000)
        assert one.recv(64).startswith(b"HTTP/1.1 4")


def test_what_is_no_http_is_an_error_object_too(served):
    _, port, _ = served
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(b"nonsense\r\n\r\n")
        said = b"".join(iter(lambda: one.recv(4096), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_a_signal_ends_it_in_good_order(served):
    """The last of this server: it stops in the middle of a stream."""
    one, port, _ = served
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {**CHAT, "max_tokens": 900, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {**KEY, "Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    for _ in range(4):
        assert response.readline()
    began = time.monotonic()
    one.process.send_signal(signal.SIGTERM)
    one.wait_for("stopping: 1 requests have 0.5 s to end")
    refused = []
    while time.monotonic() - began < 0.4:
        try:
            refused.append((ask(port, "GET", "/ready", headers=KEY), ask(port, "POST", "/v1/completions", {}, KEY)))
        except OSError:
            break
    for ready, asked in refused:
        assert ready[0] == asked[0] == 503
        assert "Retry-After" in {name.title() for name in asked[1]}
    rest = response.read().decode()
    response.close()
    connection.close()
    frames = [line.removeprefix("data: ") for line in rest.split("\n\n") if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    error = json.loads(frames[-2])["error"]
    assert error["code"] == "server_overloaded"
    assert "stopped before the answer was whole" in error["message"]
    assert one.ended(20) == 0
    assert time.monotonic() - began < 15
    assert "Traceback" not in one.said
    with pytest.raises(ConnectionRefusedError):
        ask(port, "GET", "/health")


STAND_IN = """
import sys, threading, time
from types import SimpleNamespace
from augury.server.running import Front, listen
waiting = threading.Event()
service = SimpleNamespace(running=1, waiting=0, fault=None)
def stop(seconds):
    print("asked to stop", file=sys.stderr, flush=True)
    return waiting.wait(float(sys.argv[1])) or sys.argv[2] == "ended"
service.stop = stop
front = Front(listen("127.0.0.1", 0))
print(front.address, file=sys.stderr, flush=True)
def tick():
    service.fault = sys.argv[3] or None
say = lambda text: print(text, file=sys.stderr, flush=True)
sys.exit(front.run(service, 60.0, tick, say))
"""


def test_a_second_signal_ends_it_at_once():
    with process([sys.executable, "-c", STAND_IN, "60", "ended", ""]) as one:
        one.wait_for("http://")
        time.sleep(0.3)
        one.process.send_signal(signal.SIGINT)
        one.wait_for("asked to stop")
        one.process.send_signal(signal.SIGTERM)
        assert one.ended(5) == 128 + signal.SIGTERM


def test_an_engine_that_ended_ends_the_server_with_an_error():
    with process([sys.executable, "-c", STAND_IN, "0", "ended", "the engine's thread ended: MemoryError"]) as one:
        assert one.ended() == 1
        assert "stopping: the engine's thread ended: MemoryError" in one.said


def test_an_engine_that_does_not_come_back_is_left_behind():
    with process([sys.executable, "-c", STAND_IN, "0", "stuck", ""]) as one:
        one.wait_for("http://")
        time.sleep(0.3)
        one.process.send_signal(signal.SIGTERM)
        assert one.ended() == 1
        assert "exiting without it" in one.said


def test_a_body_that_does_not_come_holds_up_no_end(tmp_path):
    """Nor does one who watches; and the trace file is whole."""
    path = tmp_path / "trace.jsonl"
    port = free_port()
    args = [*COMMAND, "--port", str(port), "--drafters", "none", "--max-model-len", "512", "--trace", str(path)]
    with process(args) as one:
        one.wait_for(f"trace +in memory and in {path}, 64M bytes, no texts\n")
        assert ask(port, "POST", "/v1/completions", {"prompt": "one two three", "max_tokens": 3})[0] == 200
        with (
            socket.create_connection(("127.0.0.1", port)) as half,
            socket.create_connection(("127.0.0.1", port)) as live,
        ):
            head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            half.sendall(head + b"Content-Length: 100\r\n\r\n{")
            live.sendall(b"GET /trace/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert live.recv(100)
            time.sleep(0.3)
            began = time.monotonic()
            one.process.send_signal(signal.SIGTERM)
            said = b"".join(iter(lambda: half.recv(4096), b""))
            assert time.monotonic() - began < 2.0
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"the request has not come whole" in said
        assert one.ended(20) == 0
    kinds = [json.loads(line).get("kind") for line in path.read_text().splitlines()]
    assert (kinds.count("begin"), kinds.count("step"), kinds.count("end")) == (1, 3, 1)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ([], True), (["--host", "0.0.0.0"], False), (["--host", "0.0.0.0", "--page"], True), (["--no-page"], False),
        (["--host", "localhost"], True), (["--api-key", "k"], True),
    ],
)  # fmt: skip
def test_the_page_is_there_on_this_machine_or_where_it_is_asked_for(args, shown):
    from dataclasses import fields

    from typer.main import get_command

    from augury.cli.serve import Admitting, Listening, Showing, Streaming, _settings

    given = get_command(app).commands["serve"].make_context("serve", list(args)).params
    groups = [group(**{f.name: given[f.name] for f in fields(group)})
              for group in (Listening, Admitting, Streaming, Showing)]  # fmt: skip
    assert _settings(*groups).page is shown


def test_a_signal_while_the_model_loads_ends_it():
    with process([*COMMAND, "--port", "0", "--drafters", "none", "--host", "0.0.0.0"]) as one:
        one.wait_for("no --api-key is set: anybody may ask")
        time.sleep(0.5)
        one.process.send_signal(signal.SIGTERM)
        assert one.ended() in (128 + signal.SIGTERM, -signal.SIGTERM)
        assert "Traceback" not in one.said


def test_the_page_on_serving_names_flags_and_series_that_exist(loaded):
    from typer.main import get_command

    from augury.engine.service import Service
    from augury.server.metrics import Metrics

    page = (Path(__file__).resolve().parents[2] / "docs/serving.md").read_text()
    verbs = get_command(app).commands
    flags = {flag for name in ("serve", "trace") for p in verbs[name].params for flag in (*p.opts, *p.secondary_opts)}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"(?ms)^ *```(dockerfile|console).*?^ *```", "", page)))
    assert len(named) > 15
    assert named - flags == set()
    with Service(loaded) as service:
        series = set(re.findall(r"^augury:(\w+)", Metrics("m").exposition(service).decode(), re.M))
    loaded.close()
    table = page.partition("| series | what |")[2].partition("\n\n")[0]
    for name in re.findall(r"`([a-z0-9_]{6,})[`{]", table):
        assert any(one.startswith(name) for one in series), name
