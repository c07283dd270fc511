"""Probes of what is float in a layer: norm, SwiGLU, rotation, attention over keys in blocks, and keys that leave and return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.npu import emulated_ops
from edge_llm.ascend.npu.calls import MASKED, causal_mask
from edge_llm.ascend.selftest.ground import Figures, Ground, compared, equal, near, together
from edge_llm.ascend.selftest.products import alone_and_among

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-6
FLOAT32_BOUND = 1e-5
FLOAT16_BOUND = 2e-3
ATTENTION_BOUND = 1e-2
"""Of the largest value: a chip may sum probabilities in float16."""
BLOCKS = 8
LONG_CONTEXTS = (2048, 2049, 2177)
"""Tokens of a sequence: one mask of 2,048 columns serves longer ones too, which early releases of ATB did wrongly [src]."""


@dataclass(frozen=True)
class Heads:
    """A shape of attention."""

    heads: int
    kv_heads: int
    size: int

    @property
    def scale(self) -> float:
        return float(self.size**-0.5)

    def cache_shape(self, ground: Ground, blocks: int) -> tuple[int, ...]:
        return ground.law.cache_shape(blocks, self.kv_heads, self.size)


SHAPES = (Heads(14, 2, 64), Heads(32, 8, 128))
"""Of Qwen2.5-0.5B and Llama-3-8B."""


def rms_norm(ground: Ground) -> Figures:
    """In float32, at the width of a model and of a head; large and tiny rows."""
    cases = {}
    for rows, columns in ((1, 896), (32, 896), (256, 64)):
        x, gain = ground.float32(rows, columns), ground.float32(columns)
        x[0] *= 1e4
        x[-1] *= 1e-3 if rows > 1 else 1.0
        expected, _ = emulated_ops.npu_rms_norm(x, gain, EPS)
        found = ground.result(lambda x, gain: ground.calls.rms_norm(x, gain, EPS), x, gain)
        cases[f"[{rows}, {columns}]"] = near(found / expected.abs().amax(1, keepdim=True), _unit_rows(expected), FLOAT32_BOUND)
    return together(cases)


def add_rms_norm(ground: Ground) -> Figures:
    """A sum and its norm in one call, in float32: both have the values of two calls."""
    cases = {}
    for rows, columns in ((1, 896), (32, 896)):
        x, more, gain = ground.float32(rows, columns), ground.float32(rows, columns), ground.float32(columns)
        added = x + more
        normed, _ = emulated_ops.npu_rms_norm(added, gain, EPS)

        def work(x: Any, more: Any, gain: Any) -> tuple[Any, Any]:
            found = ground.operator("npu", "npu_add_rms_norm")(x1=x, x2=more, gamma=gain, epsilon=EPS)
            return found[0], found[2]

        found = ground.result(work, x, more, gain)
        cases[f"norm of [{rows}, {columns}]"] = near(found[0], normed, FLOAT32_BOUND)
        cases[f"sum of [{rows}, {columns}]"] = equal(found[1], added)
    return together(cases)


def _unit_rows(x: Tensor) -> Tensor:
    return x / x.abs().amax(1, keepdim=True)


def swiglu(ground: Ground) -> Figures:
    """In float16, gate first."""
    cases = {}
    for rows, columns in ((1, 4864), (32, 4864)):
        x = ground.float16(rows, 2 * columns) * 4
        found = ground.result(ground.calls.swiglu, x)
        cases[f"[{rows}, {2 * columns}]"] = near(found, emulated_ops.npu_swiglu(x), FLOAT16_BOUND)
    return together(cases)


def swiglu_float32(ground: Ground) -> Figures:
    """In float32: no cast behind it."""
    cases = {}
    for rows, columns in ((1, 4864), (32, 4864)):
        x = ground.float32(rows, 2 * columns) * 4
        found = ground.result(lambda x: ground.operator("npu", "npu_swiglu")(input=x, dim=-1), x)
        cases[f"[{rows}, {2 * columns}]"] = near(found, emulated_ops.npu_swiglu(x), FLOAT32_BOUND)
    return together(cases)


def rotate(ground: Ground) -> Figures:
    """Queries and keys by halves of a head, at any position; heads of 32 channels turn without an operator of their own."""
    cases = {}
    for shape in (*SHAPES, Heads(4, 2, 32)):
        cos, sin = angles(ground, shape.size, ground.torch.tensor([0, 1, 77, 511, 2047]))
        query, key = (ground.float16(len(cos), count, shape.size) for count in (shape.heads, shape.kv_heads))
        found = ground.result(ground.calls.rotate, query, key, cos, sin)
        turned = emulated_ops.npu_apply_rotary_pos_emb(query[None], key[None], cos[None, :, None], sin[None, :, None])
        for name, one, expected in zip(("query", "key"), found, turned, strict=True):
            cases[f"{name}, heads of {shape.size}"] = near(one, expected[0], FLOAT16_BOUND)
    return together(cases)


def angles(ground: Ground, size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin float16 [positions, size], those of half a head twice."""
    half = positions[:, None] * 1e4 ** -(ground.torch.arange(size // 2) * 2 / size)
    both = ground.torch.cat((half, half), 1)
    return both.cos().half(), both.sin().half()


@dataclass(frozen=True)
class Cached:
    """Keys and values of some sequences, on the host as on the card; sequences have blocks in no order."""

    shape: Heads
    lengths: tuple[int, ...]
    keys: Tensor
    values: Tensor
    table: Tensor


def cached(ground: Ground, shape: Heads, lengths: tuple[int, ...]) -> Cached:
    """Random keys; table int32 [sequences, 2]."""
    keys, values = (ground.float16(*shape.cache_shape(ground, BLOCKS)) for _ in range(2))
    table = ground.int32(5, 0, 2, 7, 1, 3, 6, 4).view(4, 2)[: len(lengths)]
    return Cached(shape, lengths, keys, values, table)


def lengths_of(ground: Ground) -> tuple[int, ...]:
    """Odd ones, one token, a full block and one more."""
    tokens = ground.law.page_tokens
    return (1, 37, tokens, tokens + 1)


def caches(ground: Ground, keys: Any, values: Any) -> tuple[Any, Any]:
    """Both on the card in the form that its attention reads; inside of work."""
    return (ground.calls.to_nz(keys), ground.calls.to_nz(values)) if ground.law.keys_are_nz else (keys, values)


def write_keys(ground: Ground) -> Figures:
    """New keys and values at slots of several blocks, read back."""
    cases = {}
    for shape in SHAPES:
        held = cached(ground, shape, lengths_of(ground))
        tokens = ground.law.page_tokens
        slots = ground.int32(0, 1, 3 * tokens - 1, 3 * tokens, 7 * tokens + 5)
        key, value = (ground.float16(len(slots), shape.kv_heads, shape.size) for _ in range(2))

        def work(key: Any, value: Any, keys: Any, values: Any, slots: Any) -> tuple[Any, Any]:
            keys, values = caches(ground, keys, values)
            ground.calls.write_keys(key, value, keys, values, slots)
            return (ground.calls.to_nd(keys), ground.calls.to_nd(values)) if ground.law.keys_are_nz else (keys, values)

        found = ground.result(work, key, value, held.keys, held.values, slots)
        emulated_ops.npu_reshape_and_cache(key, value, held.keys, held.values, slots)
        cases[f"keys, heads of {shape.size}"] = equal(found[0], held.keys)
        cases[f"values, heads of {shape.size}"] = equal(found[1], held.values)
    return together(cases)


def paged_attention(ground: Ground) -> Figures:
    """One row of each of several sequences over its blocks."""
    cases = {}
    for shape in SHAPES:
        held = cached(ground, shape, lengths_of(ground))
        query = ground.float16(len(held.lengths), shape.heads, shape.size)
        expected = ground.torch.empty_like(query)
        emulated_ops.npu_paged_attention(
            query, held.keys, held.values, shape.kv_heads, shape.heads, shape.scale, held.table, ground.int32(*held.lengths),
            expected,
        )  # fmt: skip
        cases[f"{shape.heads} heads of {shape.size}"] = near(attended(ground, held, query), expected, ATTENTION_BOUND)
    return together(cases)


def attended(ground: Ground, held: Cached, query: Tensor, rows: list[int] | None = None) -> Tensor:
    """Attention of row i of ``query`` over sequence i, or ``rows[i]``, by the operator for single rows."""
    lengths, table = ground.int32(*held.lengths), held.table
    if rows is not None:
        lengths, table = lengths[rows], table[rows]
    lengths = ground.lengths(lengths)

    def work(query: Any, keys: Any, values: Any, table: Any) -> Any:
        return ground.calls.attend(query, *caches(ground, keys, values), held.shape.kv_heads, table, lengths)

    return ground.result(work, query, held.keys, held.values, table)


def chunk_attention(ground: Ground) -> Figures:
    """Several rows of several sequences at once."""
    cases = {}
    for shape in SHAPES:
        cases[f"{shape.heads} heads of {shape.size}"] = _judged_chunk(ground, *_chunk(ground, shape))
    return together(cases)


def _judged_chunk(ground: Ground, held: Cached, counts: Tensor, query: Tensor) -> Figures:
    expected, shape = ground.torch.empty_like(query), held.shape
    emulated_ops.npu_paged_attention_splitfuse_v2(
        query, held.keys, held.values, held.table, ground.int32(*held.lengths), query, counts, shape.kv_heads, shape.heads,
        shape.scale, out=expected,
    )  # fmt: skip
    return near(_attended_chunk(ground, held, counts, query), expected, ATTENTION_BOUND)


def long_chunk_attention(ground: Ground) -> Figures:
    """Some rows at the end of a sequence that is longer than the mask, beside one that is not."""
    shape, cases = SHAPES[0], {}
    tokens = ground.law.page_tokens
    for length in LONG_CONTEXTS:
        blocks = -(-length // tokens)
        order = ground.torch.arange(2 * blocks, dtype=ground.torch.int32).flip(0).view(2, blocks)
        keys, values = (ground.float16(*shape.cache_shape(ground, 2 * blocks)) for _ in range(2))
        held, counts = Cached(shape, (37, length), keys, values, order), ground.int32(5, 33)
        cases[f"{length} tokens"] = _judged_chunk(ground, held, counts, ground.float16(38, shape.heads, shape.size))
    return together(cases)


def chunk_limits(ground: Ground) -> Figures:
    """Attention over chunks at the edge of what ATB says of a 310P: 128 heads of 128, and 32 sequences."""
    many = Heads(128, 8, 128)
    wide = cached(ground, many, lengths_of(ground))
    row = ground.int32(1, 2, 3, 4)
    cases = {"128 heads of 128": _judged_chunk(ground, wide, row, ground.float16(10, many.heads, many.size))}
    shape, count = SHAPES[0], 32
    held = cached(ground, shape, (1,))
    lengths = tuple(1 + 5 * sequence for sequence in range(count))
    several = Cached(shape, lengths, held.keys, held.values, held.table.expand(count, 2).contiguous())
    ones = ground.int32(*[1] * count)
    cases["32 sequences"] = _judged_chunk(ground, several, ones, ground.float16(count, shape.heads, shape.size))
    return together(cases)


def _chunk(ground: Ground, shape: Heads) -> tuple[Cached, Tensor, Tensor]:
    """Keys of four sequences, how many rows each has, and the rows."""
    held = cached(ground, shape, lengths_of(ground))
    counts = ground.int32(*(min(length, most) for length, most in zip(held.lengths, (1, 16, 9, 33), strict=True)))
    return held, counts, ground.float16(int(counts.sum()), shape.heads, shape.size)


def _attended_chunk(ground: Ground, held: Cached, counts: Tensor, query: Tensor) -> Tensor:
    shape, mask = held.shape, mask_of(ground, held, counts)
    lengths = ground.lengths(ground.int32(*held.lengths))

    def work(query: Any, keys: Any, values: Any, table: Any, mask: Any) -> Any:
        formed = caches(ground, keys, values)
        return ground.calls.attend_chunk(query, *formed, shape.kv_heads, table, lengths, mask, counts)

    return ground.result(work, query, held.keys, held.values, held.table, mask)


def mask_of(ground: Ground, held: Cached, counts: Tensor) -> Tensor:
    """The fixed causal mask, or where the chip's operator takes no such, that of every row."""
    torch = ground.torch
    if ground.calls.has_one_mask:
        return causal_mask()
    spans = zip(counts.tolist(), held.lengths, strict=True)
    positions = torch.cat([torch.arange(length - count, length) for count, length in spans])
    return (torch.arange(max(held.lengths)) > positions[:, None]).half() * MASKED


def chunk_equals_rows(ground: Ground) -> Figures:
    """Whether the last row of each sequence in a chunk has the bits that it has in a step: so reused keys are the same keys."""
    shape = SHAPES[0]
    held, counts, query = _chunk(ground, shape)
    last = counts.cumsum(0) - 1
    in_chunk = _attended_chunk(ground, held, counts, query)[last]
    alone = attended(ground, held, query[last].contiguous())
    return _said(compared(in_chunk, alone), "values of a row differ between a chunk and a step")


def rows_of_layers(ground: Ground) -> Figures:
    """Whether a row's norm, SwiGLU or attention depends on the rows beside it."""
    gain, shape = ground.float32(896), SHAPES[0]
    held = cached(ground, shape, lengths_of(ground))
    query = ground.float16(4, shape.heads, shape.size)
    among = attended(ground, held, query)
    alone = [attended(ground, held, query[row : row + 1], [row]) for row in range(4)]
    rows = ground.size(256, 16)
    cases = {
        "rms_norm": alone_and_among(
            ground, lambda x, gain: ground.calls.rms_norm(x, gain, EPS), ground.float32(rows, 896), gain
        ),
        "swiglu": alone_and_among(ground, ground.calls.swiglu, ground.float16(rows, 9728)),
        "attention": _said(compared(ground.torch.cat(alone), among), "values depend on the sequences beside it"),
    }
    return together(cases)


def _said(figures: Figures, what: str) -> Figures:
    return figures | ({"error": f"{figures['differing']} {what}"} if figures["differing"] else {})


def keys_out_and_back(ground: Ground) -> Figures:
    """Blocks of keys to the host and back, through rows where they lie in fractals, as pages leave a card and return."""
    shape = SHAPES[0]
    held = cached(ground, shape, lengths_of(ground))
    fractals, other = ground.law.keys_are_nz, ground.float16(*shape.cache_shape(ground, 2))
    chosen = ground.int32(6, 1)

    def work(keys: Any, values: Any, chosen: Any, new: Any) -> tuple[Any, Any, Any]:
        cache, _ = caches(ground, keys, values)
        rows = ground.calls.to_nd(cache) if fractals else cache
        out = rows.index_select(0, chosen)
        rows.index_copy_(0, chosen.to(ground.torch.int64), new)
        if fractals:
            cache.copy_(ground.calls.to_nz(rows))
        return out, rows, ground.calls.to_nd(cache) if fractals else cache

    out, rows, cache = ground.result(work, held.keys, held.values, chosen, other)
    expected = held.keys.clone()
    expected[chosen.long()] = other
    cases = {"out": equal(out, held.keys[chosen.long()]), "rows": equal(rows, expected), "cache": equal(cache, expected)}
    return together(cases)
