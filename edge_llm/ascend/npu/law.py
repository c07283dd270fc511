"""The law of each chip: which operators it has, and what each of them takes; every call passes `check_call` before its launch.

One table serves the emulated device and the real one.  A self-test that asks a card whether the law is too strict calls the
operators past it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edge_llm.ascend.npu import attention_limits as attention
from edge_llm.ascend.npu import limits
from edge_llm.ascend.npu.chips import ChipLaw, MatmulRoute
from edge_llm.ascend.npu.rules import Operand, Operator
from edge_llm.errors import DeviceError

__all__ = [
    "CHUNK_ATTENTION_V2", "OPERATORS", "Operand", "attention_refusal", "check_call", "check_capture", "check_product",
    "chunk_attention", "int8_keys_refusal", "supports", "swiglu_refusal",
]  # fmt: skip

OPERATORS: dict[str, dict[str, Operator]] = {
    "310p": {
        "npu_quant_matmul": limits.QUANT_MATMUL_310P,
        "npu_trans_quant_param": limits.TRANS_QUANT_PARAM,
        "npu_quantize": limits.QUANTIZE_310P,
        "npu_dynamic_quant": limits.DYNAMIC_QUANT_310P,
        "npu_format_cast": limits.FORMAT_CAST,
        "npu_rms_norm": limits.RMS_NORM_310P,
        "npu_add_rms_norm": limits.ADD_RMS_NORM_310P,
        "npu_swiglu": limits.SWIGLU_310P,
        "npu_incre_flash_attention": attention.INCRE_FLASH_310P,
        "npu_prompt_flash_attention": attention.PROMPT_FLASH_310P,
        "_npu_reshape_and_cache": attention.RESHAPE_AND_CACHE_310P,
        "_npu_paged_attention": attention.PAGED_ATTENTION_310P,
        "_npu_paged_attention_splitfuse": attention.SPLITFUSE_310P,
        "_npu_paged_attention_splitfuse_v2": attention.SPLITFUSE_V2_310P,
        "npu_apply_rotary_pos_emb": attention.ROTARY_310P,
        "aclblasS8gemm": limits.S8GEMM,
        **limits.ATEN_310P,
    },
    "310b": {  # [src] torch_npu does not list the chip: none of its operators is counted on
        "aclblasS8gemm": limits.S8GEMM,
        "LinearOperation": limits.ATB_LINEAR_310B,
    },
    "910b": {
        "npu_quant_matmul": limits.QUANT_MATMUL_910B,
        "npu_trans_quant_param": limits.TRANS_QUANT_PARAM,
        "npu_quantize": limits.QUANTIZE_910B,
        "npu_dynamic_quant": limits.DYNAMIC_QUANT_910B,
        "npu_format_cast": limits.FORMAT_CAST,
        "npu_rms_norm": limits.RMS_NORM_910B,
        "npu_add_rms_norm": limits.ADD_RMS_NORM_910B,
        "npu_swiglu": limits.SWIGLU_910B,
        "npu_incre_flash_attention": attention.INCRE_FLASH_910B,
        "npu_prompt_flash_attention": attention.PROMPT_FLASH_910B,
        "npu_fused_infer_attention_score": attention.FUSED_INFER_910B,
        "npu_scatter_pa_kv_cache": attention.SCATTER_910B,
        "_npu_reshape_and_cache": attention.RESHAPE_AND_CACHE_910B,
        "_npu_paged_attention": attention.PAGED_ATTENTION_910B,
        "_npu_paged_attention_splitfuse": attention.SPLITFUSE_910B,
        "npu_apply_rotary_pos_emb": attention.ROTARY_910B,
        **limits.ATEN_910B,
    },
}
"""By chip and by the operator's own name."""
CHUNK_ATTENTION, CHUNK_ATTENTION_V2 = "_npu_paged_attention_splitfuse", "_npu_paged_attention_splitfuse_v2"
MOST_PASSED = 4096
"""Calls that are remembered; a step of a model has a few hundred, and its shapes change with its rows."""
_passed: set[tuple[object, ...]] = set()


def supports(law: ChipLaw, operator: str) -> bool:
    """Whether the chip has ``operator``."""
    return operator in OPERATORS[law.name]


def chunk_attention(law: ChipLaw) -> str:
    """The operator for attention over chunks of prompts: under one causal mask for all where the chip has that."""
    return CHUNK_ATTENTION_V2 if supports(law, CHUNK_ATTENTION_V2) else CHUNK_ATTENTION


def check_call(law: ChipLaw, operator: str, operands: Mapping[str, Operand | None], **settings: object) -> None:
    """Raises `DeviceError` for a call that the chip would refuse; names are those of the operator's schema.

    A call that passed before is not looked at again.
    """
    key = _key(law, operator, operands, settings)
    try:
        if key in _passed:
            return
    except TypeError:  # a list among the settings
        key = _key(law, operator, operands, {name: _hashable(value) for name, value in settings.items()})
        if key in _passed:
            return
    known = OPERATORS[law.name].get(operator)
    if known is None:
        raise DeviceError(f"{law.soc} has no {operator}; it has {', '.join(sorted(OPERATORS[law.name]))}")
    problem = known.problem(operands, settings)
    if problem is not None:
        raise DeviceError(f"{law.soc} refuses {operator}: {problem}")
    if len(_passed) >= MOST_PASSED:
        _passed.clear()
    _passed.add(key)


