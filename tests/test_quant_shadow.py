"""The choice of shadows, on treatments whose worth and cost we set ourselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.profile import LinearProfile, treatments
from edge_llm.quant.report import LinearShadow, by_kind, totals
from edge_llm.quant.shadow import SLACK, Treatment, choice, fewest_steps, shadow_cost, upgrades

NO_HOT = np.empty(0, np.int32)


def treatment(shadow: str, error: float, cost: float) -> Treatment:
    return Treatment(shadow, NO_HOT, 1.0, error, cost)


def options(*pairs: tuple[float, float]) -> list[Treatment]:
    """Treatments of (error, cost), the first without a shadow."""
    shadows = ["none", *["cold"] * (len(pairs) - 1)]
    return [treatment(shadow, error, cost) for shadow, (error, cost) in zip(shadows, pairs, strict=True)]


def test_the_most_error_per_microsecond_comes_first():
    steps = upgrades({"a": options((1.0, 0), (0.5, 10)), "b": options((0.2, 0), (0.1, 1)), "c": options((1.0, 0), (0.1, 1))})
    assert [name for name, _ in steps] == ["c", "b", "a"]


def test_a_treatment_that_is_dearer_and_worse_is_never_taken():
    steps = upgrades({"a": options((1.0, 0), (0.6, 5), (0.2, 4), (0.1, 100))})
    assert [step.error for _, step in steps] == [0.2, 0.1]


def test_a_shadow_that_saves_nothing_is_never_taken():
    assert upgrades({"a": options((0.1, 0), (0.1, 1), (0.2, 0.5))}) == []


def test_a_choice_is_what_the_steps_lead_to():
    all_options = {"a": options((1.0, 0), (0.5, 1), (0.4, 9)), "b": options((0.3, 0), (0.1, 1))}
    steps = upgrades(all_options)
    assert {name: one.error for name, one in choice(all_options, []).items()} == {"a": 1.0, "b": 0.3}
    assert {name: one.error for name, one in choice(all_options, steps[:2]).items()} == {"a": 0.5, "b": 0.1}
    assert {name: one.error for name, one in choice(all_options, steps).items()} == {"a": 0.4, "b": 0.1}


EIGHTHS = st.integers(0, 8).map(lambda eighths: eighths / 8)  # errors that differ by more than rounding


@given(st.lists(st.lists(st.tuples(EIGHTHS, st.floats(0, 100)), min_size=1, max_size=5), max_size=8))
def test_any_treatments_give_steps_that_each_take_error_away(table):
    all_options = {str(number): options((pairs[0][0], 0.0), *pairs[1:]) for number, pairs in enumerate(table)}
    now = {name: some[0].error for name, some in all_options.items()}
    for name, step in upgrades(all_options):
        assert step.error < now[name]
        now[name] = step.error


def test_planted_outliers_keep_their_shadow_and_a_plain_linear_drops_it():
    random = np.random.default_rng(0)
    x = random.standard_normal((512, 256), np.float32)
    weight = random.standard_normal((96, 256), np.float32)
    loud, tame = x.copy(), weight.copy()
    loud[:, [7, 30]] *= 100.0
    tame[:, [7, 30]] /= 100.0
    measured = {}
    for name, (rows, matrix) in {"plain": (x, weight), "loud": (loud, tame)}.items():
        seen = ChannelStatistics(256, name)
        seen.add(rows)
        measured[name] = treatments(seen, matrix)
    steps = upgrades(measured)
    assert steps[0][0] == "loud" and steps[0][1].shadow == "full"

    def losses(numbers: list[int]) -> list[float]:
        return [1e3 * sum(one.error for one in choice(measured, steps[:number]).values()) for number in numbers]

    with_hot = losses([1])[0]
    kept = choice(measured, steps[: fewest_steps(len(steps), losses, 1.1 * with_hot).steps])
    assert {name: one.shadow for name, one in kept.items()} == {"plain": "none", "loud": "full"}


def search(losses: list[float], budget: float) -> int:
    """The number of steps that is chosen where ``losses[n]`` is what n steps leave."""
    found = fewest_steps(len(losses) - 1, lambda numbers: [losses[number] for number in numbers], budget)
    assert losses[found.steps] <= found.allowed
    return found.steps


@settings(max_examples=200)
@given(st.lists(st.floats(0, 30), min_size=1, max_size=120), st.floats(0.01, 30), st.floats(0.01, 30))
def test_a_bigger_budget_never_keeps_more(losses, one, other):
    small, big = sorted(losses[-1] + budget for budget in (one, other))  # both can be reached
    assert search(losses, big) <= search(losses, small)


def test_the_search_ends_near_the_least_number():
    losses = [10.0 * 0.95**number for number in range(97)]
    for budget in (8.0, 3.0, 1.0, 0.5):
        least = next(number for number, loss in enumerate(losses) if loss <= budget)
        assert least <= search(losses, budget) <= least + 10


def test_a_budget_out_of_reach_means_nearly_as_good_as_all():
    losses = [9.0, 5.0, 2.5, 2.0 + SLACK / 2, 2.0]
    assert search(losses, 0.5) == 3


def test_nothing_to_choose_from():
    assert search([0.3], 0.5) == 0


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
