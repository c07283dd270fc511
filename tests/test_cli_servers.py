"""`edge-llm ps` and `stop`, verbs that take several names, and words that people type."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_server_run import LONG, leave, served, wait_for_requests

from edge_llm.cli.main import run
from edge_llm.errors import Unavailable
from edge_llm.paths import builtin_bundle, bundle_path, servers_folder
from edge_llm.server.running import Running, _began, listed, running

pytestmark = pytest.mark.thorough(file=4)


@pytest.fixture
def call(capsys):
    """(exit code, stdout, stderr) of one call."""

    def call_(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call_


def imported(*names):
    for name in names:
        shutil.copytree(builtin_bundle(), bundle_path(name))


# ---- servers


def test_no_server_is_said(call):
    assert call("ps") == (0, "", "no server is running; `edge-llm serve MODEL` starts one\n")
    assert json.loads(call("ps", "--json")[1]) == []
    assert call("stop") == (1, "", "error: no server is running; `edge-llm ps` lists those that do\n")


def test_a_server_is_listed_and_stopped_by_name_port_and_process(call):
    imported("mine")
    with contextlib.ExitStack() as stack:
        first, url = stack.enter_context(served("--alias", "gpt-x"))
        second, other = stack.enter_context(served(model="mine"))
        third, _ = stack.enter_context(served(model="mine"))
        rows = json.loads(call("ps", "--json")[1])
        assert [(row["model"], row["aliases"], row["pid"], row["state"]) for row in rows] == [
            ("builtin", ["gpt-x"], first.pid, "ready"), ("mine", [], second.pid, "ready"), ("mine", [], third.pid, "ready"),
        ]  # fmt: skip
        assert rows[0]["url"] == url and all(row["memory_bytes"] > 1 << 20 for row in rows)
        table = call("ps")[1].splitlines()
        assert table[0].split() == ["MODEL", "PID", "ADDRESS", "STATE", "MEMORY", "SINCE"]
        assert table[1].split()[:4] == ["builtin", str(first.pid), url, "ready"]
        for words, said in ((("stop",), "3 servers are running"), (("stop", "mine"), "several servers are `mine`")):
            code, _, err = call(*words)
            assert (code, said in err) == (2, True)
        code, _, err = call("stop", "nobody")
        assert (code, "no server `nobody` is running" in err) == (1, True)
        assert call("stop", "gpt-x", other.rpartition(":")[2]) == (
            0, "", f"stopped `builtin` at {url} (process {first.pid})\nstopped `mine` at {other} (process {second.pid})\n",
        )  # fmt: skip
        assert (first.wait(20), second.wait(20), third.poll()) == (0, 0, None)
        stopped = json.loads(call("stop", third.pid, "--json")[1])
        assert [(row["pid"], row["stopped"]) for row in stopped] == [(third.pid, True)]
        assert third.wait(20) == 0
    assert list(servers_folder().iterdir()) == []


def test_models_of_a_server_of_many_are_listed_and_unloaded_by_name(call, tmp_path):
    """Where it asks for a key, too: this user's commands have one of their own."""
    imported("mine", "other")
    (tmp_path / "keys").write_text("secret")
    (tmp_path / "keys").chmod(0o600)
    with served("--api-key-file", str(tmp_path / "keys"), "--kv-memory", "8MiB", model=None) as (process, url):
        port = url.rpartition(":")[2]
        assert json.loads(call("ps", "--json")[1])[0]["models"] == []
        assert httpx.get(f"{url}/v1/models").status_code == 401
        for name in ("mine", "other"):
            asked = httpx.post(
                f"{url}/v1/completions", headers={"Authorization": "Bearer secret"}, timeout=60,
                json={"model": name, "prompt": "Hello", "max_tokens": 2, "keep_alive": -1 if name == "mine" else "1h"},
            )  # fmt: skip
            assert asked.status_code == 200
        (row,) = json.loads(call("ps", "--json")[1])
        assert [(one["name"], one["state"], one["until"] is None) for one in row["models"]] == [
            ("mine", "loaded", True), ("other", "loaded", False),
        ]  # fmt: skip
        assert all(one["memory_bytes"] > 8 << 20 for one in row["models"])
        lines = [line.split() for line in call("ps")[1].splitlines()]
        assert lines[1][:5] == ["(every", "model)", str(process.pid), url, "ready"]
        assert [(*line[:4], *line[5:7]) for line in lines[2:]] == [
            ("mine", "loaded", "up", "to", "MiB", "stays"), ("other", "loaded", "up", "to", "MiB", "until"),
        ]  # fmt: skip
        code, _, err = call("stop", "builtin")
        assert (code, err.endswith(f"`(every model)` at port {port}, and the loaded models `mine`, `other`\n")) == (1, True)
        assert call("stop", "mine", "--now")[0] == 2
        assert call("stop", "mine") == (0, "", f"unloaded `mine` of `(every model)` at {url} (process {process.pid})\n")
        assert json.loads(call("stop", "other", "--json")[1]) == [
            {"model": "other", "pid": process.pid, "url": url, "unloaded": True}
        ]
        assert json.loads(call("ps", "--json")[1])[0]["models"] == []
        assert (call("stop", port)[0], process.wait(60)) == (0, 0)


