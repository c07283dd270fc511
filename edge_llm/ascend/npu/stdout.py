"""Standard output belongs to answers: what a library writes there while it is loaded goes to the log."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

log = logging.getLogger("edge_llm.devices")
_MOST = 1 << 16
"""Bytes that are told of what was written."""


@contextmanager
def own_stdout(who: str) -> Iterator[None]:
    """Nothing that ``who`` writes inside the block, in Python or in C, comes out of file descriptor 1, or of `sys.stdout`.

    Its lines are logged instead.  A process without standard output is left as it is.
    """
    _flush()
    kept = [(one, copy) for one in sorted({1, _of_python()}) if (copy := _copied(one)) is not None]
    if not kept:
        yield
        return
    try:
        with tempfile.TemporaryFile() as written:
            for one, _ in kept:
                os.dup2(written.fileno(), one)
            try:
                yield
            finally:
                _flush()
                for one, copy in kept:
                    os.dup2(copy, one)
                written.seek(0)
                _tell(who, written.read(_MOST))
    finally:
        for _, copy in kept:
            os.close(copy)


def _of_python() -> int:
    """The descriptor that `sys.stdout` writes to, which may be another one than 1."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return 1


def _copied(descriptor: int) -> int | None:
    """Another descriptor of the same; None where there is none."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _flush() -> None:
    """Write out what Python and C hold back for standard output."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


def _tell(who: str, written: bytes) -> None:
    for line in written.decode(errors="replace").splitlines():
        if line.strip():
            log.info("%s: %s", who, "".join(char if char.isprintable() else " " for char in line))
