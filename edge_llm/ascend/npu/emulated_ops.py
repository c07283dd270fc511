"""The card's operators on the CPU, slow and obvious: what each is documented to compute, rounded where its result is.

Sums are made in float64, so a row's result does not depend on the other rows.  `register` makes them callable as
`torch.ops.npu.*` where torch_npu is absent; tests run the same functions behind the real torch_npu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.npu.chips import FRACTAL
from edge_llm.ascend.npu.schemas import SCHEMAS

if TYPE_CHECKING:
    from torch import Tensor

FLOAT16_MAX = 65504.0
SCALE_BITS = 0xFFFFE000
"""Of a float32, what a packed scale keeps: 19 bits."""
PACKED = 1 << 46
"""Set in every packed scale."""


def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    **_: Any,
) -> Tensor:
    """float16 of (int32 sum + int32 bias) * scale, saturated; with scales of rows, of sum * row's * scale + float32 bias."""
    import torch

    sums = torch._int_mm(x1.contiguous(), x2)
    if pertoken_scale is not None:
        wide = sums.float() * pertoken_scale[:, None] * scale
        return (wide if bias is None else wide + bias).clamp_(-FLOAT16_MAX, FLOAT16_MAX).half()
    if bias is not None:
        sums = sums + bias
    return (sums.float() * _unpacked(scale)).clamp_(-FLOAT16_MAX, FLOAT16_MAX).half()


def _unpacked(scale: Tensor) -> Tensor:
    import torch

    if scale.dtype == torch.float32:
        return scale
    return (scale & 0xFFFFFFFF).to(torch.int32).view(torch.float32)


def npu_trans_quant_param(scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0) -> Tensor:
    """The bits of float32 [N], cut to 19, in int64 [N]."""
    import torch

    return (scale.contiguous().view(torch.int32).long() & SCALE_BITS) | PACKED