def test_stop_lets_answers_end_unless_it_is_to_be_now(call):
    with served("--drain", "30", "--quiet") as (process, url), ThreadPoolExecutor(1) as other:
        asking = other.submit(httpx.post, f"{url}/v1/chat/completions", json=LONG | {"max_tokens": 900}, timeout=60)
        wait_for_requests(url, 1)
        assert call("stop")[0] == 0
        assert process.wait(60) == 0
        text = asking.result().text
    assert text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text
    with served("--drain", "60", "--quiet") as (process, url), ThreadPoolExecutor(1) as other:
        other.submit(leave, url, LONG | {"n": 16})
        wait_for_requests(url, 16)
        began = time.monotonic()
        assert call("stop", "--now")[0] == 0
        assert process.wait(60) == 0
        assert time.monotonic() - began < 50


def test_a_killed_server_is_forgotten(call):
    with served() as (process, _):
        process.kill()
        process.wait()
        assert len(list(servers_folder().iterdir())) == 1
        assert json.loads(call("ps", "--json")[1]) == []
    assert list(servers_folder().iterdir()) == []


def test_no_other_process_is_ever_stopped(call):
    """A file may name any process; a signal goes only to the one that began when it says."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        server = Running(("x",), "127.0.0.1", 1, bystander.pid, _began(bystander.pid) + 1, 0.0, 1.0)
        with pytest.raises(Unavailable, match="is not the server `x`"):
            server.ask_to_end()
        assert bystander.poll() is None
        bystander.send_signal(signal.SIGKILL)
    with pytest.raises(Unavailable, match="has ended"):
        server.ask_to_end()


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", '{"names": []}', '{"names": ["\\u001b[2J"], "pid": "1"}', "[" * 5000, "x" * 100_000]
)
def test_files_that_no_server_wrote_are_passed_over(call, text):
    """Also where somebody holds them locked."""
    servers_folder().mkdir()
    path = servers_folder() / "1-2.json"
    path.write_text(text)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert json.loads(call("ps", "--json")[1]) == []


NUMBERS = st.sampled_from([0, -1, 1, 70000, 2**31, 2**70, True, "80", 1.5, 1e300, -1e300, 1e-300, None, [], 10**400])
WRITTEN = {
    "names": st.lists(st.text(max_size=5) | st.integers(), max_size=3) | NUMBERS,
    "host": st.sampled_from(["127.0.0.1", "::1", "::1%lo", "[::1]", "[x", "999.1.1.1", "a\nb", "", "\ud800", "a b", 7, None]),
    "port": NUMBERS,
    "pid": NUMBERS.filter(lambda pid: pid != 1) | st.just(2**31 - 1),
    "began": NUMBERS,
    "since": NUMBERS,
    "drain_seconds": NUMBERS,
    "key": st.sampled_from(["", "a-b_", "a\r\nX: y", "\ud800", "x" * 999, 7, None]),
}
GOOD = {"names": ["x"], "host": "127.0.0.1", "port": 1, "pid": 2**31 - 1, "began": 1, "since": 5.0, "drain_seconds": 1.0}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example({"host": 7})
@given(st.fixed_dictionaries({}, optional=WRITTEN))
def test_whatever_stands_in_a_file_ends_neither_ps_nor_stop(call, written):
    """One odd value among good ones, or several."""
    servers_folder().mkdir(exist_ok=True)
    path = servers_folder() / "1-2.json"
    path.write_text(json.dumps(GOOD | written))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for command, codes in ((("ps",), {0}), (("ps", "--json"), {0}), (("stop", "nobody"), {1}), (("stop", "x"), {1})):
            code, _, err = call(*command)
            assert code in codes and "internal error" not in err and len(err.splitlines()) <= 1, (command, err)


def test_what_is_no_file_is_passed_over(call):
    folder = servers_folder()
    folder.mkdir()
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to("/dev/zero")
    (folder / os.fsdecode(b"\xff.json")).write_text("{}")
    held = [os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK) for name in ("folder.json", "pipe.json")]
    for descriptor in held:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    with listed(["x"], "127.0.0.1", 9, 1.0):
        code, out, err = call("ps", "--json")
        assert (code, [row["model"] for row in json.loads(out)], err) == (0, ["x"], "")
    for descriptor in held:
        os.close(descriptor)


def test_a_home_that_cannot_be_written_stops_no_server(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "file"))
    with listed(["x"], "127.0.0.1", 1, 1.0):
        pass


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"), ("::1", "http://[::1]:80")]
)
def test_a_server_is_asked_where_this_machine_reaches_it(host, url):
    with listed(["x"], host, 80, 1.0):
        (server,) = running()
        assert (server.url, server.pid, server.names) == (url, os.getpid(), ("x",))
    assert running() == []


def test_names_of_models_cannot_move_the_cursor(call):
    with listed(["a\x1b[2J", "b"], "127.0.0.1", 9, 1.0):
        code, out, _ = call("ps")
        assert (code, "\x1b" in out, "no answer" in out) == (0, False, True)
        assert call("stop", "nobody")[2].isprintable() or "\x1b" not in call("stop", "nobody")[2]


# ---- several names


def test_list_shows_the_models_that_are_named(call):
    imported("one", "two", "three")
    assert [line.split()[0] for line in call("list", "two", "one", "two")[1].splitlines()] == ["NAME", "two", "one"]
    assert [row["name"] for row in json.loads(call("list", "builtin", "--json")[1])] == ["builtin"]
    assert call("list", "one", "thre") == (1, "", "error: no model `thre`; did you mean `three`?\n")


def test_show_takes_several_models(call):
    imported("one")
    code, out, err = call("show", "one", "builtin")
    assert (code, err) == (0, "")
    parts = out.split("\n\n")
    assert parts == [call("show", name)[1].rstrip("\n") + end for name, end in (("one", ""), ("builtin", "\n"))]
    assert [facts["name"] for facts in json.loads(call("show", "one", "builtin", "--json")[1])] == ["one", "builtin"]
    assert json.loads(call("show", "one", "--json")[1])["name"] == "one"
    assert call("show", "one", "builtin", "--sensitive=-")[0] == 2


def test_rm_removes_all_that_are_named_or_none(call):
    imported("one", "two", "three")
    for wrong, code in (("tow", 1), ("builtin", 2)):
        assert call("rm", "one", wrong, "--yes")[0] == code
    assert {row["name"] for row in json.loads(call("list", "--json")[1])} == {"builtin", "one", "two", "three"}
    assert call("rm", "one", "two", "--yes") == (0, "", "removed one\nremoved two\n")
    assert {row["name"] for row in json.loads(call("list", "--json")[1])} == {"builtin", "three"}


# ---- words that people type


def test_version_is_a_word_too(call):
    assert call("version") == call("--version")


@pytest.mark.parametrize(
    ("word", "meant"), [("ls", "list"), ("kill", "stop"), ("start", "serve"), ("info", "show"), ("verison", "version")]
)
def test_words_of_other_programs_lead_to_ours(call, word, meant):
    code, _, err = call(word)
    assert (code, err) == (2, f"error: no command `{word}`; did you mean `{meant}`?\n")
