"""`edge-llm serve` as a process: start, signals, keys, and refusals."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from edge_llm.cli.keys import read_keys
from edge_llm.cli.main import run
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kv.pages import page_bytes
from edge_llm.paths import builtin_bundle

pytestmark = pytest.mark.thorough(file=6)

LONG = {"messages": [{"role": "user", "content": "Tell me a story"}], "stream": True, "ignore_eos": True, "temperature": 0}


BUILTIN_PAGE = page_bytes(open_bundle(builtin_bundle()).decoder.attentions)

COMMAND = [sys.executable, "-m", "edge_llm", "serve", "--threads", "1"]


@contextlib.contextmanager
def served(*options, model="builtin", env=None, **process_options):
    """A server process of ``model`` (None: of all) on a free port; yields (process, address) once it is ready."""
    command = [*COMMAND, *([] if model is None else [model]), "--port", "0", *options]
    environment = os.environ | (env or {})
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **process_options)
    try:
        line = process.stderr.readline()
        url = re.search(r"http://[^/]+", line)[0]
        wait_until_ready(url)
        yield process, url
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_until_ready(url):
    """Until the server says that it answers."""
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(httpx.ConnectError):
            if httpx.get(f"{url}/health").status_code == 200:
                return
        assert time.monotonic() < until, "the server did not get ready"
        time.sleep(0.02)


def wait_for_requests(url, count):
    """Until ``count`` requests are being answered."""
    until = time.monotonic() + 60
    while f"edge_llm_requests_processing {count}\n" not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < until, "the requests did not come"
        time.sleep(0.01)


def test_a_signal_lets_answers_end_and_the_exit_code_is_0():
    """HTTP | process | SIGTERM drains: running streams end whole, then exit code 0."""
    with served("--drain", "120") as (process, url):
        found = []

        def read():
            found.append(httpx.post(f"{url}/v1/chat/completions", json=LONG | {"max_tokens": 800}, timeout=120).text)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        wait_for_requests(url, 3)
        process.send_signal(signal.SIGTERM)
        for reader in readers:
            reader.join()
        assert process.wait(60) == 0
    assert len(found) == 3
    for text in found:
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in text


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_patience_the_end_comes_at_once(number):
    """HTTP | process | With `--drain 0` the end comes at once, and streams say why they are cut."""
    with served("--drain", "0") as (process, url):
        found = []
        reader = threading.Thread(
            target=lambda: found.append(httpx.post(f"{url}/v1/chat/completions", json=LONG | {"n": 8}, timeout=120).text)
        )
        reader.start()
        wait_for_requests(url, 8)
        process.send_signal(number)
        assert process.wait(60) == 0
        reader.join()
    assert "shutting down" in found[0] or '"finish_reason":"length"' in found[0]


def test_a_second_signal_does_not_wait():
    with served("--drain", "60", "--quiet") as (process, url):
        body = LONG | {"n": 16, "max_tokens": 1000}
        reader = threading.Thread(target=leave, args=(url, body))
        reader.start()
        wait_for_requests(url, 16)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.readline()
        assert "under way" in said and "60 s" in said  # whoever waits is told what for
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        reader.join()


def leave(url, body):
    """Read a stream until the server goes away."""
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path):
    """HTTP | process | `--api-key-file` and EDGE_LLM_API_KEY; the key is never printed."""
    keys = tmp_path / "keys"
    keys.write_text("first-key\nsecond-key\n")
    keys.chmod(0o600)
    with served("--api-key-file", str(keys), "--alias", "gpt-x", env={"EDGE_LLM_API_KEY": "third-key"}) as (process, url):
        for key in ("first-key", "second-key", "third-key"):
            models = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}).json()["data"]
            assert [model["id"] for model in models] == ["builtin", "gpt-x"]
        assert httpx.get(f"{url}/v1/models").status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "-key" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--host", "0.0.0.0"], 2, "--api-key-file"), (["--port", "70000"], 2, "70000"), (["--port", "x"], 2, "x"),
        (["--host", "no.such.host.invalid"], 2, "no.such.host.invalid"),
        (["--host", "203.0.113.7", "--api-key", "k"], 2, "203.0.113.7"),
        (["no-such-model"], 1, "no-such-model"), (["--api-key-file", "/no/such/file"], 2, "/no/such/file"),
        (["--parallel", "0"], 2, "parallel"), (["--parallel", "1025"], 2, "parallel"), (["--parallel", "many"], 2, "many"),
        (["--queue", "0"], 2, "queue"), (["--drain", "-1"], 2, "drain"), (["--threads", "0"], 2, "threads"),
        (["builtin", "--port", "0", "--ctx", "99999999"], 2, "--ctx"),
        (["builtin", "--port", "0", "--kv-memory", "1KiB"], 2, f"the least is {BUILTIN_PAGE} bytes"),
        (["--drain", "nan"], 2, "nan"), (["--drain=-nan"], 2, "nan"), (["--drain", "inf"], 2, "inf"),
        (["--batch-window", "nan"], 2, "nan"), (["--batch-window", "x"], 2, "x"),
        (["--memory", "much"], 2, "--memory `much` is an invalid amount"), (["--kv-memory", "0"], 2, "--kv-memory must be"),
        (["--prefix-cache", "much"], 2, "prefix cache"), (["--device", "nowhere"], 2, "no device `nowhere`"),
        (["--cpus", "4000"], 2, "may not use CPU 4000"),
        (["--keep-alive", "soon"], 2, "--keep-alive takes seconds"), (["--models-memory", "0"], 2, "--models-memory must be"),
        (["--models-memory", "500%"], 2, "of which"),
        (["--alias", "x"], 2, "--alias is another name for one model"),
        *((["--port", "0", "--host", host], 2, "not an address") for host in
          ("a" * 70, "a" * 70 + ".com", "a..b", "", " ", "\udcff", "a" * 300, "1.2.3.4.5", "b\u00fccher.invalid", "::1%nope")),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(capsys, arguments, code, words):
    assert run(["serve", *arguments]) == code
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "arguments", [("--strict-models",), ("--yes",), ("--no-store",), ("builtin", "--keep-alive", "5m")], ids=" ".join
)
def test_an_option_without_effect_is_named(capsys, arguments):
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends at once
        assert run(["serve", *arguments, "--port", str(taken.getsockname()[1])]) == 1
    named = next(word for word in arguments if word.startswith("--"))
    assert f"{named} has no effect: " in capsys.readouterr().err


def test_a_port_that_another_has_is_no_misuse(capsys):
    """The machine refuses it, and the same command may succeed later."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "--port", str(taken.getsockname()[1])]) == 1
        assert f"port `{taken.getsockname()[1]}`" in capsys.readouterr().err


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", [0.0, 0.0, 0.05, 0.3])
def test_a_signal_behind_the_serving_line_is_never_lost(number, delay):
    """HTTP | process | From the `Serving` line on, one SIGTERM or SIGINT ends the server, with exit code 0."""
    with subprocess.Popen([*COMMAND, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        time.sleep(delay)
        process.send_signal(number)
        try:
            said += process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Serving" in said
    assert "Traceback" not in said


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.5])
def test_signals_at_any_moment_of_a_drain_end_it_in_time(delay):
    """Streams run, one of them is never read, one request never comes whole; then signals, three of them."""
    with served("--drain", "2") as (process, url):
        host, port = url.removeprefix("http://").split(":")
        silent = socket.create_connection((host, int(port)))
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        silent.sendall(head + b"Content-Length: 9\r\n\r\n")
        readers = [threading.Thread(target=leave, args=(url, LONG | {"n": 4, "max_tokens": 900})) for _ in range(2)]
        for reader in readers:
            reader.start()
        wait_for_requests(url, 8)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            time.sleep(delay)
        assert process.wait(60) == 0
        for reader in readers:
            reader.join()
        silent.close()
        assert "Traceback" not in process.stderr.read()


