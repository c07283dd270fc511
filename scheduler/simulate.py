"""Run a graph in virtual time: discrete events without threads or work, the same result every time.

The simulator calls the policy through the same `GraphState` as the executor, and returns the same `Trace`.  So it predicts
the effect of an order without a device, and tests compare the executor with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from edge_llm.scheduler.cost import CostModel
from edge_llm.scheduler.graph_state import GraphState, Policy
from edge_llm.scheduler.tasks import TaskGraph
from edge_llm.scheduler.trace import Span, Trace


def simulate(graph: TaskGraph, policy: Policy, cost: CostModel, lanes: Sequence[str] | None = None) -> Trace:
    """The trace of a run in which every task takes exactly its predicted time; `lanes` defaults to the graph's own.

    Tasks that end at the same time all end before any lane picks; then the free lanes pick in the order of `lanes`.
    Raises ValueError if a task's lane is not among `lanes`, or the policy stops picking before the work is done.
    """
    state = GraphState(graph, cost, lanes)
    spans: list[Span] = []
    running: list[tuple[float, int, Span]] = []  # heap of (end, order of start, span)
    busy: set[str] = set()
    now, started = 0.0, 0
    while state.left:
        for lane in state.lanes:
            if lane not in busy and (task := state.pick(lane, policy)):
                end = now + state.seconds(task)
                heapq.heappush(running, (end, started, Span.of(task, now, end)))
                busy.add(lane)
                started += 1
        if not running:
            raise state.stalled()
        now = running[0][0]
        while running and running[0][0] == now:
            span = heapq.heappop(running)[2]
            spans.append(span)
            busy.remove(span.lane)
            state.finish(graph[span.name])
    return Trace(tuple(spans), state.lanes)
