"""Servers of tools by real processes: what they offer and give, and those that hang, lie, die, flood or are not there."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest
from mcp import MCPError
from mcp.types import REQUEST_TIMEOUT

from edge_llm.errors import Unavailable, UsageError
from edge_llm.tool_servers import inside
from edge_llm.tool_servers import process as process_module
from edge_llm.tool_servers.process import ServerProcess
from edge_llm.tool_servers.settings import ToolServer, tool_servers
from edge_llm.user_config import read_user_config

pytestmark = pytest.mark.thorough(file=5)

SCRIPT = str(Path(__file__).with_name("tool_server.py"))
TOOLS = ["add", "environment", "process", "big", "colours", "fail", "closed", "sleep", "die"]


def server(*how, **options):
    return ToolServer("small", command=sys.executable, args=(SCRIPT, *how), **options)


@pytest.fixture(scope="module")
def small():
    process = ServerProcess(server(env={"NOTE": "yes"}))
    yield process
    process.close()


def ends(pid):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_what_a_server_offers_and_gives(small):
    assert [offer.name for offer in small.tools()] == TOOLS
    add = small.tools()[0]
    assert (add.server, add.description) == ("small", "Adds two numbers.")
    assert set(add.schema["properties"]) == {"a", "b"}
    assert small.call("add", {"a": 2, "b": 40}).text == "42"


def test_a_server_gets_no_secrets_of_the_environment(small, monkeypatch):
    monkeypatch.setenv("EDGE_LLM_API_KEY", "secret")
    other = ServerProcess(server(env={"NOTE": "yes"}))
    try:
        assert other.call("environment", {"name": "EDGE_LLM_API_KEY"}).text == "nothing"
        assert other.call("environment", {"name": "NOTE"}).text == "yes"
    finally:
        other.close()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [("add", {"a": "x"}, "valid integer"), ("nothing_like_it", {}, "nothing_like_it"), ("fail", {}, "fail")],
)
def test_a_call_that_fails_says_so_and_the_next_one_is_made(small, name, arguments, said):
    result = small.call(name, arguments)
    assert result.failed and said in result.text
    assert small.call("add", {"a": 1, "b": 1}).text == "2"


def test_megabytes_are_cut_and_told(small):
    result = small.call("big", {"characters": 3_000_000})
    assert result.length == 3_000_000
    assert len(result.text) == 1 << 20


def test_a_call_that_takes_too_long_is_given_up_and_the_server_stays():
    slow = ServerProcess(server(seconds=1.0))
    try:
        pid = slow.call("process", {}).text
        result = slow.call("sleep", {"seconds": 60})
        assert result.failed and "no answer in 1 seconds" in result.text
        assert slow.call("process", {}).text == pid
    finally:
        slow.close()


def test_a_server_that_dies_says_its_last_words_and_starts_again(small):
    before = small.call("process", {}).text
    with pytest.raises(Unavailable, match="`small` is not there: .*it said: out of luck"):
        small.call("die", {})
    assert small.call("process", {}).text != before


def test_a_call_can_be_stopped_and_its_server_ends(small):
    pid = int(small.call("process", {}).text)
    failures = []

    def call():
        try:
            small.call("sleep", {"seconds": 600})
        except Unavailable as error:
            failures.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    for _ in range(20):  # the first may come before the call has begun
        time.sleep(0.3)
        small.stop()
        thread.join(3)
        if not thread.is_alive():
            break
    assert not thread.is_alive() and "its process ended" in failures[0]
    assert ends(pid)
    assert small.call("add", {"a": 1, "b": 1}).text == "2"


def test_what_a_tool_says_of_doors_and_times_is_not_said_of_the_connection(small):
    before = small.call("process", {}).text
    refused = small.call("closed", {})
    assert refused.failed and "The door is closed, the time timed out" in refused.text
    assert small.call("process", {}).text == before


ENDLESS = """
import sys
from edge_llm.tool_servers.process import ServerProcess
from edge_llm.tool_servers.settings import ToolServer
process = ServerProcess(ToolServer("pages", command=sys.executable, args=(sys.argv[1], "pages")))
process._check()
import threading
threading.Thread(target=process.tools, daemon=True).start()
while process._child is None:
    pass
