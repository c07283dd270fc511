"""What a product's graph is made of: operators that every runtime knows, or those of an Ascend chip for CANN's compiler `atc`.

A chip's graph ends in float16, as its quantized matmul does: ``float16((rows @ weight + bias) * scale)``, the scale of 19 bits
and the bias int32.  The compiler takes no INT8 input [atc], so rows come as whole numbers in float16, and AscendQuant by one
makes them INT8; the host has quantized them already, because it keeps hot channels and overflow.  Nothing here was compiled or
run by us.  Sources, as tags in the comments:

[qbmm] hicann/ops-nn matmul/quant_batch_matmul_v3: framework/quant_batch_matmulV3_onnx_plugin.cpp registers the ONNX operator
ai.onnx::8 to 16::QuantBatchMatMul (this spelling) with the INT attributes dtype, transpose_x1 and transpose_x2;
op_graph/quant_batch_matmul_v3_proto.h has inputs and types per product; op_host/config/ascend310p has the kernels of a 310P;
README.md says that Atlas 200I/500 A2 (310B) lacks the operator.
[quant] CANN's ONNX plugin of ai.onnx::8 to 22::AscendQuant (FLOAT scale and offset, STRING round_mode) and the operator's
specification: rint(x * scale + offset), saturated to INT8; on a 310B as well.
[dequant] the same of ai.onnx::8 to 22::AscendDequant (INT dtype); hicann/amct's InsertDequantPass puts it behind MatMul, and
behind the Add of a bias, with uint64 scales.
[pack] hicann/ops-nn quant/trans_quant_param_v2/README.md: (scale & 0xFFFFE000) | 1 << 46.
[ge] hicann/ge parser/parser/onnx/onnx_parser.cc: an operator without a domain is ai.onnx's, an input without a name is left
out, external data become constants before anything is compiled; older parsers take one opset import alone.
[atc] "ATC, parameter overview" in CANN 9.0's documentation: inputs of ONNX models are float32, float16 or uint8; models that
are quantized take no dynamic shapes, and not --precision_mode_v2=origin; ONNX 1.12 and its opsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from edge_llm.ascend.devices.onnx_product import PRODUCT, ROWS, scaled_product
from edge_llm.ascend.npu.chips import CHIPS, ChipLaw
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.schemes.int8_weight import Int8Weight

Arrays = Iterator[tuple[str, np.ndarray]]
"""Initializers of a product, by name."""
_FLOAT16 = 1
"""CANN's number of the type [qbmm]."""
_PACKED = np.uint64(1 << 46)


@dataclass(frozen=True)
class Flavour:
    """One kind of graphs."""

    name: str
    rows: str
    """NumPy name of the input's type; ``product`` of the output's."""
    product: str
    arrays: Callable[[Int8Weight], Arrays]
    nodes: Callable[[ModuleType, bool], Iterator[Any]]
    """``(onnx, with_bias) -> nodes``."""
    chip: ChipLaw | None = None
    """What it is compiled for; None where a runtime takes it as it is."""


def check_arrays(weight: Int8Weight) -> Arrays:
    """Of ``float32(rows @ weight) * scale (+ bias)``: int8 [K, N], float32 [N], float32 [N]."""
    yield "weight", np.ascontiguousarray(unpack_tiles(weight.tiles, weight.rows, weight.columns).T)
    yield "scale", weight.product_scale
    if weight.bias is not None:
        yield "bias", weight.bias


def _check_nodes(onnx: ModuleType, with_bias: bool) -> Iterator[Any]:
    return scaled_product(onnx, [ROWS, "weight"], with_bias=with_bias)


def _fused_arrays(weight: Int8Weight) -> Arrays:
    """int8 [N, K], as the kernel of a 310P wants it; uint64 [N]; int32 [N]."""
    scale, bias = weight.rounding
    yield "weight", unpack_tiles(weight.tiles, weight.rows, weight.columns)
    yield "scale", scale.view(np.uint32) | _PACKED  # [pack]
    if bias is not None:
        yield "bias", bias


def _fused_nodes(onnx: ModuleType, with_bias: bool) -> Iterator[Any]:
    yield _quantized(onnx)
    operands = ["quantized", "weight", "scale", *(("", "bias") if with_bias else ())]  # no offset
    yield onnx.helper.make_node(
        "QuantBatchMatMul", operands, [PRODUCT], name="matmul", dtype=_FLOAT16, transpose_x1=0, transpose_x2=1
    )


def _plain_arrays(weight: Int8Weight) -> Arrays:
    """int8 [K, N]; uint64 [N], a float32 in the low half [dequant]; int32 [N]."""
    scale, bias = weight.rounding
    yield "weight", np.ascontiguousarray(unpack_tiles(weight.tiles, weight.rows, weight.columns).T)
    yield "scale", scale.view(np.uint32).astype(np.uint64)
    if bias is not None:
        yield "bias", bias


def _plain_nodes(onnx: ModuleType, with_bias: bool) -> Iterator[Any]:
    """What AMCT makes of a quantized MatMul."""
    sums = "sums" if with_bias else "dots"
    yield _quantized(onnx)
    yield onnx.helper.make_node("MatMul", ["quantized", "weight"], ["dots"], name="matmul")
    if with_bias:
        yield onnx.helper.make_node("Add", ["dots", "bias"], [sums], name="add")
    yield onnx.helper.make_node("AscendDequant", [sums, "scale"], [PRODUCT], name="dequant", dtype=_FLOAT16)


def _quantized(onnx: ModuleType) -> Any:
    return onnx.helper.make_node("AscendQuant", [ROWS], ["quantized"], name="quant", scale=1.0, offset=0.0, round_mode="Round")


CHECK = Flavour("check", "int8", "float32", check_arrays, _check_nodes)
_OPERATORS = {
    "310p": (_fused_arrays, _fused_nodes),
    "310b": (_plain_arrays, _plain_nodes),  # it has no QuantBatchMatMul [qbmm]
    "910b": (_fused_arrays, _fused_nodes),
}
FLAVOURS: Mapping[str, Flavour] = {
    CHECK.name: CHECK,
    **{name: Flavour(name, "float16", "float16", *operators, CHIPS[name]) for name, operators in _OPERATORS.items()},
}
"""By name: `check`, and the chips."""
