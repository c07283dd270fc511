"""The law of the chips: calls that pass, calls that are refused, and that every refusal names what it is about."""

import re
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.ascend.npu import chips, law
from edge_llm.ascend.npu.chips import CHIPS, chip_law
from edge_llm.ascend.npu.law import (
    OPERATORS,
    Operand,
    attention_refusal,
    check_call,
    check_capture,
    check_product,
    int8_keys_refusal,
    supports,
)
from edge_llm.ascend.npu.rules import Limit, Operator
from edge_llm.errors import DeviceError


def operand(text):
    """``int8 4 896`` as an operand, ``int8 4 896 nz`` as one that lies as NZ."""
    dtype, *rest = text.split()
    return Operand(dtype, tuple(int(size) for size in rest if size != "nz"), "nz" in rest)


EVER = 2147483647
BASES = {  # a good call of each operator, under a short name: operands and settings
    "matmul": ("npu_quant_matmul", {
        "x1": "int8 4 896", "x2": "int8 896 4864 nz", "scale": "int64 4864", "output_dtype": "float16",
    }),
    "pack": ("npu_trans_quant_param", {"scale": "float32 1 4864"}),
    "quantize": ("npu_quantize", {
        "input": "float16 4 896", "scales": "float16 896", "zero_points": None, "dtype": "qint8", "axis": -1, "div_mode": False,
    }),
    "dynamic": ("npu_dynamic_quant", {"input": "float16 4 896"}),
    "cast": ("npu_format_cast", {"input": "int8 4864 896", "acl_format": 29}),
    "norm": ("npu_rms_norm", {"input": "float16 4 896", "gamma": "float16 896", "epsilon": 1e-5}),
    "add norm": ("npu_add_rms_norm", {"x1": "float32 4 896", "x2": "float32 4 896", "gamma": "float32 896", "epsilon": 1e-5}),
    "swiglu": ("npu_swiglu", {"input": "float16 4 9728"}),
    "incre": ("npu_incre_flash_attention", {
        "query": "float16 3 1 896", "key": "float16 9 128 128", "value": "float16 9 128 128", "block_table": "int32 3 4",
        "num_heads": 14, "num_key_value_heads": 2, "scale_value": 0.125, "input_layout": "BSH", "block_size": 128,
        "actual_seq_lengths": [1, 200, 512],
    }),
    "prompt": ("npu_prompt_flash_attention", {
        "query": "float16 1 14 40 64", "key": "float16 1 14 96 64", "value": "float16 1 14 96 64", "atten_mask": "bool 40 96",
        "num_heads": 14, "input_layout": "BNSD", "pre_tokens": EVER, "next_tokens": 0,
    }),
    "fused": ("npu_fused_infer_attention_score", {
        "query": "float16 3 1 896", "key": "float16 9 128 128", "value": "float16 9 128 128", "block_table": "int32 3 4",
        "num_heads": 14, "num_key_value_heads": 2, "scale": 0.125, "input_layout": "BSH", "block_size": 128,
        "actual_seq_lengths_kv": [1, 200, 512],
    }),
    "scatter": ("npu_scatter_pa_kv_cache", {
        "key": "float16 3 2 64", "value": "float16 3 2 64", "key_cache": "float16 9 8 128 16 nz",
        "value_cache": "float16 9 8 128 16 nz", "slot_mapping": "int32 3",
    }),
    "cache": ("_npu_reshape_and_cache", {
        "key": "float16 3 2 64", "value": "float16 3 2 64", "key_cache": "float16 9 8 128 16 nz",
        "value_cache": "float16 9 8 128 16 nz", "slot_indices": "int32 3",
    }),
    "paged": ("_npu_paged_attention", {
        "query": "float16 3 14 64", "key_cache": "float16 9 8 128 16 nz", "value_cache": "float16 9 8 128 16 nz",
        "block_table": "int32 3 4", "context_lens": "int32 3", "out": "float16 3 14 64", "workspace": None,
        "num_heads": 14, "num_kv_heads": 2, "scale_value": 0.125,
    }),
    "pieces": ("_npu_paged_attention_splitfuse", {
        "query": "float16 40 14 64", "key_cache": "float16 9 8 128 16 nz", "value_cache": "float16 9 8 128 16 nz",
        "block_table": "int32 3 4", "context_lens": "int32 3", "seq_len": "int32 3", "mask": "float16 1 32 48 16 nz",
        "out": "float16 40 14 64", "num_heads": 14, "num_kv_heads": 2, "scale_value": 0.125,
    }),
    "chunk": ("_npu_paged_attention_splitfuse_v2", {
        "query": "float16 40 14 64", "key_cache": "float16 9 8 128 16 nz", "value_cache": "float16 9 8 128 16 nz",
        "block_table": "int32 3 4", "context_lens": "int32 3", "seq_len": "int32 3", "mask": "float16 2048 2048",
        "out": "float16 40 14 64", "num_heads": 14, "num_kv_heads": 2, "scale_value": 0.125, "mask_type": 5,
    }),
    "rotary": ("npu_apply_rotary_pos_emb", {
        "query": "float16 1 3 14 64", "key": "float16 1 3 2 64", "cos": "float16 1 3 1 64", "sin": "float16 1 3 1 64",
        "layout": "BSND", "rotary_mode": "half",
    }),
    "gemm": ("aclblasS8gemm", {"matrixA": "int8 4 896", "matrixB": "int8 896 151936", "matrixC": "int32 4 151936"}),
    "linear": ("LinearOperation", {
        "x": "int8 4 896", "weight": "int8 896 4864 nz", "bias": "int32 4864", "deqScale": "int64 4864",
        "outDataType": "float16",
    }),
    "mm": ("mm", {"self": "float16 4 32", "mat2": "float16 32 896"}),
    "addmm": ("addmm", {"self": "float16 4 896", "mat1": "float16 4 32", "mat2": "float16 32 896"}),
    "cat": ("cat", {"dim": 1}),
    "put": ("index_copy", {"self": "int8 1152 128", "index": "int64 3", "source": "int8 3 128", "dim": 0}),
    "gather": ("index_select", {"self": "float16 4 896", "index": "int64 32", "dim": 1}),
    **{
        name: (name, {"self": "float16 4 896"})
        for name in ("abs", "neg", "add", "mul", "div", "gt", "amax", "sum", "max", "copy_", "to", "contiguous", "view")
    },
    "split": ("split_with_sizes_copy", {"self": "float16 4 896", "split_sizes": (512, 384), "dim": 1}),
}  # fmt: skip
TYPES = ("int4", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
BOTH = ("310p", "910b")
HEADS_OF_ROTARY = {"query": 14, "key": 2, "cos": 1, "sin": 1}
ND_CACHE = {"key_cache": "float16 9 128 2 64", "value_cache": "float16 9 128 2 64"}
INT8_KEYS = {"key": "int8 9 128 128", "value": "int8 9 128 128", "antiquant_scale": "float16 2 128"}
BY_HEADS = {
    "query": "float16 3 14 1 64", "key": "float16 9 2 128 64", "value": "float16 9 2 128 64", "input_layout": "BNSD",
}  # fmt: skip
FUSED_INT8 = {
    "key": "int8 9 128 128", "value": "int8 9 128 128", "key_antiquant_scale": "float16 128",
    "value_antiquant_scale": "float16 128",
}  # fmt: skip
RUN = {
    "query": "float16 40 14 128", "key": "float16 9 128 256", "value": "float16 9 128 256", "atten_mask": "int8 2048 2048",
    "input_layout": "TND", "actual_seq_lengths": [1, 20, 40], "sparse_mode": 3,
}  # fmt: skip


def call(base, **changes):
    """The call ``base`` with these changes: its operator, operands and settings; the latter have no spaces."""
    operator, arguments = BASES[base]
    arguments = arguments | changes
    tensors = {name for name, value in arguments.items() if isinstance(value, str) and " " in value}
    tensors |= {name for name, value in arguments.items() if value is None and name in known_operands(operator)}
    given_ = {name: None if arguments[name] is None else operand(arguments[name]) for name in tensors}
    return operator, given_, {name: value for name, value in arguments.items() if name not in tensors}


def known_operands(operator):
    return next(operators[operator].operands for operators in OPERATORS.values() if operator in operators)


def good(chip, base, **changes):
    return pytest.param(chip, *call(base, **changes), id=f"{chip}-{base}-{','.join(changes)}")


GOOD = [
    *(
        good(chip, base)
        for chip in CHIPS
        for base, (operator, _) in BASES.items()
        if operator in OPERATORS[chip] and not (chip == "910b" and base in ("cache", "paged", "pieces"))
    ),
    good("310p", "matmul", bias="int32 4864", offset=None, pertoken_scale=None),
    good("310p", "matmul", output_dtype="int8", offset="float32 1"),
    good("310p", "matmul", scale="float32 1"),
    good("310p", "matmul", x1="int8 256 65504", x2="int8 65504 16 nz", scale="int64 16"),
    good("910b", "matmul", output_dtype="int32", scale="float32 4864"),
    good("910b", "matmul", scale="float32 4864", pertoken_scale="float32 4", bias="float32 4864"),
    good("910b", "matmul", output_dtype="bfloat16", scale="bfloat16 4864", bias="float32 4864"),
    *(good(chip, "pack", scale="float32 4864", offset="float32 1") for chip in BOTH),
    *(good(chip, "quantize", input="float32 4 896", scales="float32 1", zero_points="float32 1") for chip in BOTH),
    good("310p", "quantize", div_mode=True, scales="float32 1", zero_points="int32 1", dtype="int32"),
    good("910b", "dynamic", input="bfloat16 4 896", smooth_scales="bfloat16 896"),
    good("310p", "dynamic"),
    good("310p", "cast", input="float16 9 8 128 16"),
    good("310p", "cast", input="int8 4864 896 nz", acl_format=2),
    good("310p", "norm", input="float32 4 8", gamma="float32 8"),
    good("310p", "norm", input="float16 4 14 16", gamma="float16 16"),
    good("910b", "norm", input="bfloat16 4 8 64", gamma="float32 64"),
    *(good(chip, "incre", **INT8_KEYS) for chip in BOTH),
    good("310p", "incre", query="float16 256 1 896", block_table="int32 256 512", actual_seq_lengths=[65536] * 256),
    good("910b", "incre", **BY_HEADS),
    good(
        "310p", "incre", query="float16 3 1 896", key="float16 3 500 128", value="float16 3 500 128", block_table=None,
        input_layout="BSH", block_size=0, actual_seq_lengths=None, atten_mask="bool 3 500",
    ),
    good(
        "910b", "prompt", key="float16 1 2 96 64", value="float16 1 2 96 64", num_key_value_heads=2, sparse_mode=3,
        atten_mask="int8 2048 2048",
    ),
    good("910b", "fused", **FUSED_INT8),
    good("910b", "fused", **RUN),
    good("910b", "scatter", **ND_CACHE, slot_mapping="int64 3", cache_mode="Norm"),
    good("910b", "cache", **ND_CACHE),
    good("910b", "paged", **ND_CACHE),
    good("910b", "pieces", **ND_CACHE, mask="float16 40 512"),
    good("310p", "rotary", **{name: f"float32 1 3 {heads} 128" for name, heads in HEADS_OF_ROTARY.items()}),
    *(good(chip, "to", dtype="int32") for chip in BOTH),
    good("310p", "gt", other="float16 1"),
]  # fmt: skip


@pytest.mark.parametrize(("chip", "operator", "given_", "settings_"), GOOD)
def test_calls_within_the_law_pass(chip, operator, given_, settings_):
    check_call(chip_law(chip), operator, given_, **settings_)


def test_every_operator_of_every_chip_has_a_good_call():
    tried = {(param.values[0], param.values[1]) for param in GOOD}
    assert tried == {(chip, operator) for chip, operators in OPERATORS.items() for operator in operators}


def test_each_chip_has_the_operators_that_its_placements_call():
    both = {
        "npu_quant_matmul", "npu_trans_quant_param", "npu_quantize", "npu_format_cast", "npu_rms_norm", "npu_swiglu",
        "npu_incre_flash_attention", "npu_prompt_flash_attention", "_npu_reshape_and_cache", "_npu_paged_attention",
        "_npu_paged_attention_splitfuse", "npu_apply_rotary_pos_emb", "mm", "add", "mul", "index_select", "copy_", "to",
        "contiguous", "view", "gt", "abs", "sum", "max",
    }  # fmt: skip
    assert OPERATORS.keys() == CHIPS.keys()
    assert both <= OPERATORS["310p"].keys() & OPERATORS["910b"].keys()
    for operator in ("npu_fused_infer_attention_score", "npu_scatter_pa_kv_cache"):
        assert supports(chip_law("910b"), operator) and not supports(chip_law("310p"), operator)
    assert not any(name.startswith(("npu_", "_npu")) for name in OPERATORS["310b"])


# ---- what is refused ----


def bad(chip, base, words, **changes):
    return pytest.param(chip, *call(base, **changes), words, id=f"{chip}-{base}-{','.join(changes)}")


BAD = [
    # types
    bad("310p", "matmul", "x2 is `int4`; it takes int8", x2="int4 896 4864 nz"),
    bad("910b", "matmul", "x2 is `int32`; it takes int8", x2="int32 896 608 nz"),
    bad("310p", "matmul", "pertoken_scale is `float32`; it takes none", pertoken_scale="float32 4"),
    bad("310p", "matmul", "output_dtype is `int32`; it takes float16, int8 or none", output_dtype="int32"),
    bad("310p", "matmul", "output_dtype is `float32`; it takes float16, int8 or none", output_dtype="float32"),
    bad("310p", "matmul", "output_dtype is `bfloat16`; it takes float16, int8 or none", output_dtype="bfloat16"),
    bad("310p", "matmul", "scale is `float16`; it takes int64 or float32", scale="float16 4864"),
    bad("310p", "matmul", "bias is `float32`; it takes int32 or none", bias="float32 4864"),
    bad("310p", "matmul", "offset is `float32`; it takes none", offset="float32 1"),
    bad("910b", "matmul", "offset is `float32`; it takes none", offset="float32 1", output_dtype="int32", scale="float32 1"),
    bad("910b", "matmul", "scale is `int64`; it takes float32 or bfloat16", output_dtype="int32"),
    bad("910b", "matmul", "bias is `float32`; it takes int32 or none", bias="float32 4864", scale="float32 4864"),
    bad("910b", "matmul", "output_dtype is `float32`; it takes float16, ", output_dtype="float32"),
    bad("310p", "quantize", "input is `bfloat16`; it takes float16", input="bfloat16 4 896"),
    bad("310p", "quantize", "scales is `float32`; it takes float16", scales="float32 896"),
    bad("310p", "quantize", "dtype is `quint4x2`; it takes qint8 or int8", dtype="quint4x2"),
    bad("310p", "norm", "input is `bfloat16`; it takes float16", input="bfloat16 4 896"),
    bad("310p", "norm", "gamma is `float32`; it takes float16", gamma="float32 896"),
    bad("310p", "swiglu", "input is `bfloat16`; it takes float16 or float32", input="bfloat16 4 9728"),
    bad("310p", "cast", "input is `float32`; it takes int8 or float16", input="float32 64 64"),
    bad("310p", "mm", "self is `float32`; it takes float16", self="float32 4 32", mat2="float32 32 896"),
    bad("310p", "mm", "its k is `40`; it takes a multiple of 16", self="float16 4 40", mat2="float16 40 896 nz"),
    bad("310p", "add norm", "x2 is `float16`; it takes float32", x2="float16 4 896"),
    bad("310p", "add norm", "a number|at least 8", x1="float32 4 4", x2="float32 4 4", gamma="float32 4"),
    bad("310p", "add", "other is `bfloat16`; it takes float16, ", other="bfloat16 4 8"),
    bad("310p", "to", "dtype is `bfloat16`; it takes float16, ", dtype="bfloat16"),
    bad("910b", "to", "dtype is `float64`; it takes float16, ", dtype="float64"),
    bad("310p", "incre", "antiquant_scale is `float32`", **INT8_KEYS | {"antiquant_scale": "float32 2 128"}),
    bad("310p", "incre", "antiquant_scale is `none`; it takes float16", **INT8_KEYS | {"antiquant_scale": None}),
    bad("310p", "paged", "key_cache is `int8`; it takes float16", key_cache="int8 9 8 128 16 nz"),
    bad("310p", "paged", "context_lens is `int64`; it takes int32", context_lens="int64 3"),
    bad("310b", "linear", "bias is `none`; it takes int32", bias=None),
    bad("310b", "linear", "outDataType is `int32`; it takes float16", outDataType="int32"),
    # sizes
    bad("310p", "matmul", "its k is `40`; it takes at most 65535 and a multiple of 32", x1="int8 4 40", x2="int8 40 4864 nz"),
    bad("310p", "matmul", "its n is `40`; it takes a multiple of 16", x2="int8 896 40 nz", scale="int64 40"),
    bad("310p", "matmul", "its k is `65536`; it takes at most 65535", x1="int8 4 65536", x2="int8 65536 4864 nz"),
    bad("310p", "matmul", r"`\[896, 151936\]`: its n is `151936`; it takes at most 65535", x2="int8 896 151936"),
    bad("910b", "matmul", "its n is `151936`; it takes at most 65535", x2="int8 896 151936 nz", scale="int64 151936"),
    bad("310p", "matmul", r"x2 is `\[864, 4864\]`; it takes \[k, n\] with k = 896", x2="int8 864 4864 nz"),
    bad("310p", "matmul", r"scale is `\[4863\]`; it takes \[n\] or \[1\] with n = 4864", scale="int64 4863"),
    bad("310p", "matmul", r"x1 is `\[0, 896\]`; it takes no empty side", x1="int8 0 896"),
    bad("310p", "matmul", r"x1 is `\[2, 2, 896\]`; it takes \[m, k\]", x1="int8 2 2 896"),
    bad("310p", "quantize", "axis is `-2`; it takes -1 or 1", axis=-2),
    bad("310p", "norm", "its width is `15`; it takes at least 16", input="float16 4 15", gamma="float16 15"),
    bad("310p", "norm", "its width is `7`; it takes at least 8", input="float32 4 7", gamma="float32 7"),
    bad("310p", "norm", r"gamma is `\[895\]`; it takes \[width\] with width = 896", gamma="float16 895"),
    bad("310p", "swiglu", "its gate_and_up is `9696`; it takes a multiple of 64", input="float16 4 9696"),
    bad("910b", "swiglu", "its gate_and_up is `9`; it takes a multiple of 2", input="float16 4 9"),
    bad("310p", "cast", "its width is `1`; it takes at least 2", input="float16 2048 1"),
    bad("310p", "cast", "acl_format is `3`; it takes 29 or 2", acl_format=3),
    bad(
        "310p", "incre", "block_size is `24`; it takes at least 16 and a multiple of 16",
        key="float16 99 24 128", value="float16 99 24 128", block_table="int32 3 99", block_size=24,
    ),
    bad(
        "310p", "incre", "block_size is `144`; it takes a multiple of 32",
        **INT8_KEYS | {"key": "int8 9 144 128", "value": "int8 9 144 128"}, block_size=144,
    ),
    bad(
        "910b", "incre", "its head_size is `40`; it takes at most 512 and a multiple of 16",
        **BY_HEADS | {"query": "float16 3 14 1 40", "key": "float16 9 2 128 40", "value": "float16 9 2 128 40"},
    ),
    bad(
        "310p", "incre", "its head_size is `144`; it takes at most 128 and a multiple of 16",
        query="float16 3 1 2016", key="float16 9 128 288", value="float16 9 128 288",
    ),
    bad("310p", "incre", r"key is `\[9, 2, 128, 64\]`; it takes .*", **BY_HEADS),
    bad(
        "310p", "incre", "num_heads/num_key_value_heads is `14/4`; it takes at most 32",
        key="float16 9 128 256", value="float16 9 128 256", num_key_value_heads=4,
    ),
    bad(
        "310p", "incre", "its sequences is `257`; it takes at most 256",
        query="float16 257 1 896", block_table="int32 257 4", actual_seq_lengths=[1] * 257,
    ),
    bad("310p", "incre", r"its table\*block_size is `65664`; it takes at most 65536", block_table="int32 3 513"),
    bad(
        "310p", "incre", r"actual_seq_lengths.largest is `513`; it takes at most table\*block_size, which is 512",
        actual_seq_lengths=[1, 513, 2],
    ),
    bad("310p", "incre", "its sequences is `3`; it takes at most actual_seq_lengths.count, ", actual_seq_lengths=[1, 2]),
    bad("310p", "incre", "actual_seq_lengths is `none`; it takes one here", actual_seq_lengths=None),
    bad(
        "310p", "prompt", "num_key_value_heads is `2`; it takes 0",
        key="float16 1 2 96 64", value="float16 1 2 96 64", num_key_value_heads=2,
    ),
    bad("310p", "prompt", r"actual_seq_lengths is `\[40\]`; it takes none", actual_seq_lengths=[40]),
    bad("310p", "prompt", "sparse_mode is `3`; it takes 0", sparse_mode=3),
    bad("310p", "prompt", "next_tokens is `1`; it takes 0 or 2147483647", next_tokens=1),
    bad(
        "310p", "cache", r"key_cache is `\[9, 7, 128, 16\]`; it takes \[blocks, num_kv_heads\*head_size/16, block_size, 16\]"
        " with num_kv_heads = 2, head_size = 64", key_cache="float16 9 7 128 16 nz",
    ),
    bad(
        "310p", "paged", r"its block_size\*head_size is `32768`; it takes at most 16384", query="float16 3 14 256",
        out="float16 3 14 256", key_cache="float16 9 32 128 16 nz", value_cache="float16 9 32 128 16 nz",
    ),
    bad(
        "310p", "paged", "its block_size is `24`; it takes a multiple of 16",
        key_cache="float16 9 8 24 16 nz", value_cache="float16 9 8 24 16 nz",
    ),
    bad("310p", "pieces", "its tokens is `40`; it takes at most mask_rows, which is 32", mask="float16 1 32 32 16 nz"),
    bad(
        "310p", "pieces", "its block_size is `256`; it takes at most 128",
        key_cache="float16 9 8 256 16 nz", value_cache="float16 9 8 256 16 nz",
    ),
    bad("310p", "chunk", r"mask is `\[512, 512\]`; it takes \[2048, 2048\]", mask="float16 512 512"),
    bad("310p", "chunk", "the format of mask is `NZ`; it takes ND", mask="float16 2048 2048 nz"),
    bad("310p", "chunk", "mask_type is `3`; it takes 5", mask_type=3),
    bad("310p", "chunk", "sequences is `3`; it takes at most tokens, ", query="float16 2 14 64", out="float16 2 14 64"),
    bad(
        "310p", "rotary", "its head_size is `40`; it takes 64 or 128",
        **{name: f"float16 1 3 {heads} 40" for name, heads in HEADS_OF_ROTARY.items()},
    ),
    bad("310p", "rotary", r"cos is `\[1, 4, 1, 64\]`; it takes \[1, tokens, 1, head_size\]", cos="float16 1 4 1 64"),
    bad("310p", "rotary", "rotary_mode is `interleave`; it takes half", rotary_mode="interleave"),
    bad(
        "910b", "fused", "its head_size is `64`; it takes 128 or 192",
        **RUN | {"query": "float16 40 14 64", "key": "float16 9 128 128", "value": "float16 9 128 128"},
    ),
    bad(
        "910b", "fused", "block_size is `144`; it takes at most 512 and a multiple of 32",
        **FUSED_INT8 | {"key": "int8 9 144 128", "value": "int8 9 144 128"}, block_size=144,
    ),
    # formats
    bad("310p", "paged", "the format of key_cache is `ND`; it takes NZ", key_cache="float16 9 8 128 16"),
    bad("910b", "paged", "the format of value_cache is `NZ`", **ND_CACHE | {"value_cache": "float16 9 128 2 64 nz"}),
    bad("310p", "norm", "the format of input is `NZ`; it takes ND", input="float16 4 896 nz"),
    # names
    bad("310p", "matmul", "y_scale is `float32`; it takes x1, .* and no other arguments", y_scale="float32 1 1"),
    bad("310p", "dynamic", "k is `912`.*32", input="float16 4 912"),
    bad("310p", "dynamic", "input", input="bfloat16 4 896"),
    bad("310p", "dynamic", "smooth_scales", smooth_scales="float16 896"),
    bad("310p", "matmul", r"group_sizes is `\[0, 0, 32\]`; it takes x1, ", group_sizes=(0, 0, 32)),
]  # fmt: skip


@pytest.mark.parametrize(("chip", "operator", "given_", "settings_", "words"), BAD)
def test_other_calls_are_refused_by_name(chip, operator, given_, settings_, words):
    with pytest.raises(DeviceError, match=f"^{chip_law(chip).soc} refuses {operator}: .*({words})"):
        check_call(chip_law(chip), operator, given_, **settings_)


@pytest.mark.parametrize(
    ("chip", "operator"),
    [
        ("310p", "npu_scatter_pa_kv_cache"), ("310p", "npu_fused_infer_attention_score"),
        ("310b", "npu_quant_matmul"), ("910b", "_npu_paged_attention_splitfuse_v2"),
    ],
)  # fmt: skip
def test_an_operator_that_a_chip_has_not_is_named(chip, operator):
    assert not supports(chip_law(chip), operator)
    with pytest.raises(DeviceError, match=f"^{chip_law(chip).soc} has no {operator}; it has [_A-Za-z]"):
        check_call(chip_law(chip), operator, {"input": operand("float16 4 896")})


def test_a_board_refuses_capture_by_name():
    for name in ("310p", "910b"):
        check_capture(chip_law(name))
    with pytest.raises(DeviceError, match="Ascend310B4 refuses to capture a graph"):
        check_capture(chip_law("310b"))


SENTENCE = re.compile(r"(\w+) refuses (\w+): (.+) is `([^`]*)`; it takes (.+)")


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_every_refusal_names_chip_operator_subject_value_and_limit(data):
    """Any change of a good call passes, or is refused in one sentence that says all of it."""
    chip, operator, given_, settings_ = data.draw(st.sampled_from([one for one in GOOD if one.values[2]])).values
    name = data.draw(st.sampled_from(sorted(name for name, one in given_.items() if one is not None)))
    changed = {**given_, name: data.draw(other(given_[name]))}
    try:
        check_call(chip_law(chip), operator, changed, **settings_)
    except DeviceError as error:
        found = SENTENCE.fullmatch(str(error))
        assert found, str(error)
        soc, of, subject, value, takes = found.groups()
        assert (soc, of) == (chip_law(chip).soc, operator) and takes
        assert value in values_of(subject, changed, {**OPERATORS[chip][operator].settings, **settings_}), str(error)


def values_of(subject, given_, settings_):
    """What a refusal may say that ``subject`` is: an operand's type, shape or format, a size of it, or a setting."""
    if " is `" in subject:
        shape, size = subject.split(": its ")
        name, shape = re.fullmatch(r"(\w+) is `(.*)`", shape).groups()
        assert shape == str(list(given_[name].shape)) and re.fullmatch(r"[a-z_*/]+", size)
        return re.findall(r"\d+", shape) if re.fullmatch(r"[a-z]+", size) else Anything(r"\d+(/\d+)?")
    if subject.startswith("the format of "):
        return ("NZ",) if given_[subject.removeprefix("the format of ")].nz else ("ND",)
    if re.fullmatch(r"\w+(\.\w+|[*/]\w+)", subject):
        assert subject.split(".")[0].split("/")[0] in settings_
        return Anything(r"\d+(/\d+)?")
    one, setting = given_.get(subject), settings_.get(subject)
    return (one.dtype, str(list(one.shape))) if one else ("none" if setting is None else str(setting),)


class Anything(str):
    """All texts of a pattern."""

    def __contains__(self, text):
        return re.fullmatch(str(self), text) is not None


def other(one):
    """Another type, another size, another rank, the other format, or nothing."""
    sizes = st.integers(0, max(1, len(one.shape)) - 1)
    resized = st.builds(lambda at, size: (*one.shape[:at], size, *one.shape[at + 1 :]), sizes, st.integers(0, 70000))
    return st.one_of(
        st.sampled_from(TYPES).map(lambda dtype: replace(one, dtype=dtype)),
        resized.map(lambda shape: replace(one, shape=shape)),
        st.just(replace(one, shape=(2, *one.shape))),
        st.just(replace(one, nz=not one.nz)),
        st.none(),
    )


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", ["int4", "bfloat16", "float64"])
def test_types_that_nothing_is_made_of_are_refused_everywhere(chip, dtype):
    for param in GOOD:
        where, operator, given_, settings_ = param.values
        if where == chip and not (dtype == "bfloat16" and chip == "910b"):
            for name, one in given_.items():
                if one is not None:
                    with pytest.raises(DeviceError, match=f"`{dtype}`"):
                        check_call(chip_law(chip), operator, {**given_, name: replace(one, dtype=dtype)}, **settings_)


# ---- products, by any route ----


def test_the_head_of_a_large_vocabulary_is_one_product():
    """What limits the last dimension is K where the weight is handed over transposed."""
    for name, law_ in CHIPS.items():
        for route in law_.routes:
            check_product(law_, route, 1, 896, 151936)
            check_product(law_, route, 32, 4864, 151936, bias=True)
            if route.operator == "npu_quant_matmul":
                with pytest.raises(DeviceError, match=f"{law_.soc} refuses npu_quant_matmul: .*its k is `65536`"):
                    check_product(law_, route, 1, 65536, 16)
        assert name in law_.soc.lower()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("rows", "columns", "outputs"), [(1, 33, 16), (1, 32, 17), (0, 32, 16)])
