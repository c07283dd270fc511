"""How fast a run could have been at best: bounds that no order of the same tasks, on the same lanes, can beat.

A task on a lane has a *head*, the longest path of work before it, and a *tail*, the longest path behind it.  The lane
cannot start the task before its head is over, and after its end at least the tail is still to come.  If tasks could be
interrupted, the best order of one lane would always work on the startable task with the longest tail (J. R. Jackson,
1955; J. Carlier, European Journal of Operational Research 11, 1982).  No order without interruption takes less time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Job(NamedTuple):
    """One task as its lane sees it; all three in seconds."""

    head: float
    seconds: float
    tail: float


def jobs(seconds: Mapping[str, float], after: Mapping[str, Sequence[str]]) -> dict[str, Job]:
    """Head and tail of every task; `seconds` lists the tasks so that each comes after all that it waits for."""
    head: dict[str, float] = {}
    tail = dict.fromkeys(seconds, 0.0)
    for name in seconds:
        head[name] = max((head[needed] + seconds[needed] for needed in after[name]), default=0.0)
    for name in reversed(tuple(seconds)):
        for needed in after[name]:
            tail[needed] = max(tail[needed], seconds[name] + tail[name])
    return {name: Job(head[name], seconds[name], tail[name]) for name in seconds}


def one_lane(lane: Iterable[Job]) -> float:
    """Seconds until the last tail ends, if one lane works on these jobs and may interrupt them."""
    coming = sorted(lane)
    open_jobs: list[tuple[float, float]] = []  # heap of (-tail, seconds left)
    now = end = 0.0
    i = 0
    while i < len(coming) or open_jobs:
        if not open_jobs:
            now = max(now, coming[i].head)
        while i < len(coming) and coming[i].head <= now:
            heapq.heappush(open_jobs, (-coming[i].tail, coming[i].seconds))
            i += 1
        tail, left = heapq.heappop(open_jobs)
        pause = coming[i].head if i < len(coming) else float("inf")
        if now + left > pause:
            heapq.heappush(open_jobs, (tail, left - (pause - now)))
            now = pause
        else:
            now += left
            end = max(end, now - tail)
    return end
