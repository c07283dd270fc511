"""Standard input, output and error as a program may find them: closed, full, or in an encoding that lacks letters."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def open_streams() -> None:
    """Make the three streams usable, whatever the parent left of them.

    A closed one gets its number back, so that no file of ours takes it: its input is empty, writing to it fails if it
    is stdout and is lost if it is stderr.  What an encoding lacks is written as `?`, and the bytes of a file name that
    is not UTF-8 come out as they are.
    """
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, flags)  # the lowest number that is free: that of the stream
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "replace")


def flush_failure(stream: TextIO) -> OSError | None:
    """Why what was written to ``stream`` does not get out; None when it does."""
    try:
        stream.flush()
    except OSError as failure:
        return failure
    return None


def give_up(stream: TextIO) -> None:
    """Send what ``stream`` still holds nowhere, so that the end of the process does not fail at it once more."""
    with contextlib.suppress(OSError):  # a stream without a descriptor has nobody behind it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
