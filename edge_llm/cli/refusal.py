"""Errors of the system in words: no memory, threads or descriptors, a full disk, an output without a reader.

And what is done about standard output and error that cannot take what is written.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TextIO

from edge_llm.errors import TOO_MANY_FILES, is_too_many_files


def refusal(error: Exception) -> str | None:
    """What the system refused and the way out, if ``error`` is the system's; else None."""
    if sys.stdout is not None and (failure := flush_failure(sys.stdout)) is not None:
        give_up(sys.stdout)
        return f"cannot write to standard output: {failure.strerror}"
    lost = isinstance(error, SystemError) and "without exception set" in str(error)  # Python had no memory for the error itself
    if lost or isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "there is not enough memory; free some, allow the process more, or try a smaller --ctx or --memory"
    if isinstance(error, RuntimeError) and str(error) in ("can't start new thread", os.strerror(errno.EAGAIN)):
        return "the system gives no more threads; take fewer with --threads, or allow the process more threads and memory"
    if isinstance(error, ImportError):
        return f"cannot load a library: {_first_cause(error)}"
    if not isinstance(error, OSError):
        return None
    if is_too_many_files(error):
        return TOO_MANY_FILES
    place = "" if error.filename is None else f" `{os.fsdecode(error.filename)}`"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"cannot write{place}: {error.strerror}"
    return f"the system refuses{place}: {error.strerror or error}"


def _first_cause(error: BaseException) -> str:
    """The first line of the first error: a package may wrap it in a page of advice."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return (str(error).splitlines() or [type(error).__name__])[0]


def set_what_cannot_be_encoded() -> None:
    """Let stdout write `?` for what its encoding lacks, and file names that are not UTF-8 with their own bytes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "replace")


def flush_failure(stream: TextIO) -> OSError | None:
    """The error of writing what ``stream`` holds; None when all is written."""
    try:
        stream.flush()
        if isinstance(stream, io.TextIOWrapper):
            os.write(stream.fileno(), b"")  # a text longer than the buffer is dropped as it fails, and leaves nothing to flush
    except io.UnsupportedOperation:  # it has no descriptor
        return None
    except OSError as failure:
        return failure
    return None


def give_up(stream: TextIO) -> None:
    """Drop what ``stream`` still holds, so that the end of the process does not fail at it once more."""
    with contextlib.suppress(OSError):  # it has no descriptor, so there is nothing to drop
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
