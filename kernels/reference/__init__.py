"""Every kernel once, in NumPy: the definition of correct.

Slow and plain on purpose. The native kernels are compared with these functions bit for bit, so the order of every float
reduction is written out here: sixteen virtual lanes (lane i sums elements i, i+16, ...), then the fixed tree
(l[i] + l[i+8]), +4, +2, +1; a multiply-add inside a reduction rounds once (`fma`).
Signatures are those of the kernels without `pool`.
"""

from __future__ import annotations

from edge_llm.kernels.reference.attention import (
    INT16_MOST,
    LOG2_E,
    PAGE,
    SEGMENT,
    SMALLEST_NORMAL,
    append_kv,
    exp2_negative,
    key_page,
    keys_of,
    paged_attention,
    rope_append,
    value_page,
    values_of,
)
from edge_llm.kernels.reference.embedding import embedding
from edge_llm.kernels.reference.experts import choose_experts, experts
from edge_llm.kernels.reference.half_linear import half_linear
from edge_llm.kernels.reference.layout import crc32c, gather_rows, pack_tiles, row_sums, unpack_tiles
from edge_llm.kernels.reference.linear import (
    hot_product,
    linear,
    linear_int8,
    linear_rounded,
    merge,
    overflow_product,
    quantize,
    quantize_rows,
)
from edge_llm.kernels.reference.neurons import add_columns, dot_rows
from edge_llm.kernels.reference.numeric import (
    LANES,
    fma,
    lane_dot,
    lane_sum,
    reduce_lanes,
    to_lanes,
)
from edge_llm.kernels.reference.pointwise import activate, exp, gated, head_norm, layer_norm, rms_norm, rope, swiglu, tanh
from edge_llm.kernels.reference.program import Program
from edge_llm.kernels.reference.recurrent import gated_norm, rates, recurrence, short_convolution, sigmoid_gate, softplus
from edge_llm.kernels.reference.sampling import (
    sampling_best,
    sampling_candidates,
    sampling_draw,
    sampling_likeliest,
    sampling_log_sum,
    sampling_mask,
    sampling_masses,
)
from edge_llm.kernels.reference.turn import turn
from edge_llm.kernels.types import F16, F32, I8, I32, I64, TILE_CHANNELS, TILE_DEPTH, Residual, Rounding

__all__ = [
    "F16",
    "F32",
    "I8",
    "I32",
    "I64",
    "INT16_MOST",
    "LANES",
    "LOG2_E",
    "PAGE",
    "SEGMENT",
    "SMALLEST_NORMAL",
    "TILE_CHANNELS",
    "TILE_DEPTH",
    "Program",
    "Residual",
    "Rounding",
    "activate",
    "add_columns",
    "append_kv",
    "choose_experts",
    "crc32c",
    "dot_rows",
    "embedding",
    "exp",
    "exp2_negative",
    "experts",
    "fma",
    "gated",
    "gated_norm",
    "gather_rows",
    "half_linear",
    "head_norm",
    "hot_product",
    "key_page",
    "keys_of",
    "lane_dot",
    "lane_sum",
    "layer_norm",
    "linear",
    "linear_int8",
    "linear_rounded",
    "merge",
    "overflow_product",
    "pack_tiles",
    "paged_attention",
    "quantize",
    "quantize_rows",
    "rates",
    "recurrence",
    "reduce_lanes",
    "rms_norm",
    "rope",
    "rope_append",
    "row_sums",
    "sampling_best",
    "sampling_candidates",
    "sampling_draw",
    "sampling_likeliest",
    "sampling_log_sum",
    "sampling_mask",
    "sampling_masses",
    "short_convolution",
    "sigmoid_gate",
    "softplus",
    "swiglu",
    "tanh",
    "to_lanes",
    "turn",
    "unpack_tiles",
    "value_page",
    "values_of",
]  # fmt: skip
