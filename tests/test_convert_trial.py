"""Which choices a trial measures, and that it gives of each what measuring all at once would give."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edge_llm.convert.trial import _Comparison

GROUPS = [np.arange(start, start + 4) for start in range(0, 20, 4)]
BLOCKS = 2
"""Of each group."""


class Divergences:
    """Stands for the model: divergences by group, block and choice; remembers how often a group was asked for."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table
        self.sweeps = [0] * len(GROUPS)
        self.asked: list[tuple[int, int]] = []

    def __call__(self, rows: np.ndarray, choices: Sequence[int]) -> np.ndarray:
        assert len(choices), "a sweep costs a product of the float model even where it measures nothing"
        group = int(rows[0]) // 4
        self.sweeps[group] += 1
        self.asked += [(group, choice) for choice in choices]
        return np.asarray(self.table[group][:, list(choices)])


def table(first_group: float, others: float, choices: int = 6) -> np.ndarray:
    """Divergences that begin near ``first_group`` and go on near ``others``, less with every choice."""
    random = np.random.default_rng(choices)
    found = random.uniform(0.9, 1.1, (len(GROUPS), BLOCKS, choices)) / (1 + np.arange(choices))
    found[0] *= first_group
    found[1:] *= others
    return found


def compare(divergences: Divergences, enough: float) -> list[float]:
    comparison = _Comparison(divergences.table.shape[2], GROUPS, divergences)
    comparison.measure_as_needed(enough)
    return comparison.losses()


@pytest.mark.parametrize("choices", [1, 2, 3, 6])
@pytest.mark.parametrize("first_group", [1e-4, 1.0])
@pytest.mark.parametrize("others", [1e-4, 1.0])
def test_every_choice_that_may_be_taken_has_its_loss(choices: int, first_group: float, others: float) -> None:
    for enough in (0.0, 1.0, 30.0, 1e9):
        divergences = Divergences(table(first_group, others, choices))
        found = compare(divergences, enough)
        total = np.concatenate(divergences.table).sum(axis=0)
        expected = [100 * math.expm1(divergence / 20) for divergence in total]
        skipped = expected[0] <= enough
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            if skipped and 0 < number < choices - 1:
                assert one == math.inf
            else:
                assert one == pytest.approx(other, rel=1e-12)
        assert len(set(divergences.asked)) == len(divergences.asked), "nothing is measured twice"


@pytest.mark.parametrize(
    ("first_group", "others", "enough", "sweeps"),
    [
        (1e-4, 1e-4, 0.5, [1, 1, 1, 1, 1]),  # little is needed, and the first group says so
        (1.0, 1.0, 0.5, [2, 1, 1, 1, 1]),  # much is needed, and the first group says so
        (1.0, 1e-4, 20.0, [1, 1, 1, 1, 1]),  # the first group is worse than the others
        (1e-4, 1.0, 0.5, [2, 2, 2, 2, 2]),  # it is better
    ],
)
def test_a_second_sweep_comes_only_where_the_first_group_was_wrong(
    first_group: float, others: float, enough: float, sweeps: list[int]
) -> None:
    divergences = Divergences(table(first_group, others))
    compare(divergences, enough)
    assert divergences.sweeps == sweeps
