"""The one module that calls operators of the card: always by keyword, and never past the chip's law.

Shapes: T rows, K input and N output channels, H heads of D channels, blocks of 128 tokens.  torch is imported by whoever makes
the tensors, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.npu.chips import FRACTAL, ChipLaw
from edge_llm.ascend.npu.law import CHUNK_ATTENTION_V2, Operand, check_call, chunk_attention, supports
from edge_llm.ascend.npu.limits import MOST_PACKED, ND, NZ

if TYPE_CHECKING:
    from torch import Tensor

MASK_SIZE = 2048
"""Rows and columns of the causal mask that chunked attention takes, whatever the length of the sequence."""
MASKED = -10000.0
"""[vllm] What a masked score is lowered by."""
ROTARY_SIZES = (64, 128)
"""Head sizes that the rotation's operator takes; for others it is made of additions and products."""
_INT8 = 1  # the number of torch.int8, which npu_quantize takes instead of the type
_CAUSAL_MASK = 5  # mask_type of a causal mask that is the same for all chunks


class Calls:
    """Operators of a chip with ``law``.  Every method raises `DeviceError` for what the chip does not take."""

    def __init__(self, law: ChipLaw) -> None:
        import torch

        self.law = law
        self._torch = torch
        self._chunk_attention = chunk_attention(law)
        self.has_one_mask = self._chunk_attention == CHUNK_ATTENTION_V2
        """Whether attention over chunks takes one causal mask for all, and not one for each."""
        self.copies_by_index = supports(law, "index_copy")
        """Whether rows can be put where an array of the card says."""
        self._npu, self._atb = torch.ops.npu, torch.ops.atb

    def quant_matmul(
        self, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, row_scales: Tensor | None = None
    ) -> Tensor:
        """float16 [T, N] = (x int8 [T, K] @ weight int8 [K, N] + bias int32 [N]) * scale, as `pack_scale` packed it.

        With ``row_scales`` float32 [T], where the law `multiplies_rows`: x @ weight * row_scales * scale + bias, these float32.
        """
        operands = {
            "x1": _operand(x), "x2": _operand(weight, nz=self.law.weights_are_nz), "scale": _operand(scale),
            "bias": _maybe(bias), "pertoken_scale": _maybe(row_scales),
        }  # fmt: skip
        self._check("npu_quant_matmul", operands, output_dtype="float16")
        return self._npu.npu_quant_matmul(
            x1=x, x2=weight, scale=scale, bias=bias, pertoken_scale=row_scales, output_dtype=self._torch.float16
        )

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """float16 [T, N] of float16 [T, K] and [K, N], which lies as `to_multiply` laid it."""
        self._check("mm", {"self": _operand(x), "mat2": _operand(weight, nz=self._multiplies_nz(weight))})
        return x.mm(weight)

    def to_multiply(self, weight: Tensor) -> Tensor:
        """float16 [K, N] as `multiply` wants it: in fractals where the chip multiplies those alone, and would turn rows at
        every call."""
        return self.to_nz(weight) if self._multiplies_nz(weight) else weight

    def _multiplies_nz(self, weight: Tensor) -> bool:
        return self.law.weights_are_nz and all(size % FRACTAL == 0 for size in weight.shape)

    def pack_scale(self, scale: Tensor) -> Tensor:
        """float32 [N] of 19 bits in the form that the chip wants for a float16 result: packed in int64 [N].

        As it is where N is too large for that; then every product packs it.
        """
        if not self.law.weights_are_nz and len(scale) > MOST_PACKED:
            return scale
        self._check("npu_trans_quant_param", {"scale": _operand(scale)})
        return self._npu.npu_trans_quant_param(scale=scale)

    def quantize(self, x: Tensor, reciprocal: Tensor, offset: Tensor | None = None) -> Tensor:
        """int8 [T, K] = round(x [T, K] * reciprocal [K] + offset [K]), saturated; all float32, or all float16."""
        operands = {"input": _operand(x), "scales": _operand(reciprocal), "zero_points": _maybe(offset)}
        self._check("npu_quantize", operands, dtype="int8", axis=-1, div_mode=False)
        return self._npu.npu_quantize(
            input=x, scales=reciprocal, zero_points=offset, dtype=_INT8, axis=-1, div_mode=False
        )

    def quantize_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """int8 [T, K] of float16 [T, K], and what its rows are multiples of: float32 [T], their largest value / 127."""
        self._check("npu_dynamic_quant", {"input": _operand(x)})
        return self._npu.npu_dynamic_quant(input=x)

    def to_nz(self, array: Tensor) -> Tensor:
        """``array`` in fractals."""
        self._check("npu_format_cast", {"input": _operand(array)}, acl_format=NZ)
        return self._npu.npu_format_cast(input=array, acl_format=NZ)

    def to_nd(self, array: Tensor) -> Tensor:
        """``array``, which lies in fractals, in rows."""
        self._check("npu_format_cast", {"input": _operand(array, nz=True)}, acl_format=ND)
        return self._npu.npu_format_cast(input=array, acl_format=ND)

    def to_matmul(self, weight: Tensor) -> Tensor:
        """int8 [N, K] as `quant_matmul` takes it: [K, N]."""
        if self.law.weights_are_nz:
            return self.to_nz(weight).transpose(0, 1)
        return weight.transpose(0, 1).contiguous()

    def rms_norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """[T, K] of x [T, K] and gain [K]: all float32, or all float16."""
        self._check("npu_rms_norm", {"input": _operand(x), "gamma": _operand(gain)})
        return self._npu.npu_rms_norm(input=x, gamma=gain, epsilon=eps)[0]

    def add_rms_norm(self, x: Tensor, added: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + added, and its norm: float32 [T, K] of float32 [T, K] and float32 [K]."""
        self._check("npu_add_rms_norm", {"x1": _operand(x), "x2": _operand(added), "gamma": _operand(gain)})
        normed, _, total = self._npu.npu_add_rms_norm(x1=x, x2=added, gamma=gain, epsilon=eps)
        return total, normed

    def swiglu(self, x: Tensor) -> Tensor:
        """float16 [T, K] of gate | up float16 [T, 2 K]."""
        self._check("npu_swiglu", {"input": _operand(x)}, dim=-1)
        return self._npu.npu_swiglu(input=x, dim=-1)

    def rotate(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """query [T, H, D] and key [T, KV, D] float16, turned by the angles of their rows, float16 [T, D]."""
        if query.shape[2] not in ROTARY_SIZES:
            return _turned(query, cos, sin), _turned(key, cos, sin)
        cos, sin = cos[None, :, None], sin[None, :, None]
        operands = {"query": query[None], "key": key[None], "cos": cos, "sin": sin}
        self._check("npu_apply_rotary_pos_emb", _operands(operands), layout="BSND", rotary_mode="half")
        query, key = self._npu.npu_apply_rotary_pos_emb(**operands, layout="BSND", rotary_mode="half")
        return query[0], key[0]

    def write_keys(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Put key and value float16 [T, KV, D] into the caches at ``slots`` int32 [T]: block * 128 + place."""
        nz = self.law.keys_are_nz
        self._check(
            "_npu_reshape_and_cache",
            {
                "key": _operand(key), "value": _operand(value), "key_cache": _operand(keys, nz=nz),
                "value_cache": _operand(values, nz=nz), "slot_indices": _operand(slots),
            },
        )  # fmt: skip
        self._atb._npu_reshape_and_cache(key=key, value=value, key_cache=keys, value_cache=values, slot_indices=slots)

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        kv_heads: int,
        block_table: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """Every row of query float16 [T, H, D] over the first ``lengths`` int32 [T] tokens of its blocks int32 [T, blocks]."""
        return self._attend(
            "_npu_paged_attention", kv_heads, query=query, key_cache=keys, value_cache=values, block_table=block_table,
            context_lens=lengths,
        )  # fmt: skip

    def attend_chunk(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        kv_heads: int,
        block_table: Tensor,
        lengths: Tensor,
        mask: Tensor,
        query_lengths: Tensor,
    ) -> Tensor:
        """The rows of several sequences one after the other, ``query_lengths`` int32 [S] of each, which the host holds.

        The last row of a sequence sees ``lengths`` int32 [S] tokens, each row before it one less.  The mask float16 is
        [`MASK_SIZE`, `MASK_SIZE`] where `has_one_mask`, else [T, longest length].
        """
        return self._attend(
            self._chunk_attention, kv_heads, query=query, key_cache=keys, value_cache=values, block_table=block_table,
            context_lens=lengths, mask=mask, seq_len=query_lengths,
        )  # fmt: skip

    def attend_int8(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        kv_heads: int,
        block_table: Tensor,
        lengths: Sequence[int],
        key_scales: Tensor,
    ) -> Tensor:
        """As `attend`, over int8 caches [blocks, 128, KV * D]; float16 scales [2, KV * D] of keys and values.

        The host holds the lengths, so a graph cannot be recorded of it.
        """
        rows, heads, size = query.shape
        operands = {"query": query.view(rows, 1, heads * size), "key": keys, "value": values}
        operands |= {"block_table": block_table, "antiquant_scale": key_scales}
        settings = {
            "num_heads": heads, "num_key_value_heads": kv_heads, "scale_value": size**-0.5, "input_layout": "BSH",
            "block_size": keys.shape[1],
        }  # fmt: skip
        self._check(
            "npu_incre_flash_attention", _operands(operands), actual_seq_lengths=tuple(lengths), **settings
        )
        found = self._npu.npu_incre_flash_attention(**operands, actual_seq_lengths=list(lengths), **settings)
        return found.view(rows, heads, size)

    def _attend(self, operator: str, kv_heads: int, **tensors: Tensor) -> Tensor:
        """Attention of ATB, by the names of its operators: float16 as the query."""
        _, heads, size = tensors["query"].shape
        tensors["out"] = out = self._torch.empty_like(tensors["query"])
        settings = {"num_kv_heads": kv_heads, "num_heads": heads, "scale_value": size**-0.5}
        settings |= {"mask_type": _CAUSAL_MASK} if operator == CHUNK_ATTENTION_V2 else {}
        operands = _operands(tensors)
        operands |= {name: _operand(tensors[name], nz=self.law.keys_are_nz) for name in ("key_cache", "value_cache")}
        self._check(operator, operands, **settings)
        getattr(self._atb, operator)(**tensors, **settings)
        return out

    def _check(self, operator: str, operands: dict[str, Operand | None], **settings: Any) -> None:
        check_call(self.law, operator, operands, **settings)


def causal_mask() -> Tensor:
    """The one mask of `Calls.attend_chunk`, float16 [`MASK_SIZE`, `MASK_SIZE`] in host memory."""
    import torch

    return torch.ones((MASK_SIZE, MASK_SIZE), dtype=torch.float16).triu_(1) * MASKED


def _turned(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads of a size that the chip's operator does not take, in float32."""
    import torch

    first, second = rows.float().chunk(2, -1)
    other = torch.cat((-second, first), -1)
    return (rows.float() * cos[:, None].float() + other * sin[:, None].float()).half()


def _operand(tensor: Tensor, nz: bool = False) -> Operand:
    return Operand(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), nz)


def _maybe(tensor: Tensor | None) -> Operand | None:
    return None if tensor is None else _operand(tensor)


def _operands(tensors: dict[str, Tensor]) -> dict[str, Operand | None]:
    return {name: _operand(tensor) for name, tensor in tensors.items()}
