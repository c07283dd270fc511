"""Which shadows are kept: what each is worth and what it costs, and as few of them as a budget of quality allows.

Every linear can do without a shadow, at its own best clipping scale (`none`), add its overflow back (`cold`), or compute
its hot channels in float as well (`full`).  What a step up is worth is the output error that it takes away, which stands in
for the divergence of the model's predictions; what it costs is counted in operations.  Steps are taken in the order of
worth per cost, and as many as it takes until the measured loss of the whole model is within its budget.  (llm.npu, arXiv
2407.05858, §3.3, drops the shadows of its 85 % least important layers, whatever that does to the model.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_llm.config import INT8, STATIC

NONE, COLD, FULL = SHADOWS = ("none", "cold", "full")

PRODUCT_PICOSECONDS = 2.2
"""One core's time for an INT8 multiply-add, measured (AVX512-VNNI, 256 rows); the ratios between the three are what matters.
Where products are slower (AVX2: 9), shadows weigh less."""
HOT_PICOSECONDS = 20.0
"""For one output of one hot channel."""
OVERFLOW_PICOSECONDS = 50.0
"""For one output of one overflowing value."""

DEFAULT_BUDGET = 0.45
"""Percent of perplexity that INT8 may cost on the calibration text: half a percent, less a margin for other texts."""
SLACK = 0.1
"""Percent of perplexity by which a choice may be worse than all shadows where those do not reach the budget."""


@dataclass(frozen=True)
class Treatment:
    """One way to treat the input of a linear: the numbers it is quantized with, and what they do."""

    shadow: str
    """One of `SHADOWS`."""
    hot: np.ndarray
    """Hot channels, int32 [H] ascending."""
    input_scale: float
    error: float
    """|| y_int8 - y_float ||^2 / || y_float ||^2 of the output."""
    cost: float
    """Microseconds per row that the shadow takes one core."""
    overflow: float = 0.0
    """Share of the values outside the hot channels that lie above 127 steps: clipped when there is no shadow."""
    largest_cold: float = 0.0
    """Maximum |x| outside the hot channels."""
    scheme: str = INT8
    """The weight scheme."""
    activations: str = STATIC
    """The scales that it is made for; the input scale is that of devices which have no other."""
    error_of_rows: float = 0.0
    """The error of the output where every row has a scale of its own."""


Treatments = Mapping[str, Sequence[Treatment]]
"""Per linear its treatments, the first without a shadow."""


def shadow_cost(rows: int, columns: int, hot: int, overflow: float) -> float:
    """Microseconds per row of a shadow of ``hot`` channels and ``overflow`` values per value, for a linear [rows, columns]."""
    return 1e-6 * rows * (HOT_PICOSECONDS * hot + OVERFLOW_PICOSECONDS * overflow * columns)


def product_cost(rows: int, columns: int) -> float:
    """Microseconds per row of the INT8 product of a linear [rows, columns]."""
    return 1e-6 * PRODUCT_PICOSECONDS * rows * columns


def upgrades(treatments: Treatments) -> list[tuple[str, Treatment]]:
    """(linear, the treatment it changes to), the most error taken away per microsecond first."""
    steps = []
    for name, options in treatments.items():
        now, better = options[0], list(options[1:])
        while better := [option for option in better if option.error < now.error]:
            value, best = max(((_value(now, option), option) for option in better), key=lambda pair: pair[0])
            steps.append((value, name, best))
            now = best
    return [(name, step) for _, name, step in sorted(steps, key=lambda step: -step[0])]


def _value(now: Treatment, option: Treatment) -> float:
    cost = option.cost - now.cost
    return (now.error - option.error) / cost if cost > 0 else math.inf


def choice(treatments: Treatments, steps: Sequence[tuple[str, Treatment]]) -> dict[str, Treatment]:
    """The treatment of every linear after ``steps``."""
    return {name: options[0] for name, options in treatments.items()} | dict(steps)


@dataclass(frozen=True)
class Search:
    """How many steps are taken, and what was measured on the way."""

    steps: int
    losses: Mapping[int, float]
    """Percent of perplexity by number of steps; 0 and all steps are among them."""
    allowed: float
    """The budget, or what stands for it where even all shadows do not reach it."""


def fewest_steps(count: int, measure: Callable[[list[int]], Sequence[float]], budget: float) -> Search:
    """The least of ``count`` steps whose loss is within ``budget`` percent, by two calls of ``measure``.

    ``measure`` gives the loss in percent of perplexity after each of several numbers of steps: at first some between 0 and
    all, then some between the last that was too few and the first that was enough.
    """
    coarse = sorted({0, count // 16, count // 8, count // 4, count // 2, count})
    losses = dict(zip(coarse, measure(coarse), strict=True))
    allowed = budget if losses[count] <= budget else losses[count] + SLACK
    enough = min(steps for steps in coarse if losses[steps] <= allowed)
    too_few = max((steps for steps in coarse if steps < enough), default=enough)
    fine = sorted(set(np.linspace(too_few, enough, 6).astype(int).tolist()) - set(losses))
    if fine:
        losses |= zip(fine, measure(fine), strict=True)
    return Search(min(steps for steps, loss in losses.items() if loss <= allowed), dict(sorted(losses.items())), allowed)