def test_sizes_that_the_cube_cannot_take_are_refused_by_every_route(chip, rows, columns, outputs):
    for route in chip_law(chip).routes:
        with pytest.raises(DeviceError, match=f"refuses {route.operator}: .*(`33`|`17`|no empty side)"):
            check_product(chip_law(chip), route, rows, columns, outputs)
        check_product(chip_law(chip), route, 1, *chip_law(chip).padded(columns, outputs))


# ---- attention of a model that lies on the card ----


@pytest.mark.parametrize(
    ("chip", "shape", "words"),
    [
        ("310p", (14, 2, 64), None),
        ("310p", (32, 8, 128), None),
        ("310p", (16, 16, 48), None),
        ("310p", (8, 4, 8), "head_size is `8`; it takes at most 256 and a multiple of 16"),
        ("310p", (3, 1, 40), "head_size is `40`; it takes .* a multiple of 16"),
        ("310p", (8, 1, 256), r"block_size\*head_size is `32768`; it takes at most 16384"),
        ("310p", (256, 8, 128), r"num_heads\*head_size is `32768`; it takes at most 16384"),
        ("310p", (14, 4, 64), "num_heads/num_kv_heads is `14/4`"),
        ("910b", (32, 8, 128), None),
        ("910b", (8, 4, 8), "head_size is `8`"),
        ("310b", (32, 8, 128), "Ascend310B4 has no _npu_paged_attention"),
    ],
)
def test_models_that_the_attention_of_a_chip_takes(chip, shape, words):
    said = attention_refusal(chip_law(chip), *shape)
    assert (said is None) if words is None else re.search(words, said) and chip_law(chip).soc in said


