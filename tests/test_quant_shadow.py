"""The figures of shadows that `show` tells."""

from __future__ import annotations

import pytest

from edge_llm.quant.profile import LinearProfile
from edge_llm.quant.report import LinearShadow, by_kind, totals
from edge_llm.quant.shadow import shadow_cost


def linear_shadow(name: str, shadow: str, hot: int = 0) -> LinearShadow:
    return LinearShadow(name, 100, 50, shadow, hot, LinearProfile(hot, 9.0, 3.0, 0.01, 1e-5, 1e-3, 4, 1e-6))


def test_totals_of_a_model():
    linears = [linear_shadow("layers.0.o", "none"), linear_shadow("layers.1.o", "full", 3), linear_shadow("output", "cold")]
    found = totals(linears)
    assert (found["none"], found["cold"], found["full"]) == (1, 1, 1)
    assert (found["outlier_channels"], found["hot_channels"], found["bytes"]) == (12, 3, 3 * (4 + 2 * 100))
    assert found["hot_share"] == pytest.approx(3 / 150)
    assert found["overflow"] == pytest.approx(2 * 0.01 / 3)  # what `none` clips is not added back
    assert linears[1].cost == pytest.approx(shadow_cost(100, 50, 3, 0.01))
    assert {kind: len(group) for kind, group in by_kind(linears).items()} == {"o": 2, "output": 1}
    assert linears[0].to_fields()["cost_share"] == 0.0


def test_a_linear_without_a_profile_has_only_its_hot_channels():
    linear = LinearShadow("output", 10, 10, "full", 2, None)
    assert (linear.outliers, linear.overflow) == (2, 0.0)
    assert "error" not in linear.to_fields()