print(process._child.process_id, flush=True)
threading.Event().wait()
"""


def test_the_process_beside_ends_with_a_chat_that_is_killed_whatever_it_does():
    with subprocess.Popen([sys.executable, "-c", ENDLESS, SCRIPT], stdout=subprocess.PIPE, text=True) as chat:
        beside = int(chat.stdout.readline())
        time.sleep(3.0)  # it lists tools by now
        chat.kill()
    assert ends(beside)


def test_closing_ends_the_server():
    process = ServerProcess(server())
    pid = int(process.call("process", {}).text)
    process.close()
    process.close()
    assert ends(pid)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("dies", "it said: no .*licence"),
        ("rubbish", "losed|ended"),
        ("hangs", "no answer|not answer"),
        ("floods", "no answer|not answer|MiB"),
        ("refuses", "the lease timed out, renew it"),
    ],
)
def test_a_server_that_does_not_speak_is_told_in_a_line(how, told, monkeypatch):
    monkeypatch.setattr(process_module, "CONNECT_SECONDS", 3.0 if how in ("hangs", "floods") else 30.0)
    process = ServerProcess(server(how))
    try:
        with pytest.raises(Unavailable, match=f"the tool server `small` is not there: .*({told})") as raised:
            process.tools()
        assert str(raised.value).isprintable()
    finally:
        process.close()


@pytest.mark.parametrize(
    ("failure", "late"),
    [
        (MCPError(REQUEST_TIMEOUT, "zu spät"), True),
        (MCPError(1, "The lease timed out"), False),
        (httpx2.ConnectTimeout(""), True),
        (httpx2.ReadTimeout("nothing"), True),
        (httpx2.ConnectError("timed out of luck"), False),
        (TimeoutError(), True),
        (OSError("the tape timed out"), False),
        (ImportError("timed out"), False),
        (ExceptionGroup("two", [MCPError(REQUEST_TIMEOUT, "late"), ValueError("x")]), True),
    ],
)
def test_what_is_late_is_told_by_its_kind_not_by_its_words(failure, late):
    assert (inside._reason(failure) == "it does not answer") == late
    assert late or "timed out" in inside._reason(failure)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"command": "no-such-program"}, "no program `no-such-program`"),
        ({"command": sys.executable, "cwd": "/no/such/folder"}, "no folder `/no/such/folder`"),
        ({"url": "http://127.0.0.1:9/mcp"}, "onnect"),
    ],
)
def test_a_server_that_cannot_be_started_or_reached(wrong, told):
    process = ServerProcess(ToolServer("small", **wrong))
    try:
        with pytest.raises(Unavailable, match=told):
            process.tools()
    finally:
        process.close()


def test_without_the_package_the_way_out_is_told(monkeypatch):
    monkeypatch.setattr(process_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"the package `mcp`: `pip install"):
        ServerProcess(server()).tools()


def test_a_server_over_http():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = subprocess.Popen(
        [sys.executable, SCRIPT, "http", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ.copy()
    )
    process = ServerProcess(ToolServer("web", url=f"http://127.0.0.1:{port}/mcp"))
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        assert [offer.name for offer in process.tools()] == TOOLS
        assert process.call("add", {"a": 1, "b": 2}).text == "3"
        served.kill()
        served.wait()
        with contextlib.suppress(Unavailable):
            assert process.call("add", {"a": 1, "b": 2}).failed
    finally:
        process.close()
        served.kill()
        served.wait()


# ---- the config file

GOOD = """
[mcp.files]
command = "npx"
args = ["-y", "files"]
env = { LOG = "off" }
[mcp.search]
url = "http://127.0.0.1:8931/mcp"
headers = { Authorization = "Bearer x" }
timeout = 5
[mcp.empty]
[mcp.off]
command = "other"
enabled = false
[chat]
theme = "nord"
"""


def test_servers_are_read_from_the_config_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(GOOD)
    config = read_user_config(file)
    found, problems = tool_servers(config.servers, file)
    assert problems == [] and config.theme == "nord"
    files, search = found
    assert (files.command, files.args, files.env) == ("npx", ("-y", "files"), {"LOG": "off"})
    assert (search.url, search.seconds, search.headers) == ("http://127.0.0.1:8931/mcp", 5.0, {"Authorization": "Bearer x"})


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("timeout = 5", "either `command`"),
        ('command = "a"\nurl = "http://b"', "either `command`"),
        ('url = "file:///etc/passwd"', "the url `file:///etc/passwd`"),
        ('command = "a"\nargs = "b"', "`args` must be a list"),
        ('command = "a"\nenv = { A = 1 }', "`env` must be a table of texts"),
        ('command = "a"\ntimeout = 0', "`timeout` must be seconds"),
        ('command = "a"\nenabled = "yes"', "`enabled` must be true or false"),
        ('command = "a"\ncomand = "b"', "no `comand` here; there are: command"),
        ("command = 3", "`command` must be a text"),
    ],
)
def test_what_is_wrong_with_one_server_keeps_no_other_away(tmp_path, table, told):
    file = tmp_path / "config.toml"
    file.write_text(f'[mcp.bad]\n{table}\n[mcp.good]\ncommand = "x"\n')
    found, problems = tool_servers(read_user_config(file).servers, file)
    assert [each.name for each in found] == ["good"]
    (problem,) = problems
    assert told in problem and problem.startswith("[mcp.bad] of `") and "\n" not in problem


def test_a_server_that_stands_in_no_table_of_its_own(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[mcp]\ncommand = "x"\n')
    with pytest.raises(UsageError, match=r"write \[mcp.NAME\]"):
        read_user_config(file)
