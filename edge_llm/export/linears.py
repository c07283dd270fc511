"""What becomes of a bundle's linear: its integers as they are where they need nothing beside them, else rounded again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edge_llm.config import INT8, ROW, STATIC, W4
from edge_llm.export.forms import GROUP, Floats, Form, Integers, nearest_codes, nearest_integers
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.blocks import rows_of
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.operations.linear import Linear
from edge_llm.quant.shadow import NONE
from edge_llm.quant.turning import turned
from edge_llm.schemes import Facts, Weight
from edge_llm.schemes.blocks import BlocksWeight
from edge_llm.schemes.float16 import Float16Weight
from edge_llm.schemes.int8_weight import CodedProduct, Int8Weight
from edge_llm.schemes.joint import has_codes, schemes_in
from edge_llm.schemes.neurons import NeuronWeight

LOSSES = {
    "turned": "turn what they read before they round it, which the format does not: their weights are turned back and rounded "
    "again",
    "outliers": "keep channels in float16 beside INT8, which the format does not: all channels are rounded",
    "overflow": "add back what a static scale cuts off, which the format does not: tokens get scales of their own",
    "scales": "have a static scale beside those of tokens; the format holds one kind, and gets that of tokens",
    "offset": "have inputs with an offset and something beside it: tokens get scales of their own",
    "blocks": "are in blocks of a GGUF file, which the format does not have: they are rounded again",
    "codes": f"have 4-bit codes of steps that are not even: they are rounded again to even ones, in groups of {GROUP}; "
    "--weights int8 loses less",
    "mixed": "have parts of 4 and of 8 bits, which runtimes multiply as one: all of it is INT8",
    "wide": f"cannot be in groups of {GROUP} columns: they are INT8",
}
"""What the format cannot hold of a linear, and what is done: it follows their number."""


@dataclass(frozen=True)
class Made:
    """A linear as it is written."""

    form: Form
    bias: np.ndarray | None
    """float32 [N]; None where the bundle has none."""
    losses: tuple[str, ...]
    """Keys of `LOSSES`."""


def made_of(linear: Linear, weight: Weight, facts: Facts, wanted: str | None = None) -> Made:
    """What is written of ``linear`` with the opened ``weight``, which has the manifest's ``facts``.

    wanted: INT8 or W4, for what is quantized; None: as it is.
    """
    if isinstance(weight, Float16Weight):
        return Made(Floats(np.ascontiguousarray(weight.weight.T)), weight.bias, ())
    if isinstance(weight, BlocksWeight):
        form, more = _rounded(_of_blocks(weight), linear, wanted or INT8)
        return Made(form, weight.bias, ("blocks", *more))
    if isinstance(weight, NeuronWeight):
        whole_form = Integers(weight.integers, weight.weight_scale)
        form, more = (whole_form, ()) if wanted != W4 else _rounded(whole_form.floats, linear, W4)
        return Made(form, weight.bias, more)
    assert isinstance(weight, Int8Weight | CodedProduct), "these are all schemes"
    whole = weight.expanded(ThreadPool(1)) if isinstance(weight, CodedProduct) else weight
    bias = _float_bias(whole)
    if (wanted or _own(linear)) == W4:
        form, more = _rounded(dense(whole), linear, W4)
        return Made(form, bias, (*_beside(whole, facts), *(("codes",) if has_codes(linear) else ()), *more))
    mixed = ("mixed",) if wanted is None and len(schemes_in(linear.scheme)) > 1 else ()
    losses = (*_beside(whole, facts), *mixed)
    if {"turned", "outliers"} & set(losses):
        return Made(nearest_integers(dense(whole)), bias, losses)
    is_static = facts.get("activations", STATIC) == STATIC and facts.get("shadow", NONE) == NONE
    scale, offset = (whole.input_scale, whole.input_offset) if is_static else (None, 0)
    return Made(Integers(_integers(whole), whole.weight_scale, scale, offset), bias, losses)


def dense(weight: Int8Weight) -> np.ndarray:
    """The float weight that ``weight`` stands for, its columns turned back: float32 [N, K]."""
    found = np.asarray(_integers(weight) * weight.weight_scale[:, None], np.float32)
    found[:, weight.hot_index] = weight.hot_weight.T
    return turned(found, weight.turn)


def _own(linear: Linear) -> str:
    return W4 if schemes_in(linear.scheme) == (W4,) else INT8


def _beside(weight: Int8Weight, facts: Facts) -> Iterator[str]:
    """What ``weight`` has beside integers and one kind of scales."""
    if weight.turn:
        yield "turned"
    if len(weight.hot_index):
        yield "outliers"
    if facts.get("activations", STATIC) == ROW:
        yield "scales"
    elif facts.get("shadow", NONE) != NONE:
        yield "overflow"
    if weight.input_offset and (weight.turn or len(weight.hot_index)):
        yield "offset"


def _rounded(weight: np.ndarray, linear: Linear, wanted: str) -> tuple[Form, tuple[str, ...]]:
    if wanted == W4 and linear.columns % GROUP == 0:
        return nearest_codes(weight), ()
    return nearest_integers(weight), ("wide",) if wanted == W4 else ()


def _integers(weight: Int8Weight) -> np.ndarray:
    return unpack_tiles(weight.tiles, weight.rows, weight.columns)


def _of_blocks(weight: BlocksWeight) -> np.ndarray:
    """The floats [N, K] that blocks stand for."""
    pool = ThreadPool(1)
    parts = zip(weight.integers.values(), weight.kinds, weight.channels, strict=True)
    return np.concatenate([rows_of(panels, kind, weight.columns, np.arange(rows), pool) for panels, kind, rows in parts])


def _float_bias(weight: Int8Weight) -> np.ndarray | None:
    """The bias of the float linear: that of ``weight`` takes out what an offset of its input adds."""
    if weight.bias is None or not weight.input_offset:
        return weight.bias
    added = weight.input_offset * weight.row_sum.astype(np.float64) * weight.product_scale
    found = np.asarray(weight.bias + added, np.float32)
    found[np.abs(found) <= 1e-6 * np.abs(weight.bias)] = 0  # rounding left it
    return found
