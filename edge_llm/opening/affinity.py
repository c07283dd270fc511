"""Binds this process to CPUs.

Threads inherit the choice, and Linux takes memory from the node whose CPU touches it first; so it is done before anything is
loaded.
"""

from __future__ import annotations

import os
from collections.abc import Set


def bind(cpus: Set[int] | None) -> None:
    """Run the calling thread, and those that it starts, on ``cpus``; None changes nothing."""
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
