"""What comes before anything is loaded: the process is bound to the CPUs of its plan, and the user is told what the plan says.

Threads inherit the CPUs, and Linux takes memory from the node whose CPU touches it first.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Set

log = logging.getLogger("edge_llm.opening")


def begin(cpus: Set[int] | None, notices: Iterable[str]) -> None:
    """Bind the calling thread to ``cpus``, and say the ``notices`` of a plan."""
    bind(cpus)
    say(notices)


def bind(cpus: Set[int] | None) -> None:
    """Run the calling thread, and those that it starts, on ``cpus``; None changes nothing."""
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def say(notices: Iterable[str]) -> None:
    """Log those of the ``notices`` that this process has not logged yet."""
    for notice in notices:
        say_once(notice)


@functools.cache
def say_once(notice: str) -> None:
    """Log ``notice``, unless this process has done so."""
    log.warning("%s", notice)
