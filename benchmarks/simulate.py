"""Remake the simulated tables: what every scheduling policy makes of a prompt, on the machine of a cost table.

    python benchmarks/simulate.py                  some ten seconds; no model and no kernels are run

Writes `simulate.md`, `simulate.json` and `simulate.svg` to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from edge_llm.bench import cost_table, simulate, trace  # noqa: E402
from edge_llm.bench.cost_table import CostTable, Step  # noqa: E402
from edge_llm.bench.report import Column, Row, table_of  # noqa: E402
from edge_llm.scheduler import CostModel, TaskGraph, Trace, beam, follow  # noqa: E402
from edge_llm.scheduler import simulate as run  # noqa: E402

TABLE = "llm-npu-qwen1.5-1.8b"
CHUNKS = (1, 2, 4, 8, 16)
NORM_SHARES = (0.1, 0.25, 0.5, 2 / 3, 0.8)
"""Of the CPU work that does not grow, in the two norms."""
SPREADS = (0.0, 0.02, 0.1, 0.2)
PICTURED = ("in-order", "c-value", "planned")


def policies_by_chunks(rows: Sequence[Row], value: Column) -> str:
    """One line a policy, one column a number of chunks."""
    lines = [[row for row in rows if row["policy"] == policy] for policy in dict.fromkeys(row["policy"] for row in rows)]
    cells = [{"policy": line[0]["policy"], **{str(row["n_chunks"]): value.cell(row) for row in line}} for line in lines]
    columns = [Column(value.head, lambda row: row["policy"], right=False)]
    columns += [Column(str(chunks), lambda row, chunks=chunks: row[str(chunks)]) for chunks in CHUNKS]  # type: ignore[misc]
    return table_of(cells, columns)


def with_norm_share(table: CostTable, share: float) -> CostTable:
    """The table with another guess of how the CPU's constant work is divided."""
    fixed = {step.name: step.ms - step.ms_per_earlier_chunk for step in table.steps if step.lane == "cpu"}
    attention = next(step for step in table.steps if step.ms_per_earlier_chunk)
    norms = len(fixed) - 1
    whole = sum(fixed.values())

    def divided(step: Step) -> Step:
        if step is attention:
            return replace(step, ms=whole * (1 - share) + step.ms_per_earlier_chunk)
        return replace(step, ms=whole * share / norms) if step.name in fixed else step

    return replace(table, steps=tuple(map(divided, table.steps)))


def sensitivity(table: CostTable) -> Iterator[Row]:
    """What the division decides."""
    for share in NORM_SHARES:
        for chunks in (2, 4):
            rows = simulate.rows(simulate.simulate(with_norm_share(table, share), chunks * table.chunk))
            by_policy = {row["policy"]: row for row in rows}
            above = {name: row["makespan_ms"] / row["lower_bound_ms"] - 1 for name, row in by_policy.items()}
            yield {
                "share": share,
                "chunks": chunks,
                "in_order": by_policy["in-order"]["npu_idle_share"],
                "c_value": by_policy["c-value"]["npu_idle_share"],
                "gain": 1 - by_policy["c-value"]["makespan_ms"] / by_policy["in-order"]["makespan_ms"],
                "feed": above["feed"],
                "planned": above["planned"],
                "optimal": by_policy["planned"]["optimal"],
            }


def drifted(graph: TaskGraph, cost: CostModel, spread: float, seed: int) -> tuple[TaskGraph, CostModel]:
    """The same program, with each task's duration off by its own normally distributed share."""
    chance, other, actual = random.Random(seed), TaskGraph(), CostModel()
    for task in graph:
        other.add(task.name, task.lane, after=task.after)
        actual.observe(task.name, task.lane, cost.predict(task.cost_key, task.lane) * max(0.05, chance.gauss(1, spread)))
    return other, actual