def test_work_that_cannot_be_stopped_does_not_hold_the_end_up():
    """A prompt of megabytes is being tokenized when the signal comes."""
    with served("--drain", "0") as (process, url):
        body = {"content": "Once upon a time there was a dog. " * 100_000}
        asking = threading.Thread(target=ask, args=(f"{url}/tokenize", body))
        asking.start()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        asking.join()
        assert "Traceback" not in process.stderr.read()


def ask(url, body):
    """Post and forget."""
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url, json=body, timeout=120)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("streams", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full", "2> >(true)"])
def test_it_serves_whatever_its_standard_streams_are(streams):
    """HTTP | process | Closed, full or broken stdout and stderr do not keep it from serving."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    line = f"exec {' '.join(COMMAND)} --port {port} {streams}"
    process = subprocess.Popen(["bash", "-c", line], stdin=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "made_up": 1}  # which the log remarks on
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.thorough
def test_a_server_with_too_many_connections_goes_on_answering():
    """HTTP | process | Connections leave descriptors to files; one too many is 503, and the log says it every ten seconds."""

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with served("--quiet", preexec_fn=few) as (process, url), httpx.Client(base_url=url, timeout=60) as kept:
        host, port = url.removeprefix("http://").split(":")
        assert kept.get("/health").status_code == 200
        connections = [socket.create_connection((host, int(port))) for _ in range(100)]
        time.sleep(0.5)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        assert kept.post("/v1/chat/completions", json=body).status_code == 200
        assert connections[-1].recv(4096).startswith(b"HTTP/1.1 503 ")
        for connection in connections:
            connection.close()
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = process.stderr.read()
    assert "ulimit -n" in said
    assert len(said.splitlines()) <= 2


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("limit", "value", "words"), [("NOFILE", 24, "ulimit -n"), ("AS", 600 << 20, "memory")])
def test_low_limits_are_one_line(limit, value, words):
    def lower():
        kind = getattr(resource, f"RLIMIT_{limit}")
        resource.setrlimit(kind, (value, value))

    command = [*COMMAND, "builtin", "--port", "0"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(command, preexec_fn=lower, capture_output=True, text=True, timeout=60, env=environment)
    assert found.returncode in (1, 2)
    assert found.stderr.splitlines()[-1].startswith("error: ")
    assert words in found.stderr
    assert "internal error" not in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_a_key_file_without_keys_is_refused(tmp_path, content):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_keys(path)


def test_a_key_file_that_others_can_read_is_remarked_on(tmp_path, capsys):
    path = tmp_path / "keys"
    path.write_text("k")
    path.chmod(0o644)
    assert read_keys(path) == ["k"]
    assert "chmod 600" in capsys.readouterr().err


def test_a_folder_is_no_key_file(tmp_path):
    with pytest.raises(UsageError):
        read_keys(tmp_path)


def test_a_bundle_is_served_under_its_name(tmp_path):
    """HTTP | process | Greedy tokens over HTTP are those of `edge-llm run`."""
    arguments = [sys.executable, "-m", "edge_llm", "run", "builtin", "Who are you?", "--temperature", "0", "--json"]
    alone = json.loads(subprocess.run(arguments, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout)
    with served() as (_, url):
        body = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    assert reply["choices"][0]["message"]["content"] == alone["text"]


def gauge(url, name):
    return int(re.search(rf"^edge_llm_{name} (\d+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)[1])


def answer_and_cached(url):
    """Content of a greedy answer to a prompt of several pages, and how many of its tokens were known."""
    body = {"messages": [{"role": "user", "content": "Tell me a story. " * 10}], "temperature": 0, "max_tokens": 8}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("size", "kept"), [("16MiB", True), ("0", False)])
def test_a_prefix_cache_outlives_the_server(tmp_path, size, kept):
    """HTTP | process | `--prefix-cache` keeps pages of prompts for the next server; 0 keeps none."""
    replies = []
    for _ in range(2):
        with served("--prefix-cache", size, env={"EDGE_LLM_HOME": str(tmp_path)}) as (process, url):
            replies.append(answer_and_cached(url))
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    (first, cold), (second, known) = replies
    assert (first, cold) == (second, 0)
    assert (known > 0) is kept
    assert any(tmp_path.rglob("*.page")) is kept


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("pages", "expected"), [(10, 10), (1, 4)])
def test_kv_memory_is_the_pages_of_all_requests(pages, expected):
    """HTTP | process | `--kv-memory` decides how many pages there are, but one request of the whole context always fits."""
    with served("--ctx", "64", "--kv-memory", str(pages * BUILTIN_PAGE)) as (_, url):
        assert gauge(url, "kv_pages") == expected


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("way", [("--parallel", "3"), "EDGE_LLM_PARALLEL", "config file"])
def test_parallel_is_the_most_answers_at_a_time(way, tmp_path):
    """HTTP | process | `--parallel` (or its variable, or the config file) is how many answers run at a time; others wait."""
    config = tmp_path / "config.toml"
    config.write_text("[serve]\nparallel = 3\n" if way == "config file" else "")
    env = {"EDGE_LLM_CONFIG": str(config)} | ({way: "3"} if way == "EDGE_LLM_PARALLEL" else {})
    body = {"prompt": "Once upon", "temperature": 0, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with served(*(way if isinstance(way, tuple) else ()), env=env) as (_, url), contextlib.ExitStack() as open_streams:
        props = httpx.get(f"{url}/props").json()
        assert (props["total_slots"], props["limits"]["parallel"]) == (3, 3)
        client = open_streams.enter_context(httpx.Client(timeout=60))
        for _ in range(20):
            open_streams.enter_context(client.stream("POST", f"{url}/v1/completions", json=body))
        running, waiting = gauge(url, "requests_processing"), gauge(url, "requests_deferred")
        assert running <= 3 and running + waiting <= 20
        assert waiting > 0


def test_kv_memory_decides_below_parallel():
    """HTTP | process | Of `--parallel` answers only as many run as have room in `--kv-memory`; each is whole."""
    body = {"prompt": "Once upon", "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    options = ("--ctx", "64", "--kv-memory", str(4 * BUILTIN_PAGE), "--parallel", "512")
    with served(*options) as (_, url), ThreadPoolExecutor(9) as clients:
        replies = [clients.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=120) for _ in range(9)]
        texts = [reply.result().json()["choices"][0]["text"] for reply in replies]
    assert len(set(texts)) == 1 and texts[0]


def test_a_batch_window_waits_for_company():
    """HTTP | process | Within `--batch-window` requests wait together; a server that ends answers them at once."""
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0, "max_tokens": 8}
    with served("--batch-window", "10000") as (process, url), ThreadPoolExecutor(2) as clients:
        for _ in range(9):  # on a busy machine the second one may come behind the window of the first
            replies = [clients.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=120) for _ in range(2)]
            waits = (0, 0)
            while waits != (0, 2) and not any(reply.done() for reply in replies):
                waits = (gauge(url, "requests_processing"), gauge(url, "requests_deferred"))
            if waits == (0, 2):
                break
            assert all(reply.result().status_code == 200 for reply in replies)
        assert waits == (0, 2), "two requests did not wait together"
        process.send_signal(signal.SIGTERM)
        texts = {reply.result().json()["choices"][0]["message"]["content"] for reply in replies}
        assert len(texts) == 1
        assert process.wait(60) == 0