def npu_quantize(
    input: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: int, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """int8, saturated: rint(input / scales + zero_points), or * scales without ``div_mode``."""
    import torch

    scaled = input / scales if div_mode else input * scales
    if zero_points is not None:
        scaled = scaled + zero_points
    return scaled.round().clamp(-128, 127).to(torch.int8)


def npu_dynamic_quant(input: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """int8 rint(input / scale) and the scale of each row, its largest value / 127: float32."""
    x = input.float()
    scale = x.abs().amax(-1) / 127
    rounded = (x / scale[..., None].clamp_min(1e-30)).round().clamp(-128, 127)
    return rounded.char(), scale


def npu_format_cast(input: Tensor, acl_format: int, **_: Any) -> Tensor:
    """A copy: the logical shape of an array does not depend on its format."""
    return input.clone()


def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """input / sqrt(mean(input^2) + epsilon) * gamma, and the reciprocal root float32."""
    x = input.double()
    rstd = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (x * rstd * gamma.double()).to(input.dtype), rstd.float()


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of x1 + x2, its reciprocal root float32, and the sum."""
    total = x1 + x2
    normed, rstd = npu_rms_norm(total, gamma, epsilon)
    return normed, rstd, total


def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """silu(first half) * second half."""
    import torch

    gate, up = input.double().chunk(2, dim)
    return _saturated(torch.nn.functional.silu(gate) * up, input)


def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """The first half of every head turns against the second, by the angles of its row."""
    import torch

    turned = []
    for rows in (query, key):
        first, second = rows.double().chunk(2, -1)
        turned.append((rows.double() * cos.double() + torch.cat((-second, first), -1) * sin.double()).to(rows.dtype))
    return turned[0], turned[1]


def npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    """Rows [T, KV, D] into the places of their slots."""
    for rows, cache in ((key, key_cache), (value, value_cache)):
        tokens = cache.shape[2] if _in_fractals(cache) else cache.shape[1]
        block, place = slot_indices.long() // tokens, slot_indices.long() % tokens
        if _in_fractals(cache):
            cache[block, :, place] = rows.reshape(len(rows), -1, FRACTAL)
        else:
            cache[block, place] = rows


def _in_fractals(cache: Tensor) -> bool:
    """Whether a cache is [blocks, KV * D / 16, tokens, 16] and not [blocks, tokens, KV, D], KV < 64."""
    return cache.shape[3] == FRACTAL and cache.shape[2] >= 64


def _read(cache: Tensor, table: Tensor, most: int, kv_heads: int) -> Tensor:
    """The first ``most`` tokens of the blocks of every row of ``table``: float64 [rows, KV, most, D]."""
    tokens = cache.shape[2] if _in_fractals(cache) else cache.shape[1]
    found = cache[table[:, : -(-most // tokens)].long()]
    if _in_fractals(cache):
        found = found.transpose(2, 3)
    rows, blocks = found.shape[:2]
    return found.reshape(rows, blocks * tokens, kv_heads, -1)[:, :most].double().transpose(1, 2)


def npu_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    workspace: Tensor | None = None,
) -> None:
    """Each row of query [T, H, D] over the first tokens of its own blocks."""
    most = int(context_lens.max())
    k, v = (_read(cache, block_table, most, num_kv_heads) for cache in (key_cache, value_cache))
    out.copy_(_attention(query[:, None], k, v, context_lens.tolist(), scale_value)[:, 0])


def npu_paged_attention_splitfuse_v2(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    *,
    mask_type: int | None = 5,
    out: Tensor,
) -> None:
    """The rows of several sequences, one after the other; the last of each sees all of its tokens."""
    for row, rows, length in _spans(seq_len, context_lens):
        k, v = (_read(cache, block_table[row : row + 1], length, num_kv_heads) for cache in (key_cache, value_cache))
        out[rows] = _attention(query[None, rows], k, v, [length], scale_value)[0]


def npu_paged_attention_splitfuse(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    """The same under a mask [rows, tokens] of their own."""
    for row, rows, length in _spans(seq_len, context_lens):
        k, v = (_read(cache, block_table[row : row + 1], length, num_kv_heads) for cache in (key_cache, value_cache))
        lowered = mask[rows, :length].double()
        out[rows] = _attention(query[None, rows], k, v, [length + len(lowered) - 1], scale_value, lowered)[0]


def npu_incre_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    actual_seq_lengths: Sequence[int],
    antiquant_scale: Tensor,
    block_table: Tensor,
    num_heads: int = 1,
    scale_value: float = 1.0,
    num_key_value_heads: int = 0,
    **_: Any,
) -> Tensor:
    """Each row of query [rows, 1, H * D] over int8 keys [blocks, tokens, KV * D], in units of the scales [2, KV * D]."""
    lengths = [int(length) for length in actual_seq_lengths]
    caches = (_read(cache[..., None], block_table, max(lengths), num_key_value_heads) for cache in (key, value))
    scales = antiquant_scale.double().view(2, num_key_value_heads, 1, -1)
    k, v = (read * scale for read, scale in zip(caches, scales, strict=True))
    rows = query.view(len(query), 1, num_heads, -1)
    return _attention(rows, k, v, lengths, scale_value).view(query.shape)


def _spans(query_lengths: Tensor, lengths: Tensor) -> Iterator[tuple[int, slice, int]]:
    start = 0
    for row, (count, length) in enumerate(zip(query_lengths.tolist(), lengths.tolist(), strict=True)):
        yield row, slice(start, start + count), length
        start += count


def _attention(
    query: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], scale: float, mask: Tensor | float = 0.0
) -> Tensor:
    """Causal attention of the last rows of sequences of ``lengths`` tokens; ``mask`` [rows, longest] is added to the scores.

    query float16 [sequences, rows, H, D] over keys and values float64 [sequences, KV, longest, D]: float16 as the query.
    """
    import torch

    sequences, rows, heads, size = query.shape
    kv_heads, longest = k.shape[1:3]
    q = query.double().view(sequences, rows, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4)
    scores = scale * (q @ k[:, :, None].transpose(-1, -2)) + mask
    seen = torch.tensor(lengths)[:, None] - rows + 1 + torch.arange(rows)
    later = torch.arange(longest) >= seen[..., None]
    weights = scores.masked_fill_(later[:, None, None], float("-inf")).softmax(-1)
    return _saturated((weights @ v[:, :, None]).permute(0, 3, 1, 2, 4).reshape(query.shape), query)


def _saturated(values: Tensor, like: Tensor) -> Tensor:
    import torch

    return values.clamp(-FLOAT16_MAX, FLOAT16_MAX).half() if like.dtype == torch.float16 else values.to(like.dtype)


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "npu::npu_quant_matmul": npu_quant_matmul,
    "npu::npu_trans_quant_param": npu_trans_quant_param,
    "npu::npu_quantize": npu_quantize,
    "npu::npu_format_cast": npu_format_cast,
    "npu::npu_rms_norm": npu_rms_norm,
    "npu::npu_add_rms_norm": npu_add_rms_norm,
    "npu::npu_dynamic_quant": npu_dynamic_quant,
    "npu::npu_swiglu": npu_swiglu,
    "npu::npu_incre_flash_attention": npu_incre_flash_attention,
    "npu::npu_apply_rotary_pos_emb": npu_apply_rotary_pos_emb,
    "atb::_npu_reshape_and_cache": npu_reshape_and_cache,
    "atb::_npu_paged_attention": npu_paged_attention,
    "atb::_npu_paged_attention_splitfuse": npu_paged_attention_splitfuse,
    "atb::_npu_paged_attention_splitfuse_v2": npu_paged_attention_splitfuse_v2,
}

_LIBRARIES: list[Any] = []
"""What torch forgets when it is collected."""


def register() -> None:
    """Define the operators for CPU tensors, unless torch_npu is loaded, which has its own; once per process."""
    import torch

    if _LIBRARIES:
        return
    for name, schema in SCHEMAS.items():
        space, _, operator = name.partition("::")
        library = torch.library.Library(space, "FRAGMENT")
        if not hasattr(getattr(torch.ops, space), operator):
            library.define(schema)
        library.impl(operator, IMPLEMENTATIONS[name], "CPU")
        _LIBRARIES.append(library)
