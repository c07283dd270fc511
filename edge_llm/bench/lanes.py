"""Scheduling policies measured: one prompt runs under each of them in turns, beside the simulator's prediction.

The simulator gets the mean duration of every kind of task over all measured runs, so its numbers include what lanes cost
each other (they share memory and caches).  Beside it: which share of the inputs of linears overflows static scales, what the
CPU takes for that and for hot channels, and how much of it while the card multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm import scheduler
from edge_llm.bench.report import Column, Row, table_of
from edge_llm.config import STATIC
from edge_llm.errors import UsageError
from edge_llm.models.layer import Decoder
from edge_llm.runner.order import AUTO, POLICIES
from edge_llm.runner.runner import Int8Runner
from edge_llm.scheduler import CostModel, Policy, Span, TaskGraph, Trace
from edge_llm.schemes.joint import is_multiplied_as_int8
from edge_llm.subgraphs.ops import CARD_LANE, SHADOW_PART

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
    overflow: float | None = None
    """Share of the inputs of INT8 linears that overflowed the static scale and were added back, over the runs of all policies;
    None where rows have scales of their own, or the device does not count."""

    @property
    def typical(self) -> Trace:
        """The run of median duration."""
        return sorted(self.traces, key=lambda trace: trace.makespan)[len(self.traces) // 2]


def prompt_tokens(n_prompt: int, vocab_size: int, folder: Path | None) -> list[int]:
    """Token ids of a prompt: the held-out text, as often as it takes, for the model in ``folder``; without it any ids.

    What overflows depends on the text: less does of tokens at random.
    """
    if folder is None:
        return np.random.default_rng(SEED).integers(0, vocab_size, n_prompt).tolist()
    # `--help` shall not wait for the tokenizers
    from edge_llm.convert.calibrate import HELD_OUT_TEXT, read_text
    from edge_llm.text.tokenizer import Tokenizer

    tokens = Tokenizer.from_folder(folder, vocab_size).encode(read_text(HELD_OUT_TEXT)[0])
    return list(islice(cycle(tokens), n_prompt)) if tokens else prompt_tokens(n_prompt, vocab_size, None)


def compare(runner: Int8Runner, tokens: Sequence[int], names: Sequence[str], repetitions: int) -> list[LaneRun]:
    """Run the prompt ``tokens`` ``repetitions`` times under every policy of ``names``, in turns.

    Raises `UsageError` for an unknown name, and for a prompt that takes more than one window of chunks.
    """
    for name in names:
        if name not in (AUTO, *EVERY):
            raise UsageError(f"unknown policy `{name}`; choose one of: {', '.join((AUTO, *EVERY))}", param="policy")
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
    before = runner.overflow
    for _ in range(repetitions):
        for name in names:
            traces[name].append(_run(runner, tokens, policies[name]))
            cost.learn(traces[name][-1])
    added = None if before is None or runner.overflow is None else runner.overflow - before
    values = repetitions * len(names) * _rounded_values(runner.model.decoder, len(tokens))
    overflow = added / values if added is not None and runner.site.activations == STATIC else None
    return [
        LaneRun(name, len(tokens), tuple(traces[name]), scheduler.simulate(graph, policies[name], cost).makespan, overflow)
        for name in names
    ]


def _rounded_values(decoder: Decoder, n_prompt: int) -> int:
    """Inputs of INT8 linears in a prompt: of every token in the layers, of one in the output matrix."""
    layers = sum(one.columns for layer in decoder.layers for one in layer.linears if is_multiplied_as_int8(one.scheme))
    return n_prompt * layers + (decoder.output.columns if is_multiplied_as_int8(decoder.output.scheme) else 0)


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
    """One row of results per policy.

    ``bubble_share`` is the idle share of the lane that has the most work; ``shadow_ms`` is what hot channels and overflow take
    the CPU beside products, and ``shadow_beside_share`` the share of it in which the card multiplied.
    """
    return [_row(run, runs[0]) for run in runs]


def shadow_spans(trace: Trace) -> list[Span]:
    """The tasks beside products: hot channels and overflow; none where one pass does all of a linear."""
    return [span for span in trace.spans if span.name.endswith(SHADOW_PART)]


def beside_products(trace: Trace, spans: Iterable[Span]) -> float:
    """Seconds of ``spans`` in which the card multiplied."""
    edges, worked = [0.0], [0.0]  # the card's work up to a time grows from one edge to the next, or rests
    for product in trace.on(CARD_LANE):
        start, end = max(product.start, edges[-1]), max(product.end, edges[-1])
        edges += [start, end]
        worked += [worked[-1], worked[-1] + end - start]
    return float(sum(np.interp(one.end, edges, worked) - np.interp(one.start, edges, worked) for one in spans))


def _row(run: LaneRun, baseline: LaneRun) -> dict[str, Any]:
    seconds = np.array([trace.makespan for trace in run.traces])
    trace = run.typical
    busiest = max(trace.lanes, key=trace.work)
    shadow = shadow_spans(trace)
    seconds_of_shadow = sum(span.seconds for span in shadow)
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
        "overflow_share": run.overflow,
        "shadow_ms": 1e3 * seconds_of_shadow if shadow else None,
        "shadow_beside_share": beside_products(trace, shadow) / seconds_of_shadow if seconds_of_shadow else None,
        "samples_ms": [1e3 * float(value) for value in seconds],
    }


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table; ``speedup`` is over the first policy."""
    lanes = [key.removesuffix("_idle_share") for key in rows[0] if key.endswith("_idle_share")]
    shadow = [column for key, column in SHADOW_COLUMNS.items() if any(row[key] is not None for row in rows)]
    return table_of(rows, [*COLUMNS, *map(_idle_column, lanes), *shadow])


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


def _shown(key: str, form: str) -> Callable[[Row], str]:
    return lambda row: "" if row[key] is None else format(row[key], form)


SHADOW_COLUMNS = {
    "overflow_share": Column("overflow", _shown("overflow_share", ".2%")),
    "shadow_ms": Column("shadow ms", _shown("shadow_ms", ".1f")),
    "shadow_beside_share": Column("beside products", _shown("shadow_beside_share", ".0%")),
}
"""By the field of a row; a column without values is left out."""
