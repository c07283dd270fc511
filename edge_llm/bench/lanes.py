"""Scheduling policies measured: one prompt runs under each of them in turns, beside the simulator's prediction.

The simulator gets the mean duration of every kind of task over all measured runs, so its numbers include what lanes cost
each other (they share memory and caches).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import scheduler
from edge_llm.bench.report import Column, Row, table_of
from edge_llm.errors import UsageError
from edge_llm.runner.order import AUTO, POLICIES
from edge_llm.runner.runner import Int8Runner
from scheduler import CostModel, Policy, TaskGraph, Trace

PLANNED = "planned"
EVERY = (*POLICIES, PLANNED)
BEAM_WIDTH = 20
SEED = 1


@dataclass(frozen=True)
class LaneRun:
    """One policy: its measured runs, all of the same prompt, and the predicted duration."""

    policy: str
    n_prompt: int
    traces: tuple[Trace, ...]
    predicted: float
    """Seconds."""

    @property
    def typical(self) -> Trace:
        """The run of median duration."""
        return sorted(self.traces, key=lambda trace: trace.makespan)[len(self.traces) // 2]


def compare(runner: Int8Runner, n_prompt: int, names: Sequence[str], repetitions: int) -> list[LaneRun]:
    """Run a prompt of ``n_prompt`` tokens ``repetitions`` times under every policy of ``names``, in turns.

    Raises `UsageError` for an unknown name, and for a prompt that takes more than one window of chunks.
    """
    for name in names:
        if name not in (AUTO, *EVERY):
            raise UsageError(f"unknown policy `{name}`; choose one of: {', '.join((AUTO, *EVERY))}", param="policy")
    tokens = np.random.default_rng(SEED).integers(0, runner.config.vocab_size, n_prompt).tolist()
    chosen = runner.policy
    _run(runner, tokens, scheduler.in_order)  # warms the machine up
    program = _run(runner, tokens, scheduler.in_order)
    graph = _program(program)
    first_costs = CostModel()
    first_costs.learn(program)
    policies: dict[str, Policy] = {**POLICIES, AUTO: chosen}
    if PLANNED in names:
        policies[PLANNED] = scheduler.follow(scheduler.beam(graph, first_costs, width=BEAM_WIDTH).trace)
    traces: dict[str, list[Trace]] = {name: [] for name in names}
    cost = CostModel()
    for _ in range(repetitions):
        for name in names:
            traces[name].append(_run(runner, tokens, policies[name]))
            cost.learn(traces[name][-1])
    return [
        LaneRun(name, n_prompt, tuple(traces[name]), scheduler.simulate(graph, policies[name], cost).makespan)
        for name in names
    ]


def _run(runner: Int8Runner, tokens: Sequence[int], policy: Policy) -> Trace:
    traces: list[Trace] = []
    runner.policy, runner.on_trace = policy, traces.append
    sequence = runner.open()
    try:
        runner.forward(sequence, tokens)
    finally:
        sequence.close()
        runner.on_trace = None
    if len(traces) > 1:
        raise UsageError(
            f"a prompt of `{len(tokens)}` tokens takes {len(traces)} windows; give -p at most a window, or a larger -b",
            param="n_prompt",
        )
    return traces[0]


def _program(trace: Trace) -> TaskGraph:
    """The graph of a run in program order."""
    graph = TaskGraph()
    for span in sorted(trace.spans, key=lambda span: (span.start, span.end)):
        graph.add(span.name, span.lane, _nothing, after=span.after, cost_key=span.cost_key)
    return graph


def _nothing() -> None:
    return


def rows(runs: Sequence[LaneRun]) -> list[dict[str, Any]]:
    """One row of results per policy; ``bubble_share`` is the idle share of the lane that has the most work."""
    return [_row(run, runs[0]) for run in runs]


def _row(run: LaneRun, baseline: LaneRun) -> dict[str, Any]:
    seconds = np.array([trace.makespan for trace in run.traces])
    trace = run.typical
    busiest = max(trace.lanes, key=trace.work)
    return {
        "test": f"pp{run.n_prompt}",
        "policy": run.policy,
        "makespan_ms": 1e3 * trace.makespan,
        "spread": float((seconds.max() - seconds.min()) / np.median(seconds)),
        "predicted_ms": 1e3 * run.predicted,
        "lower_bound_ms": 1e3 * trace.lower_bound,
        "bubble_share": 1.0 - trace.utilization(busiest),
        **{f"{lane}_idle_share": 1.0 - trace.utilization(lane) for lane in trace.lanes},
        "tokens_per_second": run.n_prompt / trace.makespan,
        "speedup": baseline.typical.makespan / trace.makespan,
        "samples_ms": [1e3 * float(value) for value in seconds],
    }


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table; ``speedup`` is over the first policy."""
    lanes = [key.removesuffix("_idle_share") for key in rows[0] if key.endswith("_idle_share")]
    return table_of(rows, [*COLUMNS, *map(_idle_column, lanes)])


def _idle_column(lane: str) -> Column:
    return Column(f"{lane} idle", lambda row: f"{row[f'{lane}_idle_share']:.1%}")


COLUMNS = (
    Column("test", lambda row: row["test"], right=False),
    Column("policy", lambda row: row["policy"], right=False),
    Column("ms", lambda row: f"{row['makespan_ms']:.1f}"),
    Column("t/s", lambda row: f"{row['tokens_per_second']:.0f}"),
    Column("speedup", lambda row: f"{row['speedup']:.2f}x"),
    Column("spread", lambda row: f"{row['spread']:.0%}"),
    Column("simulated ms", lambda row: f"{row['predicted_ms']:.1f}"),
    Column("real / simulated", lambda row: f"{row['makespan_ms'] / row['predicted_ms']:.2f}"),
    Column("above bound", lambda row: f"{row['makespan_ms'] / row['lower_bound_ms'] - 1:+.1%}"),
)