@pytest.mark.parametrize(
    ("chip", "shape", "words"),
    [
        ("310p", (14, 2, 64), None),
        ("910b", (32, 8, 128), None),
        ("310p", (16, 16, 48), "head_size is `48`; it takes at most 512 and a multiple of 32"),
        ("310p", (33, 1, 64), "num_heads/num_key_value_heads is `33`; it takes at most 32"),
        ("910b", (65, 1, 64), "num_heads/num_key_value_heads is `65`; it takes at most 64"),
        ("310b", (32, 8, 128), "Ascend310B4 has no npu_incre_flash_attention"),
    ],
)
def test_models_whose_keys_may_be_int8_on_the_card(chip, shape, words):
    said = int8_keys_refusal(chip_law(chip), *shape)
    assert (said is None) if words is None else re.search(words, said) and chip_law(chip).soc in said


# ---- the table itself ----


def test_every_limit_has_a_source_that_the_chips_explain():
    tags = set(re.findall(r"\[(\w+)\]", chips.__doc__))
    for operator in chain(*(operators.values() for operators in OPERATORS.values())):
        parts = [operator, *operator.forms, *operator.layouts]
        limits = list(chain(*(part.limits.values() for part in parts)))
        assert all(isinstance(limit, Limit) for limit in limits)
        sources = [one.source for one in (*limits, *operator.forms)]
        assert all(source and set(source.split()) <= tags for source in sources), sources


