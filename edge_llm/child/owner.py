"""Our end of a child process: it can be killed at any moment, and ends with whoever owns it.

    child = Child(owner, "edge_llm.text.sandbox", 1.0, 40 << 20)   # runs `serve(1.0, 40 << 20)` of that module
    child.ask(b"a question", 10.0)                                  # b"its answer"
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_llm.child import LENGTH_BYTES

_START = (
    "import sys, json, importlib; owner, module, settings, *sys.path = sys.argv[1:]; "
    "importlib.import_module('edge_llm.child.inside').begin(int(owner)); "
    "importlib.import_module(module).serve(*json.loads(settings))"
)
MOST_END_SECONDS = 10.0
"""Most that is waited for a process to end; in a driver that hangs, it ends when the driver lets it."""
_ROOT = str(Path(__file__).parents[2])


class ChildEnded(Exception):
    """The child ended before it answered; ``code`` is its exit code, or a negative signal."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"its process ended ({code})")
        self.code = code


class Child:
    """A process that runs ``serve(*settings)`` of ``module``.  One thread may use it at a time.

    It ends with ``owner``, with this process, and with any exchange that is cut short: half of one would be read by the
    next.  Raises `OSError` when the system does not let it start.
    """

    def __init__(self, owner: object, module: str, *settings: float | str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, *self._arguments(module, settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},  # a thread takes no address space beside its stack
            start_new_session=True,  # Ctrl-C in a terminal is for this process only
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._questions, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._questions, False)
        os.set_blocking(self._answers, False)
        self._started_by = os.getpid()
        self.end = weakref.finalize(owner, _end, self._process, self._started_by)
        """End the process now; more than once is fine."""

    @staticmethod
    def _arguments(module: str, settings: Sequence[float | str]) -> list[str]:
        """What `_START` takes."""
        return [str(os.getpid()), module, json.dumps(settings), _ROOT, *filter(None, sys.path)]

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked: it runs, and this process is not a copy (fork) of the one that started it."""
        return self._started_by == os.getpid() and self._process.poll() is None

    def ask(self, question: bytes, most_seconds: float) -> bytes:
        """The answer to ``question``.  Raises `ChildEnded`, and `TimeoutError` when it takes more than ``most_seconds``."""
        with self._exchange(most_seconds) as deadline:
            self._write(question, deadline)
            return self._read(deadline)

    def tell(self, frame: bytes, most_seconds: float) -> None:
        """Send what has no answer.  Raises what `ask` raises."""
        with self._exchange(most_seconds) as deadline:
            self._write(frame, deadline)

    @contextmanager
    def _exchange(self, most_seconds: float) -> Iterator[float]:
        """Gives the deadline of one exchange, and ends the process when anything cuts it short."""
        try:
            if not self.alive:
                raise EOFError
            yield time.monotonic() + most_seconds
        except (BrokenPipeError, EOFError):
            self.end()
            raise ChildEnded(self._process.returncode) from None
        except BaseException:
            self.end()
            raise

    def _write(self, frame: bytes, deadline: float) -> None:
        for data in (len(frame).to_bytes(LENGTH_BYTES, "little"), frame):
            rest = memoryview(data)
            while rest:
                _wait(self._questions, select.POLLOUT, deadline)
                rest = rest[os.write(self._questions, rest[:65536]) :]

    def _read(self, deadline: float) -> bytes:
        length = int.from_bytes(self._read_bytes(LENGTH_BYTES, deadline), "little")
        return self._read_bytes(length, deadline)

    def _read_bytes(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            _wait(self._answers, select.POLLIN, deadline)
            piece = os.read(self._answers, min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, 1e3 * (deadline - time.monotonic()))):
        raise TimeoutError


def _end(process: subprocess.Popen[bytes], started_by: int) -> None:
    if started_by != os.getpid():
        return
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session is its own: what it forked ends too
    with suppress(subprocess.TimeoutExpired):
        process.wait(MOST_END_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
