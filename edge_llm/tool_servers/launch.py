"""Starts a server of tools, and ends it with everything that it has started: `python -I launch.py OWNER COMMAND ...`.

Runs as a file of its own between the server and OWNER, the process that talks to it, and imports only the standard library.
What the server starts becomes this one's child when its own parent ends, so that nothing gets away, whatever session it is in.
All of it is killed when the server ends, when OWNER ends, however that is, and when somebody asks this process to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_SIGNAL_AT_PARENTS_DEATH, _ADOPT_ORPHANS = 1, 36
"""Of prctl."""
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_UNKNOWN_COMMAND = 127
_MOST_KILL_SECONDS = 10.0


def main(owner: int, command: list[str]) -> int:
    """Run ``command`` to its end, or until this process is to end; its exit code."""
    heard = {*_ENDS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    _prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGTERM)
    _prctl(_ADOPT_ORPHANS, 1)
    if os.getppid() != owner:  # it ended before that could be told
        return 1
    server = os.fork()
    if server == 0:
        _become(command, heard)
    _let_go_of_pipes()
    code = None
    while code is None and signal.sigwait(heard) == signal.SIGCHLD:
        code = _reap(server)
    _kill_all()
    return 1 if code is None else code


def _become(command: list[str], heard: set[signal.Signals]) -> None:
    """Turn this process into ``command``."""
    try:
        _prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # the limit is for the process that talks to it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
        os.execvp(command[0], command)
    except OSError as failure:
        os.write(2, f"{command[0]}: {failure.strerror}\n".encode())
    finally:
        os._exit(_UNKNOWN_COMMAND)


def _let_go_of_pipes() -> None:
    """They are the server's: who talks to it sees when it closes them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _reap(server: int) -> int | None:
    """Take note of all children that have ended; the exit code of ``server``, if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == server:
                code = os.waitstatus_to_exitcode(ended[1])
    return code if code is None or code >= 0 else 128 - code


def _kill_all() -> None:
    """Kill everything below this process until nothing is left, what is born meanwhile too; what is not ours to kill stays."""
    until = time.monotonic() + _MOST_KILL_SECONDS
    while time.monotonic() < until:
        for pid in _descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _descendants() -> list[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _processes() -> Iterator[tuple[int, int]]:
    """(process, its parent) of all."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended
            yield int(path.parent.name), int(path.read_bytes().rpartition(b")")[2].split()[1])


def _prctl(what: int, value: int) -> None:
    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