def test_what_a_form_or_a_limit_names_is_an_argument_or_a_size():
    for operator in chain(*(operators.values() for operators in OPERATORS.values())):
        arguments = {*operator.operands, *operator.settings}
        sizes = set(re.findall(r"[a-z_]+", " ".join(chain(*chain(*(one.shapes.values() for one in operator.layouts))))))
        lists = {f"{name}.{what}" for name in operator.settings for what in ("count", "largest")}
        for form in operator.forms:
            assert form.types.keys() <= arguments
        for layout in operator.layouts:
            assert {*layout.when, *layout.needs, *layout.nz} <= arguments
            terms = [*operator.limits, *layout.limits, *layout.within, *layout.within.values()]
            named = chain(*(re.split("[*/]", term) for term in terms))
            assert {name for name in named if not name.isdigit()} <= arguments | sizes | lists


def test_a_call_that_passed_is_not_looked_at_again(monkeypatch):
    """Lists among the settings, as lengths are, change nothing about that."""
    calls = [(operator, given_, settings_) for operator, given_, settings_ in map(call, ("matmul", "incre", "paged"))]
    for operator, given_, settings_ in calls:
        check_call(chip_law("310p"), operator, given_, **settings_)
    monkeypatch.setattr(Operator, "problem", lambda *_: pytest.fail("looked at again"))
    for operator, given_, settings_ in calls:
        check_call(chip_law("310p"), operator, dict(given_), **settings_)


def test_few_calls_are_remembered(monkeypatch):
    monkeypatch.setattr(law, "MOST_PASSED", 5)
    for rows in range(1, 40):
        check_call(chip_law("310p"), "npu_swiglu", {"input": operand(f"float16 {rows} 64")})
        assert len(law._passed) <= 5
    with pytest.raises(DeviceError, match="input is `bfloat16`"):
        check_call(chip_law("310p"), "npu_swiglu", {"input": operand("bfloat16 1 64")})


def test_types_of_torch_are_known_by_name():
    class Type:
        def __str__(self):
            return "torch.float16"

    operator, given_, settings_ = call("matmul", output_dtype=Type())
    check_call(chip_law("310p"), operator, given_, **settings_)
