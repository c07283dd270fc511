"""The scheduling policies on a machine that is not here: the prefill of a cost table, in virtual time.

`simulate` runs every policy on one prompt, `rows` says what each came to, and `markdown` prints the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm import scheduler
from edge_llm.bench.cost_table import CostTable
from edge_llm.bench.report import Column, Row, table_of
from edge_llm.scheduler import Policy, Trace

SEARCH = 40_000_000
"""The planner's effort, as width times tasks squared: a few seconds at most."""
SAME = 1 + 1e-9
"""Makespans closer together are equal."""


@dataclass(frozen=True)
class Run:
    """One prompt under one policy."""

    table: CostTable
    n_prompt: int
    policy: str
    trace: Trace
    optimal: bool | None
    """Whether no order is faster; None where the search could not tell."""


def policies(accelerator: str) -> dict[str, Policy]:
    """The policies that choose as they go, by the names that the runner has for them too."""
    return {
        "in-order": scheduler.in_order,
        "first-ready": scheduler.first_ready,
        "longest-first": scheduler.longest_first,
        "critical-path": scheduler.critical_path,
        "c-value": scheduler.c_value(accelerator),
        "feed": scheduler.feed(accelerator),
    }


def simulate(table: CostTable, n_prompt: int) -> list[Run]:
    """Every policy on a prompt of ``n_prompt`` tokens (at least 1), the order planned by search last."""
    graph, cost = table.program(table.chunks(n_prompt))
    traces = {name: scheduler.simulate(graph, policy, cost) for name, policy in policies(table.accelerator).items()}
    found = scheduler.beam(graph, cost, width=max(1, SEARCH // len(graph) ** 2))
    traces["planned"] = scheduler.simulate(graph, scheduler.follow(found.trace), cost)
    return [Run(table, n_prompt, name, trace, _optimal(trace, found)) for name, trace in traces.items()]


def _optimal(trace: Trace, found: scheduler.Found) -> bool | None:
    if trace.makespan <= trace.one_lane_bound * SAME:
        return True
    if trace.makespan > found.trace.makespan * SAME:
        return False
    return True if found.proven else None


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What each run came to.  ``bubble_share`` is the idle share of the lane that has the most work."""
    return [_row(run) for run in runs]


def _row(run: Run) -> dict[str, Any]:
    trace = run.trace
    busiest = max(trace.lanes, key=trace.work)
    return {
        "table": run.table.name,
        "n_prompt": run.n_prompt,
        "n_chunks": run.table.chunks(run.n_prompt),
        "policy": run.policy,
        "makespan_ms": 1e3 * trace.makespan,
        "lower_bound_ms": 1e3 * trace.lower_bound,
        "one_lane_bound_ms": 1e3 * trace.one_lane_bound,
        "bubble_share": 1.0 - trace.utilization(busiest),
        **{f"{lane}_idle_share": 1.0 - trace.utilization(lane) for lane in trace.lanes},
        "tokens_per_second": run.n_prompt / trace.makespan,
        "optimal": run.optimal,
    }


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    lanes = [key.removesuffix("_idle_share") for key in rows[0] if key.endswith("_idle_share")]
    return table_of(rows, [*COLUMNS, *map(_idle_column, lanes), Column("no order is faster", _optimal_cell)])


def _idle_column(lane: str) -> Column:
    return Column(f"{lane} idle", lambda row: f"{row[f'{lane}_idle_share']:.1%}")


def _optimal_cell(row: Row) -> str:
    return {True: "yes", False: "", None: "?"}[row["optimal"]]


COLUMNS = (
    Column("test", lambda row: f"pp{row['n_prompt']}", right=False),
    Column("chunks", lambda row: str(row["n_chunks"])),
    Column("policy", lambda row: row["policy"], right=False),
    Column("ms", lambda row: f"{row['makespan_ms']:.1f}"),
    Column("above bound", lambda row: f"{row['makespan_ms'] / row['lower_bound_ms'] - 1:+.1%}"),
    Column("t/s", lambda row: f"{row['tokens_per_second']:.0f}"),
)
