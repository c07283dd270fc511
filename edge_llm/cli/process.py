"""The process around a command: its standard streams, Ctrl-C, and its end.

Loads nothing, so that Ctrl-C is taken care of before the rest of the program is imported.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class _Interrupts:
    """What Ctrl-C does: KeyboardInterrupt in a command that is running, the end before and after it."""

    def __init__(self) -> None:
        self.running = False

    def __call__(self, *_: Any) -> None:
        if self.running:
            raise KeyboardInterrupt
        os._exit(INTERRUPTED)


interrupts = _Interrupts()


def prepare() -> None:
    """Make this process one of ours; more than once is fine."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a parent wants it to be ignored
        signal.signal(signal.SIGINT, interrupts)
    sys.unraisablehook = _on_unraisable
    _open_standard_streams()


def leave(code: int) -> NoReturn:
    """End the process with ``code``, whatever is wrong with its standard streams and wherever its threads are."""
    interrupts.running = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader went away, or its disk is full: the interpreter shall not try again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:  # they may be in native code, which does not survive the end of the interpreter around it
        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)


def _on_unraisable(failure: Any) -> None:
    """A Ctrl-C where Python cannot raise (a destructor, a callback of the import system) is one, all the same."""
    if failure.exc_type is not None and issubclass(failure.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(failure)


def _open_standard_streams() -> None:
    """Give closed streams something, so that no file of ours gets their numbers: stdout fails, stderr says nothing."""
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
