"""Where the time of a test goes: the operations of every part, and what is left over for Python and for waiting.

The device tells a `Clock` of every operation that ran, so nothing in the runner knows of it.  The speeds that are reported come
from runs without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.bench.measure import OwnRunner, Test, warm
from edge_llm.bench.roofs import Roofs
from edge_llm.devices.base import BESIDE_HOST, WatchedOp
from edge_llm.runner.work import LINEARS, work_of

RUNS = 3
"""Runs of every test, at most."""


@dataclass
class Spent:
    """What one operation of one part took in all."""

    seconds: float = 0.0
    calls: int = 0
    operations: int = 0
    """INT8 operations of a linear."""
    bytes: int = 0
    """Bytes of a linear's weights, or of the keys and values that attention needs."""

    def add(self, seconds: float, operations: int = 0, nbytes: int = 0) -> None:
        self.seconds += seconds
        self.calls += 1
        self.operations += operations
        self.bytes += nbytes


class Clock:
    """Notes how long every operation took; adding up comes later, outside of the run."""

    def __init__(self) -> None:
        self._runs: list[tuple[Sequence[WatchedOp], np.ndarray, np.ndarray]] = []

    def watch(self, ops: Sequence[WatchedOp], positions: np.ndarray, seconds: np.ndarray) -> None:
        """``ops`` ran for rows at these ``positions``; their calls took so many ``seconds``."""
        self._runs.append((ops, positions, seconds))

    def take(self) -> dict[tuple[str, str], Spent]:
        """What every (part, operation) took since the last call."""
        spent: dict[tuple[str, str], Spent] = defaultdict(Spent)
        for ops, positions, seconds in self._runs:
            for one in ops:
                spent[one.part, one.op.kind].add(float(seconds[one.calls].sum()), *work_of(one, positions))
        self._runs.clear()
        return spent


@dataclass(frozen=True)
class Breakdown:
    """Time of one run of a test by (part, operation), in the order in which they first ran."""

    test: Test
    threads: int
    seconds: float
    """Of a run, all told."""
    parts: tuple[tuple[str, str, Spent], ...]
    """(part, operation, what it took in one run)."""

    @property
    def other_seconds(self) -> float:
        """Outside of all operations: Python, and waiting for streamed layers."""
        return max(0.0, self.seconds - sum(spent.seconds for _, kind, spent in self.parts if kind not in BESIDE_HOST))

    @property
    def card_seconds(self) -> float | None:
        """That a card was busy while the host did other things or waited; None without one."""
        beside = [spent.seconds for _, kind, spent in self.parts if kind in BESIDE_HOST]
        return sum(beside) if beside else None

    @property
    def linear_share(self) -> float:
        return sum(spent.seconds for _, kind, spent in self.parts if kind in LINEARS) / self.seconds

    def as_dict(self, roofs: Roofs | None) -> dict[str, Any]:
        parts = [_part(part, kind, spent, self.seconds, roofs) for part, kind, spent in self.parts]
        parts.append(_part("other", "python, waits", Spent(self.other_seconds, 1), self.seconds, roofs))
        return {
            "test": self.test.label,
            "n_threads": self.threads,
            "ms": 1e3 * self.seconds,
            "non_gemm_share": 1.0 - self.linear_share if self.card_seconds is None else None,
            "card_ms": None if self.card_seconds is None else 1e3 * self.card_seconds,
            "parts": parts,
        }


def _part(part: str, kind: str, spent: Spent, total: float, roofs: Roofs | None) -> dict[str, Any]:
    gops = spent.operations / spent.seconds / 1e9 if spent.operations else None
    gb_s = spent.bytes / spent.seconds / 1e9 if spent.bytes else None
    return {
        "part": part,
        "operation": kind,
        "calls": spent.calls,
        "ms": 1e3 * spent.seconds,
        "share": spent.seconds / total,
        "gops": gops,
        "gops_share": None if roofs is None or gops is None else 1e9 * gops / roofs.operations,
        "gb_s": gb_s,
        "gb_s_share": None if roofs is None or gb_s is None else 1e9 * gb_s / roofs.read_bytes,
    }


def break_down(
    contestant: OwnRunner, clock: Clock, tests: Sequence[Test], repetitions: int, threads: int
) -> list[Breakdown]:
    """Run every test on ``contestant``, which ``clock`` watches, with this many ``threads``."""
    return [_run(contestant, clock, test, min(repetitions, RUNS), threads) for test in tests]


def _run(contestant: OwnRunner, clock: Clock, test: Test, runs: int, threads: int) -> Breakdown:
    contestant.begin(test.depth)
    warm(contestant, test)
    clock.take()
    seconds = sum(contestant.run(test) for _ in range(runs))
    parts = tuple(
        (part, kind, Spent(s.seconds / runs, s.calls // runs, s.operations // runs, s.bytes // runs))
        for (part, kind), s in _by_parts(clock.take())
    )
    return Breakdown(test, threads, seconds / runs, parts)


def _by_parts(spent: dict[tuple[str, str], Spent]) -> list[tuple[tuple[str, str], Spent]]:
    """What was ``spent``, each part's rows together, in the order in which parts and rows first came."""
    parts = list(dict.fromkeys(part for part, _ in spent))
    return sorted(spent.items(), key=lambda one: parts.index(one[0][0]))


def table(breakdown: dict[str, Any]) -> str:
    """One breakdown (of `Breakdown.as_dict`) as a Markdown table: GOP/s of a prompt, GB/s of generation."""
    rate, head = ("gops", "GOP/s") if breakdown["test"].startswith("pp") else ("gb_s", " GB/s")
    has_roof = any(part[f"{rate}_share"] is not None for part in breakdown["parts"])
    lines = [
        f"{breakdown['test']}, {breakdown['n_threads']} threads: {breakdown['ms']:.2f} ms, {_summary(breakdown)}",
        "",
        f"| part      | operation     |         ms |  share |   {head} |" + " of roof |" * has_roof,
        "| --------- | ------------- | ---------: | -----: | ------: |" + " ------: |" * has_roof,
    ]
    for part in breakdown["parts"]:
        cells = [
            f"{part['part']:<9}",
            f"{part['operation']:<13}",
            f"{part['ms']:10.2f}",
            f"{part['share']:6.1%}",
            _cell(part[rate], ".1f"),
            *([_cell(part[f"{rate}_share"], ".0%")] if has_roof else []),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _summary(breakdown: dict[str, Any]) -> str:
    if breakdown["card_ms"] is None:
        return f"{breakdown['non_gemm_share']:.1%} of it outside of linear layers"
    busy = breakdown["card_ms"] / breakdown["ms"]
    return f"the card busy {busy:.1%} of it, beside the host: rows of the host, of waits and of the rest are the whole"


def _cell(value: float | None, form: str) -> str:
    return " " * 7 if value is None else f"{value:7{form}}"
