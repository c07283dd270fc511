"""The product of every weight scheme in plain NumPy: the definition of correct, which nothing but tests calls."""

import numpy as np

from edge_llm.kernels.reference import hot_product, linear, pack_tiles
from edge_llm.kernels.reference.w4 import expand
from edge_llm.schemes.base import Weight
from edge_llm.schemes.float16 import Float16Weight
from edge_llm.schemes.int8_weight import CodedProduct, Int8Product, Int8Weight, is_codes
from edge_llm.schemes.neurons import NeuronWeight, ResidentColumns


def reference(x: np.ndarray, weight: Weight) -> np.ndarray:
    """`Weight.apply` without norm, addition and SwiGLU."""
    if isinstance(weight, Float16Weight):
        y = hot_product(x, np.arange(weight.columns, dtype=np.int32), weight.weight)
        return y if weight.bias is None else y + weight.bias
    if isinstance(weight, NeuronWeight):
        return _of_neurons(x, weight)
    assert isinstance(weight, Int8Product), f"no reference for {type(weight).__name__}"
    return linear(
        x,
        _tiles(weight),
        weight.rows,
        weight.linear_scale,
        weight.product_scale,
        weight.row_sum,
        weight.hot_index,
        weight.hot_weight,
        bias=None if weight.rounds else weight.bias,
        rounding=weight.rounding if weight.rounds else None,
        shadow=weight.residual,
        turn=weight.turn,
    )


def _of_neurons(x: np.ndarray, weight: NeuronWeight) -> np.ndarray:
    """The product of all columns, as INT8 rows with scales of their own have it."""
    assert isinstance(weight.held, ResidentColumns)
    runs = weight.held.columns[:, : weight.run * weight.rows].reshape(-1, weight.rows)
    none = np.empty((0, weight.rows), np.float16)
    return linear(
        x, pack_tiles(np.ascontiguousarray(runs[: weight.columns].T)), weight.rows, None, weight.weight_scale,
        np.zeros(weight.rows, np.int32), np.empty(0, np.int32), none, bias=weight.bias,
    )  # fmt: skip


def _tiles(weight: Int8Product) -> np.ndarray:
    """Its tiles, or those that its codes stand for."""
    if isinstance(weight, Int8Weight):
        return weight.tiles
    assert isinstance(weight, CodedProduct)
    return np.concatenate([
        expand(integers, channels, weight.columns) if is_codes(integers) else integers
        for integers, channels in weight.parts_in_order
    ])