def drift(table: CostTable) -> Iterator[Row]:
    """The median run above its own lower bound when durations are not as predicted; the greedy policies see them all."""
    for chunks in (2, 4, 8):
        graph, cost = table.program(chunks)
        plan = follow(beam(graph, cost, width=60 if chunks > 2 else 200).trace)
        policies = simulate.policies(table.accelerator) | {"planned": plan}
        for spread in SPREADS:
            samples = [drifted(graph, cost, spread, seed) for seed in range(9)]
            yield {"chunks": chunks, "spread": spread} | {
                name: statistics.median(_above(run(late, policy, actual)) for late, actual in samples)
                for name, policy in policies.items()
            }


def _above(trace: Trace) -> float:
    return trace.makespan / trace.lower_bound - 1


SENSITIVITY = (
    Column("norms' share of constant CPU work", lambda row: f"{row['share']:.0%}"),
    Column("chunks", lambda row: str(row["chunks"])),
    Column("NPU idle, in order", lambda row: f"{row['in_order']:.1%}"),
    Column("NPU idle, C value", lambda row: f"{row['c_value']:.1%}"),
    Column("C value is faster by", lambda row: f"{row['gain']:.0%}"),
    Column("feed above bound", lambda row: f"{row['feed']:+.1%}"),
    Column("planned above bound", lambda row: f"{row['planned']:+.1%}"),
    Column("proven best", lambda row: {True: "yes", False: "no", None: "?"}[row["optimal"]]),
)


DRIFT = (
    Column("chunks", lambda row: str(row["chunks"])),
    Column("spread", lambda row: f"{row['spread']:.0%}"),
    *(
        Column(name, lambda row, name=name: f"{row[name]:+.1%}")  # type: ignore[misc]
        for name in ("in-order", "first-ready", "longest-first", "critical-path", "c-value", "feed", "planned")
    ),
)


def report(table: CostTable, rows: Sequence[Row]) -> str:
    above = Column("above the lower bound, by chunks", lambda row: f"{row['makespan_ms'] / row['lower_bound_ms'] - 1:+.1%}")
    idle = Column("NPU idle, by chunks", lambda row: f"{row['npu_idle_share']:.1%}")
    first = [row for row in rows if row["policy"] == rows[0]["policy"]]
    tight = ", ".join(f"{row['one_lane_bound_ms'] / row['lower_bound_ms'] - 1:+.2%}" for row in first)
    best = [row for row in rows if row["policy"] == "planned"]
    proven = ", ".join({True: "yes", False: "no", None: "not proven"}[row["optimal"]] for row in best)
    return f"""# Policies in virtual time: {table.name}

{table.source}. Assumptions of the table:

{chr(10).join(f"- {sentence}" for sentence in table.assumptions)}

{policies_by_chunks(rows, Column("ms, by number of chunks", lambda row: f"{row['makespan_ms']:.0f}"))}

{policies_by_chunks(rows, idle)}

{policies_by_chunks(rows, above)}

The lower bound is the busiest lane's work or the critical path, whichever is more. The one-lane bound (heads and tails,
see `scheduler/bounds.py`) lies above it by {tight}. No order is faster than `planned`: {proven}.

![lanes](simulate.svg)

## How much the unpublished part decides

How the CPU's constant work is divided between norms and attention is a guess of the table (two thirds in the two norms).

{table_of(list(sensitivity(table)), SENSITIVITY)}

## When durations are not as predicted

Every task takes longer or shorter by its own random share (standard deviation as given; medians of nine). Above the lower
bound of what the tasks then took; `planned` was searched for the predicted durations, the others see the real ones.

{table_of(list(drift(table)), DRIFT)}
"""


def main() -> int:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="folder for tables and rows")
    results = parser.parse_args().results
    results.mkdir(parents=True, exist_ok=True)
    table = cost_table.load(TABLE)
    runs = [run for chunks in CHUNKS for run in simulate.simulate(table, chunks * table.chunk)]
    rows = simulate.rows(runs)
    text = report(table, rows)
    (results / "simulate.json").write_text(json.dumps(rows, indent=1) + "\n")
    (results / "simulate.md").write_text(text)
    pictured = {run.policy: run.trace for run in runs if table.chunks(run.n_prompt) == 4 and run.policy in PICTURED}
    (results / "simulate.svg").write_text(trace.svg(pictured, f"{table.name}, 4 chunks of {table.chunk} tokens"))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