def _key(
    law: ChipLaw, operator: str, operands: Mapping[str, Operand | None], settings: Mapping[str, object]
) -> tuple[object, ...]:
    """The call in plain tuples, which are compared much faster than operands are."""
    tensors = [(name, one.dtype, one.shape, one.nz) if one is not None else None for name, one in operands.items()]
    return law.name, operator, *tensors, *settings.items()


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def check_product(law: ChipLaw, route: MatmulRoute, rows: int, columns: int, outputs: int, bias: bool = False) -> None:
    """Raises `DeviceError` for an INT8 product x [rows, columns] @ W [columns, outputs] that ``route`` cannot make."""
    x, weight, vector = (rows, columns), (columns, outputs), (outputs,)
    if route.operator == "aclblasS8gemm":
        given = {"matrixA": Operand("int8", x), "matrixB": Operand("int8", weight, nz=True)}
        check_call(law, route.operator, given | {"matrixC": Operand(route.output, (rows, outputs))})
    elif route.operator == "LinearOperation":
        given = {"x": Operand("int8", x), "weight": Operand("int8", weight, nz=True), "bias": Operand("int32", vector)}
        check_call(law, route.operator, given | {"deqScale": Operand(route.scale, vector)}, outDataType=route.output)
    else:
        given = {"x1": Operand("int8", x), "x2": Operand("int8", weight, nz=True), "scale": Operand(route.scale, vector)}
        added = {"bias": Operand("int32", vector)} if bias and not route.exact else {}
        check_call(law, route.operator, given | added, output_dtype=route.output)


def check_capture(law: ChipLaw) -> None:
    """Raises `DeviceError` where steps cannot be captured and replayed."""
    if not law.captures:
        raise DeviceError(f"{law.soc} refuses to capture a graph: torch_npu captures on 310P and 910B, not on `{law.name}`")


def attention_refusal(law: ChipLaw, heads: int, kv_heads: int, head_dim: int) -> str | None:
    """Why a model with such heads cannot lie on the card as a whole, in the chip's words; None if it can."""
    try:
        for operator, operands, settings in _attention_calls(law, heads, kv_heads, head_dim):
            check_call(law, operator, operands, **settings)
    except DeviceError as error:
        return str(error)
    return None


def swiglu_refusal(law: ChipLaw, width: int) -> str | None:
    """Why a SwiGLU of ``width`` channels cannot be on the card, in the chip's words; None if it can."""
    try:
        check_call(law, "npu_swiglu", {"input": Operand("float16", (1, 2 * width))}, dim=-1)
    except DeviceError as error:
        return str(error)
    return None


def int8_keys_refusal(law: ChipLaw, heads: int, kv_heads: int, head_dim: int) -> str | None:
    """Why such heads cannot have INT8 keys on the card, in the chip's words; None if they can."""
    cache = Operand("int8", (1, law.page_tokens, kv_heads * head_dim))
    operands = {
        "query": Operand("float16", (1, 1, heads * head_dim)), "key": cache, "value": cache,
        "antiquant_scale": Operand("float16", (2, kv_heads * head_dim)), "block_table": Operand("int32", (1, 1)),
    }  # fmt: skip
    try:
        check_call(
            law, "npu_incre_flash_attention", operands, actual_seq_lengths=(1,), scale_value=head_dim**-0.5,
            num_heads=heads, num_key_value_heads=kv_heads, input_layout="BSH", block_size=law.page_tokens,
        )  # fmt: skip
    except DeviceError as error:
        return str(error)
    return None


def most_int8_rows(law: ChipLaw) -> int:
    """Rows that attention over INT8 keys takes in one call."""
    most = OPERATORS[law.name]["npu_incre_flash_attention"].limits["sequences"].most
    assert most is not None
    return int(most)


Call = tuple[str, dict[str, Operand | None], dict[str, object]]


def _attention_calls(law: ChipLaw, heads: int, kv_heads: int, head_dim: int) -> Iterator[Call]:
    """What one sequence calls: attention over blocks of ``law.page_tokens`` in a step and in a prompt, and the new keys."""
    query, new = Operand("float16", (1, heads, head_dim)), Operand("float16", (1, kv_heads, head_dim))
    one, table = Operand("int32", (1,)), Operand("int32", (1, 1))
    cache = Operand("float16", law.cache_shape(1, kv_heads, head_dim), law.keys_are_nz)
    caches = {"key_cache": cache, "value_cache": cache}
    step: dict[str, Operand | None] = {"query": query, **caches, "block_table": table, "context_lens": one, "out": query}
    settings: dict[str, object] = {"num_kv_heads": kv_heads, "num_heads": heads, "scale_value": head_dim**-0.5}
    yield "_npu_paged_attention", step, settings
    chunk = chunk_attention(law)
    mask = Operand("float16", (2048, 2048) if chunk == CHUNK_ATTENTION_V2 else (1, law.page_tokens))
    yield chunk, {**step, "seq_len": one, "mask": mask}, settings
    yield "_npu_reshape_and_cache", {"key": new, "value": new, **caches, "slot_indices": one}, {}
