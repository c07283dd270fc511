"""The weight scheme against its own promise: half a step of error, hot columns exact to float16."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edge_llm.errors import InvalidModel
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.quant.scheme import SMALLEST_SCALE, WeightQuantizer, quantize_weight

NONE = np.empty(0, np.int32)

weights = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40),
    elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=True),
)


def dequantize(quantized, columns):
    q = unpack_tiles(quantized.tiles, len(quantized.weight_scale), columns)
    return q.astype(np.float64) * quantized.weight_scale[:, None].astype(np.float64), q


@settings(max_examples=150, deadline=None)
@given(weights, st.data())
def test_error_is_at_most_half_a_step(weight, data):
    rows, columns = weight.shape
    hot = np.array(sorted(data.draw(st.sets(st.integers(0, columns - 1), max_size=3))), np.int32)
    quantized = quantize_weight(weight, hot)
    values, q = dequantize(quantized, columns)
    cold = np.setdiff1d(np.arange(columns), hot)
    error = np.abs(values[:, cold] - weight[:, cold].astype(np.float64))
    assert (error <= 0.50001 * quantized.weight_scale[:, None]).all()
    assert q.min() >= -127 and q.max() <= 127
    assert (q[:, hot] == 0).all()
    np.testing.assert_array_equal(quantized.hot_weight, weight[:, hot].T.astype(np.float16))
    np.testing.assert_array_equal(quantized.row_sum, q.sum(axis=1, dtype=np.int32))
    # every row uses the whole range, unless it is zero
    largest = np.abs(weight[:, cold]).max(axis=1, initial=0)
    assert (np.abs(q).max(axis=1, initial=0)[largest > 127 * SMALLEST_SCALE] == 127).all()
    assert np.isfinite(1 / quantized.weight_scale).all()
    assert quantized.weight_scale.dtype == np.float32 and quantized.hot_weight.shape == (len(hot), rows)


def test_hot_columns_widen_no_row():
    weight = np.full((16, 8), 0.01, np.float32)
    weight[:, 3] = 50.0
    without, with_ = quantize_weight(weight, NONE), quantize_weight(weight, np.array([3], np.int32))
    assert dequantize(without, 8)[1][0, 0] == 0  # lost beside the large column
    np.testing.assert_allclose(dequantize(with_, 8)[0][:, :3], 0.01, rtol=1e-6)
    np.testing.assert_array_equal(with_.hot_weight, np.full((1, 16), 50.0, np.float16))


def test_symmetric_and_scale_free():
    weight = np.random.default_rng(0).standard_normal((20, 33)).astype(np.float32)
    one = quantize_weight(weight, NONE)
    np.testing.assert_array_equal(quantize_weight(-weight, NONE).row_sum, -one.row_sum)
    np.testing.assert_array_equal(quantize_weight(weight * 4, NONE).tiles, one.tiles)


def test_blocks_of_rows_give_the_whole():
    weight = np.random.default_rng(1).standard_normal((70, 13)).astype(np.float32)
    hot = np.array([2, 7], np.int32)
    whole = quantize_weight(weight, hot)
    quantizer = WeightQuantizer(70, 13, hot)
    for start in (0, 16, 64):
        quantizer.add(weight[start : {0: 16, 16: 64, 64: 70}[start]])
    for name, array in quantizer.finish().arrays().items():
        np.testing.assert_array_equal(array, whole.arrays()[name], strict=True)
    unfinished = WeightQuantizer(70, 13, hot)
    unfinished.add(weight[:10])
    with pytest.raises(ValueError, match="multiple of 16"):
        unfinished.add(weight[10:26])
    with pytest.raises(ValueError, match="10 of 70 rows"):
        unfinished.finish()


def test_the_source_is_not_changed():
    weight = np.ones((4, 4), np.float32)
    quantize_weight(weight, np.array([1], np.int32))
    assert (weight == 1).all()


def test_zero_and_tiny_rows():
    weight = np.zeros((3, 5), np.float32)
    weight[1] = 1e-44
    quantized = quantize_weight(weight, NONE)
    assert (dequantize(quantized, 5)[1] == 0).all()
    assert (quantized.weight_scale == np.float32(SMALLEST_SCALE)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("hot", [NONE, np.array([2], np.int32)])
def test_values_that_are_not_finite_are_refused_by_name(value, hot):
    weight = np.ones((4, 4), np.float32)
    weight[1, 2] = value
    with pytest.raises(InvalidModel, match=r"`layers\.3\.down`"):
        quantize_weight(weight, hot, "layers.3.down")


def test_hot_column_too_large_for_float16_is_refused():
    weight = np.ones((4, 4), np.float32)
    weight[0, 2] = 70000.0
    with pytest.raises(InvalidModel, match="65504"):
        quantize_weight(weight, np.array([2], np.int32))
    quantize_weight(weight, NONE)


@pytest.mark.parametrize("hot", [[4], [-1], [1, 1], [2, 1]])
def test_hot_must_ascend_within_the_channels(hot):
    with pytest.raises(ValueError, match="ascending"):
        quantize_weight(np.ones((4, 4), np.float32), np.array(hot, np.int32))
