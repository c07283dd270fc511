"""Work in a process of its own that tells how far it is: ours is measured, and must not keep what the work took of memory."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from edge_llm.errors import DeviceError, EdgeLLMError
from edge_llm.progress import StageProgress

Result = TypeVar("Result")
PATIENCE = 10.0
"""Seconds in which stopped work may tidy up."""
Work = Callable[[Any, StageProgress], Result]


def done_aside(work: Work[Result], order: Any, progress: StageProgress) -> Result:
    """What ``work(order, progress)`` returns in a new process, whose errors and progress are told here.

    ``work`` is a function of a module, ``order`` and the result can be pickled.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_inside, args=(theirs, work, order), daemon=True)
    process.start()
    theirs.close()
    try:
        while True:
            kind, value = ours.recv()
            if kind == "error":
                raise value
            if kind == "done":
                return value
            progress(*value)
    except EOFError:
        process.join()
        raise DeviceError(f"the process that prepares the measurement ended unexpectedly ({process.exitcode})") from None
    finally:
        process.terminate()
        process.join(PATIENCE)
        process.kill()
        process.join()
        ours.close()


def _inside(answers: Connection, work: Work[Any], order: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's, which ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what the work has begun is taken away again
    try:
        result = work(order, lambda *how_far: answers.send(("progress", how_far)))
    except EdgeLLMError as error:
        answers.send(("error", error))
    else:
        answers.send(("done", result))
