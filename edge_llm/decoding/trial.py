"""A grammar is tried in another process before it is compiled in this one.

The library that compiles grammars recurses as deep as their parts refer to one another, and some grammars of a line take it
minutes and gigabytes.  It does the same every time, so what went well in a process with less stack goes well in this one.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from edge_llm.child.owner import Child, ChildEnded
from edge_llm.errors import TOO_MANY_FILES, Overloaded, UsageError, is_too_many_files
from edge_llm.files import shown

STACK_BYTES = 32 << 20
"""Stack of a trial; a level of references takes 2 to 10 KB of it."""
MAX_BYTES = 48 << 20
"""Memory that one grammar may take."""
SECONDS = 2.0
"""Processor time of a trial."""
MAX_WAIT_SECONDS = 20.0
"""A process that does not even use its processor time is not waited for."""
MAX_WAITING = 12
"""Grammars that may wait for their trial at a time, each on a thread of whoever asked."""
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

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_WAITING)
        self._child = self._started()

    def __call__(self, source: str, name: str = "the grammar") -> tuple[str, int]:
        """(what the library says is wrong with ``source``, or nothing; how many bytes it takes).

        Raises `UsageError` for a grammar that takes too much of anything, `Overloaded` when the system does not let its
        process start or run.
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

    def schema(self, text: str) -> tuple[str, tuple[str, ...]]:
        """The Lark text of a JSON schema, and its keywords that nothing is held to; raises what a trial raises."""
        answer = self._answer({"schema": text}, "the JSON schema")
        if answer["error"]:
            raise UsageError(str(answer["error"]))
        return str(answer["lark"]), tuple(answer["loose"])

    def _answer(self, question: dict[str, str], name: str) -> dict[str, Any]:
        with self._place(), self._lock:
            answer = self._asked(question)
            if answer is None:  # it ends when it has been idle for a while
                self._child = self._started()
                answer = self._asked(question)
        if answer is None:
            raise Overloaded("the process that tries grammars ends before its time; leave more memory to edge-llm")
        if "killed" in answer:
            raise UsageError(f"{name} {_KILLED.get(answer['killed'], _BIG)}")
        return answer

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise Overloaded(f"{MAX_WAITING} new grammars are being prepared already; ask again soon")
        try:
            yield
        finally:
            self._places.release()

    def _asked(self, question: dict[str, str]) -> dict[str, Any] | None:
        """The answer to ``question``; None when the process has ended."""
        try:
            answer: dict[str, Any] = json.loads(self._child.ask(json.dumps(question).encode(), MAX_WAIT_SECONDS))
        except ChildEnded:
            return None
        except TimeoutError:
            raise Overloaded(f"the grammar was not tried in {MAX_WAIT_SECONDS:g} seconds; the machine is too busy") from None
        return answer

    def _started(self) -> Child:
        try:
            child = Child(self, "edge_llm.decoding.trial_process", STACK_BYTES, 2 * MAX_BYTES, SECONDS)
        except OSError as error:
            reason = TOO_MANY_FILES if is_too_many_files(error) else error.strerror
            raise Overloaded(f"there is no process to try the grammar in: {reason}") from None
        with suppress(ChildEnded, TimeoutError):  # whoever asks finds out
            child.tell(json.dumps(self._vocabulary).encode(), MAX_WAIT_SECONDS)
        return child


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
            raise Overloaded("there is no memory for the stack on which grammars are prepared") from None
        finally:
            threading.stack_size(usual)
    return done.result()
