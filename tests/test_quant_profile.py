"""Hot channels and scales on activations whose outliers we put there ourselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edge_llm.errors import NumericError
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.profile import (
    OVERFLOW_PRICE,
    PERCENTILES,
    LinearProfile,
    OutlierProfile,
    ScaleSearch,
    choose_hot,
    error_with_shadow,
    linear_profile,
    naive_treatment,
    percentiles,
    treatments,
)

NONE = np.empty(0, np.int32)


def statistics(x: np.ndarray, name: str = "layers.0.qkv") -> ChannelStatistics:
    seen = ChannelStatistics(x.shape[1], name)
    half = len(x) // 2
    seen.add(x[:half])
    seen.add(x[half:])
    return seen


def choose_scale(
    seen: ChannelStatistics, hot: np.ndarray, weight_energy: np.ndarray | None = None, price: float = OVERFLOW_PRICE
) -> float:
    return ScaleSearch(seen, hot, weight_energy).best(price)


def bell(tokens: int = 512, columns: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, columns), np.float32)


def test_plain_activations_have_no_hot_channels():
    assert len(choose_hot(statistics(bell()))) == 0


@pytest.mark.parametrize("factor", [10, 30, 100, 1e4])
def test_loud_channels_are_hot(factor):
    x = bell()
    x[:, [5, 77, 200]] *= factor
    assert choose_hot(statistics(x)).tolist() == [5, 77, 200]


def test_one_loud_token_makes_its_channel_hot():
    x = bell()
    x[100, 9] = 500.0
    assert choose_hot(statistics(x)).tolist() == [9]


def test_at_most_three_percent_the_strongest_first():
    x = bell()
    x[:, :20] *= np.linspace(10, 200, 20, dtype=np.float32)
    assert choose_hot(statistics(x)).tolist() == list(range(12, 20))  # ceil(3 % of 256) = 8


def test_two_are_always_allowed():
    x = bell(columns=16)
    x[:, [3, 4, 5]] *= np.array([20, 30, 40], np.float32)
    assert choose_hot(statistics(x)).tolist() == [4, 5]


def test_a_sink_token_moves_neither_scale_nor_median():
    x = bell()
    energy = np.ones(256)
    energy[40] = 30.0**-2
    plain = choose_scale(statistics(x), NONE, energy)
    x[0] *= 300.0
    x[256] *= 300.0
    x[:, 40] *= 30.0
    seen = statistics(x)
    assert seen.sinks().nonzero()[0].tolist() == [0, 256]
    hot = choose_hot(seen)
    assert 40 in hot
    assert choose_scale(seen, hot, energy) == pytest.approx(plain, rel=0.1)


def test_a_row_that_peaks_in_few_channels_is_no_sink():
    x = bell()
    x[0, [1, 2]] = 1000.0
    assert not statistics(x).sinks().any()
    assert choose_hot(statistics(x)).tolist() == [1, 2]


def test_bell_shape_gets_about_a_thousandth_of_overflow_and_heavy_tails_more():
    x = bell(2048)
    scale = choose_scale(statistics(x), NONE)
    overflow = (np.abs(x) > 127.5 * scale).mean()
    assert 2e-4 < overflow < 4e-3
    heavy = (x**3).astype(np.float32)
    assert (np.abs(heavy) > 127.5 * choose_scale(statistics(heavy), NONE)).mean() > 2 * overflow


def test_dearer_overflow_means_coarser_steps():
    x = bell(2048) ** 3
    scales = [choose_scale(statistics(x), NONE, price=price) for price in (0.0, 0.001, 0.01, 0.1, 1e6)]
    assert scales == sorted(scales) and scales[0] < scales[-1]
    assert scales[-1] == pytest.approx(float(np.abs(x).max()) / 127, rel=1e-6)


def test_channels_that_the_weight_ignores_do_not_count():
    x = bell(1024)
    x[:, 128:] *= 3.0
    energy = np.ones(256)
    energy[128:] = 1e-9
    assert choose_scale(statistics(x), NONE, energy) < choose_scale(statistics(x), NONE)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 20), st.integers(1, 20)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.just(0.0) | st.floats(-(2.0**-100), 2.0**-100, width=32),
    )
)
def test_any_activations_give_a_usable_scale(x):
    seen = statistics(x)
    hot = choose_hot(seen)
    scale = choose_scale(seen, hot)
    assert 1e-30 < scale < 1e30 and float(np.float32(scale)) == scale
    cold = np.delete(np.abs(x), hot, axis=1)
    assert cold.max(initial=0.0) / scale < 2e8  # a residual of it is far from float32's end
    assert (np.diff(hot) > 0).all() and len(hot) <= max(2, np.ceil(0.03 * x.shape[1]))


def test_silence_and_nothing():
    for x in (np.zeros((8, 6), np.float32), np.zeros((0, 6), np.float32)):
        assert len(choose_hot(statistics(x))) == 0
        assert choose_scale(statistics(x), NONE) == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_activations_are_refused_by_name(value):
    x = bell(4)
    x[1, 1] = value
    with pytest.raises(NumericError, match=r"`layers\.0\.qkv`"):
        statistics(x)


def outlier_linear() -> tuple[ChannelStatistics, np.ndarray]:
    """A linear two of whose input channels are loud, and its weight [96, 256]."""
    x = bell()
    weight = bell(96, 256, seed=1)
    x[:, [7, 30]] *= 100.0
    weight[:, [7, 30]] /= 100.0
    return statistics(x), weight


def test_the_shadow_keeps_the_output():
    seen, weight = outlier_linear()
    options = treatments(seen, weight)
    full = options[-1]
    assert [option.shadow for option in (options[0], full)] == ["none", "full"]
    assert full.hot.tolist() == [7, 30]
    assert options[0].largest_cold > 100 > full.largest_cold
    assert full.error < 2e-4
    assert options[0].error > 5e-3
    assert 0 < full.overflow < 0.01
    assert naive_treatment(seen, weight).error > 100 * full.error


@pytest.mark.parametrize("too_large", ["weight", "judged"])
def test_a_channel_whose_weights_are_beyond_float16_is_not_hot(too_large):
    seen, weight = outlier_linear()
    large = weight.copy()
    large[5, 7] = 70000.0
    options = treatments(seen, large, weight) if too_large == "weight" else treatments(seen, weight, large)
    assert options[-1].hot.tolist() == [30]
    assert np.isfinite([option.error for option in options]).all()
    assert np.isfinite(error_with_shadow(seen, large))


def test_a_shadow_costs_something_and_errs_less_than_none():
    none, full = treatments(*outlier_linear())
    assert (none.shadow, full.shadow) == ("none", "full")
    assert none.cost == 0.0 < full.cost
    assert full.error < none.error / 10


def test_without_outliers_there_is_no_full_shadow():
    options = treatments(statistics(bell()), bell(96, 256, seed=1))
    assert {option.shadow for option in options} == {"none", "cold"}
    assert options[0].cost == 0.0 and options[0].error < 3e-4


def test_clipping_cuts_off_less_than_a_residual():
    x = bell(2048) ** 3
    search = ScaleSearch(statistics(x), NONE)
    assert search.best_clipped() > search.best(0.01)


def test_a_profile_tells_what_was_kept_and_what_could_have_been():
    options = treatments(*outlier_linear())
    profile = linear_profile(options[0], options)
    assert (profile.hot, profile.outliers) == (0, 2)
    assert profile.error == profile.error_without_shadow > profile.error_full
    assert profile.largest == profile.largest_cold > 100


def test_a_profile_survives_the_manifest():
    linear = LinearProfile(2, 10.0, 1.0, 0.001, 1e-5, 0.3)
    profile = OutlierProfile("sha256:x", 2048, 4.0, 0.03, 0.01, {"output": linear}, {"budget": 0.5})
    assert OutlierProfile.from_fields(profile.to_fields()) == profile


def test_a_profile_from_before_shadows_were_chosen_is_read():
    fields = OutlierProfile("sha256:x", 1, 4.0, 0.03, 0.01, {"output": LinearProfile(2, 10.0, 1.0, 0.0, 1e-5, 0.3)}).to_fields()
    del fields["choice"], fields["linears"]["output"]["outliers"], fields["linears"]["output"]["error_full"]
    read = OutlierProfile.from_fields(fields)
    assert read.linears["output"].outliers is None and read.choice == {}


def test_sinks_and_peaks_know_of_rows_that_come_later() -> None:
    statistics = ChannelStatistics(8)
    statistics.add(np.ones((4, 8), np.float32))
    assert not statistics.sinks().any()
    np.testing.assert_array_equal(statistics.peaks(), np.ones(8))
    statistics.add(np.full((1, 8), -100, np.float32))
    np.testing.assert_array_equal(statistics.sinks(), [False] * 4 + [True])
    np.testing.assert_array_equal(statistics.peaks(), np.full(8, 100))


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (5, 3), (100, 301), (896, 97)])
def test_percentiles_are_those_of_numpy(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    for values in (random.standard_normal(shape), np.exp(5 * random.standard_normal(shape)), np.ones(shape)):
        found = percentiles(np.abs(values).astype(np.float32))
        np.testing.assert_array_equal(found, np.percentile(np.abs(values).astype(np.float32), PERCENTILES))
