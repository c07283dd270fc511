"""Errors of the system in words: no memory, threads or descriptors, a full disk, an output without a reader."""

from __future__ import annotations

import errno
import os
import sys

from edge_llm.cli.streams import flush_failure, give_up
from edge_llm.errors import TOO_MANY_FILES, is_too_many_files


def refusal(error: Exception) -> str | None:
    """What the system refused and the way out, if ``error`` is the system's; else None."""
    if sys.stdout is not None and (failure := flush_failure(sys.stdout)) is not None:
        give_up(sys.stdout)
        return f"cannot write to standard output: {failure.strerror}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
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
