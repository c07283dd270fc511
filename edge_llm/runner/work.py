"""Where the time of a model's runs goes: what operations take, by kind of work, and the bytes that they must read."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_llm.devices.base import WatchedOp, Watching
from edge_llm.runner.base import Segment
from edge_llm.runner.inside import ATTENTION, FLASH, KEYS, NORMS, OUTPUT, PRODUCTS, REST, Work
from edge_llm.weights.base import Weights

LINEARS = ("linear", "linear_glu")
"""Operations that are a product first of all."""
EXPERTS = "experts"
"""An operation of many products, of which a row needs some."""
_FLOATS = ("rms_norm", "layer_norm", "head_norms", "glu", "activate", "row_gate")
_PRODUCTS = dict.fromkeys((*LINEARS, EXPERTS), PRODUCTS)
_KINDS = {**_PRODUCTS, "attention": ATTENTION, "rope_append": KEYS, **dict.fromkeys(_FLOATS, NORMS)}
_HEAD = "head"
"""The part that multiplies the output matrix."""
EVERY = 8
"""One step of so many is timed: that takes some 2 us."""
KEPT = 32
"""Timed steps that are kept."""


def work_of(one: WatchedOp, positions: np.ndarray) -> tuple[int, int]:
    """INT8 operations and bytes of an operation for rows at ``positions``, where these are what it is made of.

    Of experts they are those of as many as the rows need at most.
    """
    if one.op.kind in LINEARS:
        linear = one.weights.linears[one.op.linear.name]
        return 2 * len(positions) * linear.rows * linear.columns, linear.nbytes
    if one.op.kind == EXPERTS:
        linears, flash = one.op.of.linears, one.weights.experts
        needed = len(positions) * one.op.of.share
        operations = sum(2 * linear.rows * linear.columns for linear in linears) * needed
        nbytes = sum(one.weights.linears[linear.name].nbytes for linear in linears) if flash is None else flash.nbytes
        return round(operations), round(nbytes * min(1.0, needed))
    if one.op.kind == "attention" and one.pages is not None:
        slots = one.pages.k.shape[0] * one.pages.k.shape[2]
        return 0, int((positions + 1).sum()) * one.pages.nbytes // slots
    return 0, 0


@dataclass
class TimedRun:
    """A run of a model as it was watched; adding up comes later, when somebody looks."""

    calls: list[tuple[Sequence[WatchedOp], np.ndarray, np.ndarray]] = field(default_factory=list)
    """(operations, positions of their rows, seconds of their calls)."""
    seconds: float = 0.0
    """Of the run, all told."""
    output_seconds: float = 0.0
    """Of an output matrix that is multiplied on its own."""


class StepMeter:
    """Times some steps of answers, and what it is asked to time.  One thread runs the model; any may look."""

    def __init__(self, watching: Watching | None, weights: Weights) -> None:
        """``watching`` is that of the model of ``weights``, None where it cannot be watched."""
        self._watching = watching
        self._weights = weights
        self._count = 0
        self._steps: deque[TimedRun] = deque(maxlen=KEPT)
        self._shown: tuple[TimedRun, Work] | None = None

    @property
    def there(self) -> bool:
        return self._watching is not None

    def is_due(self, segments: Sequence[Segment[Any]]) -> bool:
        """Whether the step of ``segments`` is to be timed; those of a prompt's tokens never are, and begin a new count."""
        if self._watching is None:
            return False
        if any(segment.states or segment.wanted != len(segment.tokens) for segment in segments):
            self._count = 0
            return False
        self._count += 1
        if self._count == 1:
            self._steps.clear()
        return self._count % EVERY == 1

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time what is done within as a step."""
        with self.timed() as run:
            yield
        self._steps.append(run)

    @contextmanager
    def timed(self) -> Iterator[TimedRun]:
        """Time what is done within."""
        run, watching = TimedRun(), self._watching
        started = time.perf_counter()
        if watching is None:
            yield run
            return
        outer = watching.watch

        def see(*told: Any) -> None:
            run.calls.append(told)
            if outer is not None:
                outer(*told)

        watching.watch = see
        try:
            yield run
        finally:
            watching.watch = outer
            run.seconds = time.perf_counter() - started

    def look(self) -> Work | None:
        """What the timed steps of the last answer took; None before there are any."""
        steps = [*self._steps]
        if not steps:
            return None
        if self._shown is None or self._shown[0] is not steps[-1]:
            self._shown = steps[-1], self.add_up(steps)
        return self._shown[1]

    def add_up(self, runs: Sequence[TimedRun]) -> Work:
        """What ``runs`` took by kind of work."""
        seconds: dict[str, float] = defaultdict(float)
        nbytes = 0
        for run in runs:
            for ops, positions, spent in run.calls:
                for one in ops:
                    head = one.part == _HEAD and one.op.kind in LINEARS
                    seconds[OUTPUT if head else _KINDS.get(one.op.kind, REST)] += float(spent[one.calls].sum())
                    nbytes += work_of(one, positions)[1]
            seconds[OUTPUT] += run.output_seconds
        whole = sum(run.seconds for run in runs)
        seconds[FLASH if self._weights.streamed else REST] += max(0.0, whole - sum(seconds.values()))
        return Work({kind: taken for kind, taken in seconds.items() if taken > 0}, len(runs), nbytes)
