"""Nothing is left of a tool server, whoever is killed, when, and whatever the server does against it."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough(file=1)

SCRIPT = str(Path(__file__).with_name("tool_server.py"))
FAMILY = 4
"""Processes of a stubborn server: itself, two children, and one that has left its session."""
SECONDS = 120.0
OWNER = """
import sys, threading, time
from edge_llm.errors import Unavailable
from edge_llm.tool_servers.process import ServerProcess
from edge_llm.tool_servers.settings import ToolServer

how, phase, mark = sys.argv[2:]
process = ServerProcess(ToolServer("small", command=sys.executable, args=(sys.argv[1], how), env={"MARK": mark}))
def work():
    try:
        process.tools()
        print("idle", flush=True)
        if phase != "idle":
            process.call("sleep", {"seconds": 600})
    except Unavailable:
        pass
threading.Thread(target=work, daemon=True).start()
if phase == "starting":
    while process._child is None:
        time.sleep(0.001)
    print("idle", flush=True)
sys.stdin.readline()
process.close()
"""


def marked(mark):
    """(process, its command) of all that have ``mark`` in their environment, zombies left out: they have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append((int(path.parent.name), (path.parent / "cmdline").read_bytes().replace(b"\0", b" ")[:80]))
        except OSError:
            continue
    return found


def wait_until(holds, what):
    until = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until, what()
        time.sleep(0.02)


def all_end(mark):
    wait_until(lambda: not marked(mark), lambda: marked(mark))


@pytest.fixture
def mark():
    """Of all processes of a test; none outlives it."""
    mark = uuid.uuid4().hex
    yield mark
    left = marked(mark)
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def begun(mark, how, phase):
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, SCRIPT, how, phase, mark],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"MARK": mark},
    )  # fmt: skip


def reached(mark, owner, phase):
    """The phase is there: the server runs with all that it has started."""
    assert owner.stdout.readline() == "idle\n"
    wait_until(lambda: sum(b" sleep" in b" " + command for _, command in marked(mark)) >= FAMILY - 1, lambda: marked(mark))
    if phase == "a call":
        time.sleep(0.5)


PHASES = {"starting": "stubborn silence", "idle": "stubborn", "a call": "stubborn"}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["owner", "beside", "server"])
def test_nothing_is_left_of_a_stubborn_server_whoever_is_killed(mark, phase, victim):
    with begun(mark, PHASES[phase], phase) as owner:
        reached(mark, owner, phase)
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid, _ in marked(mark)}
        beside = next(pid for pid, words in commands.items() if b"edge_llm.tool_servers.inside" in words)
        server = next(pid for pid, words in commands.items() if words[1] == SCRIPT.encode())
        os.kill({"owner": owner.pid, "beside": beside, "server": server}[victim], signal.SIGKILL)
        if victim != "owner":
            owner.stdin.write("end\n")
            owner.stdin.flush()
        all_end(mark)


@pytest.mark.parametrize("phase", PHASES)
def test_nothing_is_left_of_a_stubborn_server_that_is_closed(mark, phase):
    with begun(mark, PHASES[phase], phase) as owner:
        reached(mark, owner, phase)
        owner.stdin.write("end\n")
        owner.stdin.flush()
        all_end(mark)


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("how", ["stubborn silence", "stubborn", "pages"])
@pytest.mark.parametrize("after", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_nothing_is_left_when_the_owner_is_killed_on_the_way(mark, how, after):
    """In the middle of a start: of the process beside it, of what launches the server, and of the server."""
    with begun(mark, how, "starting") as owner:
        assert owner.stdout.readline() == "idle\n"
        time.sleep(after)
        owner.kill()
        all_end(mark)
