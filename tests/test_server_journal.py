"""`serve` tells of each request in a line."""

import json
import re
import socket
import threading
import time

import httpx
import pytest
from serving import HandService, client_of, end, hosted, serving
from test_server_run import served

from edge_llm.cli.main import run
from edge_llm.engine.request import Delta
from edge_llm.server import limits
from edge_llm.server.journal import Entry, Journal
from edge_llm.server.pool import ModelPool

pytestmark = pytest.mark.thorough(file=6)

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}
LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?P<method>\S+) (?P<path>\S+) (?P<status>\d+)(?: (?P<model>\S+))??"
    r"(?: (?P<read>\d+) tokens in, (?P<written>\d+) out,)? (?P<seconds>[\d.]+) s(?:: (?P<trouble>.*))?"
)


@pytest.fixture(scope="module")
def listed(engine):
    """(client, the lines of all requests so far); what each test reads it empties."""
    lines = []
    pool = ModelPool(hosted(engine=engine), strict=True, journal=lines.append)
    with client_of(pool) as client:
        yield client, lines


@pytest.fixture(autouse=True)
def empty(request):
    if "listed" in request.fixturenames:
        request.getfixturevalue("listed")[1].clear()


def told(lines, count=1):
    """What ``count`` lines say; a line comes behind the answer."""
    until = time.monotonic() + 60
    while len(lines) < count:
        assert time.monotonic() < until, "no line came"
        time.sleep(0.005)
    return [LINE.fullmatch(line).groupdict() for line in lines[:count]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_an_answer_is_one_line_with_its_tokens(listed, path, stream):
    """HTTP | log | A line for each request: time, method, path, status, model, tokens in and out, seconds."""
    client, lines = listed
    bodies = {
        "/v1/completions": {"prompt": "hi", "max_tokens": 3, "ignore_eos": True},
        "/v1/responses": {"input": "hi", "max_output_tokens": 3, "ignore_eos": True},
    }
    reply = client.post(path, json=bodies.get(path, CHAT) | {"stream": stream, "model": "an/alias"})
    assert reply.status_code == 200, reply.text
    line = told(lines)[0]
    assert (line["method"], line["path"], line["status"], line["model"]) == ("POST", path, "200", "an/alias")
    assert int(line["read"]) > 0 and line["written"] == "3" and line["trouble"] is None
    assert len(lines) == 1


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("fields", [{"seed": 1}, {"seed": 2}, {"n": 3, "seed": 1}, {"max_tokens": 5}, {"stop": "e"}])
@pytest.mark.parametrize("stream", [{}, STREAMED])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_log_and_the_reply_count_the_same_tokens(listed, path, stream, fields):
    """HTTP | log | The tokens of a line are those of the reply's usage, whatever ended the answers."""
    client, lines = listed
    asked = {"prompt": "Who are you?"} if path == "/v1/completions" else CHAT | {"ignore_eos": False}
    reply = client.post(path, json=asked | {"max_tokens": 200} | fields | stream)
    assert reply.status_code == 200, reply.text
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    usage = next(one["usage"] for one in map(json.loads, reversed(events or [reply.text])) if one.get("usage"))
    line = told(lines)[0]
    assert (int(line["read"]), int(line["written"])) == (usage["prompt_tokens"], usage["completion_tokens"])


def test_a_wrong_model_name_is_told_to_the_person_who_watches(listed):
    """HTTP | log | With --strict-models the 404 of a wrong model name is a line with that name."""
    client, lines = listed
    assert client.post("/v1/chat/completions", json=CHAT | {"model": "gpt-4o"}).status_code == 404
    line = told(lines)[0]
    assert (line["status"], line["model"]) == ("404", "gpt-4o")
    assert "no model `gpt-4o` here" in line["trouble"]


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v1/nothing", 404, "there is no"),
        ("GET", "/v1/chat/completions", 405, "use POST"),
        ("GET", "/v1/models", 200, None),
        ("POST", "/v1/chat/completions", 415, "Content-Type"),
        ("OPTIONS", "/v1/models", 200, None),
    ],
)
def test_every_other_request_is_a_line_too(listed, method, path, status, words):
    client, lines = listed
    assert client.request(method, path).status_code == status
    line = told(lines)[0]
    assert (line["method"], line["path"], line["status"]) == (method, path, str(status))
    assert words is None or words in line["trouble"]


