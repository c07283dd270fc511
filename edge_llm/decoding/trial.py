"""A grammar is tried in another process before it is compiled in this one.

The library that compiles grammars recurses as deep as their parts refer to one another, and some grammars of a line take it
minutes and gigabytes.  It does the same every time, so what went well in a process with less stack goes well in this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from edge_llm.decoding import trial_process
from edge_llm.errors import OutOfMemory, Overloaded, UsageError
from edge_llm.files import shown

STACK_BYTES = 32 << 20
"""Stack of a trial; a level of references takes 2 to 10 KB of it."""
MAX_BYTES = 48 << 20
"""Memory that one grammar may take."""
SECONDS = 2.0
"""Processor time of a trial."""
MAX_WAIT_SECONDS = 20.0
"""A process that does not even use its processor time is not waited for."""
_DEEP = "refers from part to part too deeply; write parts where they are used"
_BIG = f"takes more than {MAX_BYTES >> 20} MiB of memory; make it smaller"
_KILLED = {
    signal.SIGPROF: f"takes more than {SECONDS:g} s to prepare; make it simpler",
    signal.SIGSEGV: _DEEP,
    signal.SIGBUS: _DEEP,
}
_T = TypeVar("_T")


class Trial:
    """Tries grammars for one vocabulary, one at a time, in a process that starts now, and again whenever it has ended."""

    def __init__(self, library: Any, vocabulary: dict[str, Any]) -> None:
        self._folder = str(Path(library.__file__).parents[1])
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = self._started()

    def __call__(self, source: str, name: str = "the grammar") -> tuple[str, int]:
        """(what the library says is wrong with ``source``, or nothing; how many bytes it takes).

        Raises `UsageError` for a grammar that takes too much of anything, `OutOfMemory` when there can be no process,
        `Overloaded` when the system does not let it run.
        """
        answer = self._answer({"source": source}, name)
        if answer["bytes"] > MAX_BYTES and not answer["error"]:
            raise UsageError(f"{name} {_BIG}")
        return str(answer["error"]), int(answer["bytes"])

    def lark_of(self, gbnf: str) -> str:
        """The Lark text of a GBNF text; raises what a trial raises."""
        answer = self._answer({"gbnf": gbnf}, "the grammar")
        if answer["error"]:
            raise UsageError(f"the grammar is not GBNF: {shown(answer['error'])}")
        return str(answer["lark"])

    def _answer(self, question: dict[str, str], name: str) -> dict[str, Any]:
        with self._lock:
            answer = self._asked(question)
            if answer is None:  # it ends when it has been idle for a while
                self._process = self._started()
                answer = self._asked(question)
        if answer is None:
            raise OutOfMemory("the process that tries grammars ends before its time; leave more memory to edge-llm")
        if "killed" in answer:
            raise UsageError(f"{name} {_KILLED.get(answer['killed'], _BIG)}")
        return answer

    def _asked(self, question: dict[str, str]) -> dict[str, Any] | None:
        """The answer to ``question``; None when the process has ended."""
        process, self._process = self._process, None  # an answer that nobody waits for is not the next one's
        if process is None:
            return None
        until = time.monotonic() + MAX_WAIT_SECONDS
        try:
            with _killed_at(until, process):
                _write(process, question)
                assert process.stdout is not None
                said = process.stdout.readline()
        except BaseException:
            _end(process)
            raise
        if not said.endswith(b"\n"):
            _end(process)
            if time.monotonic() >= until:
                raise Overloaded(f"a grammar was not tried in {MAX_WAIT_SECONDS:g} seconds; the machine is too busy")
            return None
        self._process = process
        answer: dict[str, Any] = json.loads(said)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        limits = [str(STACK_BYTES), str(2 * MAX_BYTES), str(SECONDS)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", trial_process.__file__, self._folder, *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            raise OutOfMemory(f"there is no process to try the grammar in: {error.strerror}") from None
        weakref.finalize(self, _end, process)
        _write(process, self._vocabulary)
        return process


def _write(process: subprocess.Popen[bytes], value: Any) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(value).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        pass  # it has ended, and will answer nothing


@contextmanager
def _killed_at(until: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whoever writes to ``process`` or reads from it waits no longer than ``until``, in seconds of the monotonic clock."""
    watch = threading.Timer(until - time.monotonic(), _kill, [process])
    watch.daemon = True
    try:
        watch.start()
    except RuntimeError:
        raise OutOfMemory("there is no memory for a thread that watches over the trial of a grammar") from None
    try:
        yield
    finally:
        watch.cancel()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and the fork in which it tries a grammar."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # a line that nobody reads any more
                pipe.close()


_stack_size_lock = threading.Lock()


def on_deep_stack(work: Callable[[], _T]) -> _T:
    """What ``work`` returns or raises, on a thread that has twice the stack of a trial."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    with _stack_size_lock:
        usual = threading.stack_size(2 * STACK_BYTES)
        try:
            threading.Thread(target=run, name="grammar").start()
        except RuntimeError:
            raise OutOfMemory("there is no memory for the stack on which grammars are prepared") from None
        finally:
            threading.stack_size(usual)
    return done.result()
