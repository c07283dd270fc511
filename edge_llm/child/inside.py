"""What runs in a child process: its questions and answers, and limits of memory and time that the system enforces.

Imports only the standard library, so that a child is small and starts soon.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_llm.child import LENGTH_BYTES

_STATM = Path("/proc/self/statm")
_WATCH_SECONDS = 0.5
_owner = os.getppid()


def begin(owner: int) -> None:
    """The process ``owner`` has started this one; it may have ended since."""
    global _owner
    _owner = owner


def questions() -> Iterator[bytes]:
    """The frames on standard input, until it ends."""
    source = sys.stdin.buffer
    while len(head := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        yield source.read(int.from_bytes(head, "little"))


def answer(frame: bytes) -> None:
    """Answer the last question."""
    replies = sys.stdout.buffer
    replies.write(len(frame).to_bytes(LENGTH_BYTES, "little"))
    replies.write(frame)
    replies.flush()


def end_with_owner() -> None:
    """End this process, whatever it does, within a second after the one that started it has ended."""

    def watch() -> None:
        while os.getppid() == _owner:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def limit_memory(most_bytes: int) -> None:
    """No more than ``most_bytes`` above what the process has now, for good; where the system tells how much there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if _STATM.exists():
        most = _address_space() + most_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))


class Limits:
    """``seconds`` of processor time, and ``most_bytes`` of memory above what the process has now.

    Too much memory is a MemoryError; the time ends the process by SIGPROF, in the middle of any operation.  Memory is
    limited where the system tells how much there is (Linux).
    """

    def __init__(self, seconds: float, most_bytes: int) -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # both may be otherwise in the process that started this one
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._seconds = seconds
        self._most_bytes = _address_space() + most_bytes if _STATM.exists() else resource.RLIM_INFINITY
        self._inherited = resource.getrlimit(resource.RLIMIT_AS)

    @contextmanager
    def held(self, more_bytes: int = 0) -> Iterator[None]:
        """Hold the limits inside the block, with ``more_bytes`` for its input."""
        soft, hard = self._inherited
        if self._most_bytes != resource.RLIM_INFINITY:
            most = self._most_bytes + more_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, self._inherited)


def _address_space() -> int:
    return int(_STATM.read_text().split()[0]) * resource.getpagesize()