def test_probes_are_told_only_when_something_is_wrong(listed):
    client, lines = listed
    for path in ("/health", "/v1/health", "/metrics"):
        assert client.get(path).status_code == 200
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    assert told(lines)[0]["path"] == "/health" and len(lines) == 1


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "x" * 300, "\u202egnp"])
def test_what_clients_send_reaches_no_terminal_as_it_is(listed, name):
    """HTTP | log | Control characters and line breaks of clients are escaped in the log."""
    client, lines = listed
    client.post("/v1/chat/completions", json=CHAT | {"model": name[:250]})
    client.get("/v1/" + "%1b%0a%e2%80%ae" + "y" * 500)
    told(lines, 2)
    assert all(line.isprintable() and len(line) < 600 for line in lines)


def test_what_is_no_http_is_a_line(engine):
    lines = []
    pool = ModelPool(hosted(engine=engine), journal=lines.append)
    with serving(pool) as url:
        name, port = url.removeprefix("http://").split(":")
        with socket.create_connection((name, int(port))) as connection:
            connection.sendall(b"\x1b[2J nonsense\r\n\r\n")
            assert b"400" in connection.recv(1000)
        assert told(lines)[0]["status"] == "400"


def test_a_client_that_leaves_is_told(engine):
    service, lines = HandService(), []
    pool = ModelPool(hosted(service, engine), journal=lines.append)
    with serving(pool) as url:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=CHAT | {"stream": True}) as reply:
            service.wait_for().put(Delta("x", (5,)))
            next(reply.iter_bytes())
        line = told(lines)[0]
        assert (line["status"], line["written"], line["trouble"]) == ("200", "1", "the client left")
        service.streams[0].put(end())


def test_a_reader_that_does_not_read_holds_nobody_up(monkeypatch):
    """HTTP | log | A log that nobody reads delays no answer."""
    monkeypatch.setattr(limits, "JOURNAL_LINES", 5)
    read, written = threading.Event(), []

    def write(line):
        read.wait(120)
        written.append(line)

    journal = Journal(write)
    for number in range(100):
        journal(str(number))
    assert written == []
    read.set()
    while len(written) < 5:
        time.sleep(0.01)
    journal("last")
    journal.close()
    kept = written.index(next(line for line in written if "not listed" in line))
    assert written[-1] == "last" and written[kept] == f"({100 - kept} requests are not listed: nobody read their lines)"


def test_the_program_tells_of_requests_and_quiet_does_not(edge_llm_home):
    with served() as (process, url):
        httpx.post(f"{url}/v1/chat/completions", json=CHAT)
        assert LINE.fullmatch(process.stderr.readline().strip())["path"] == "/v1/chat/completions"
    (edge_llm_home / "config.toml").write_text("[serve]\nquiet = true\n")
    for options in ((), ("--quiet",)):
        with served(*options) as (process, url):
            httpx.post(f"{url}/v1/chat/completions", json=CHAT)
            process.terminate()
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
        (edge_llm_home / "config.toml").unlink(missing_ok=True)


def test_the_config_file_may_be_quiet(edge_llm_home, capsys):
    (edge_llm_home / "config.toml").write_text("[serve]\nquiet = true\n")
    assert run(["config", "serve"]) == 0
    assert re.search(r"^quiet +true +file", capsys.readouterr().out, re.MULTILINE)


def test_an_entry_counts_from_its_beginning():
    assert LINE.fullmatch(Entry("GET", "/x y\n").line().replace("x y\\n", "xy"))["status"] == "499"
