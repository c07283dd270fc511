"""Weights in the blocks of GGUF files, and their products with rows that have one INT8 scale for 32 columns.

Layouts of files are those of ggml (`ggml-common.h`); those of panels are in `kernels.blocks`.  Tables are those of
`kernels.blocks`; whatever is done with them is written out here a second time.

A product starts from 0 and takes the scales' spans of columns in ascending order, one fma each with the exact integer sum of a
span; behind each 32 columns that have a minimum, one more fma takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edge_llm.kernels.activation import Activation
from edge_llm.kernels.block_kinds import GROUP, BlockKind
from edge_llm.kernels.reference.numeric import fma, into
from edge_llm.kernels.reference.pointwise import gated, rms_norm
from edge_llm.kernels.types import F32, I8, I32, I64, TILE_CHANNELS, TILE_DEPTH, U8

_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)
_MIDDLE = {"q4_0": 8, "q5_0": 16, "q6_k": 32, "q8_0": 128}
"""What the value of a code is below the code."""
_LEAST = 1e-30
"""The largest magnitude that 32 activations are taken to have where theirs is smaller: its inverse is finite."""


class Blocks(NamedTuple):
    """What rows of blocks say: a row of codes, and their scales as ggml multiplies them out, all exact."""

    codes: U8  # [N, K]
    scale: F32  # [N, K / width]
    least: F32  # [N, K / 32], subtracted; 0 where the kind has none


def values_of_codes(codes: U8, kind: BlockKind) -> I32:
    """What codes stand for."""
    table = {"iq4_nl": _NL, "iq4_xs": _NL, "mxfp4": _E2M1}.get(kind.name)
    return table[codes] if table is not None else codes.astype(np.int32) - _MIDDLE.get(kind.name, 0)


# ---- files ----------------------------------------------------------------------------------------------------


def of_file(raw: U8, kind: BlockKind, n: int, k: int) -> Blocks:
    """The bytes of ``n`` rows in a file."""
    blocks = raw.reshape(n * (k // kind.columns), kind.nbytes)
    codes = _file_codes(blocks, kind).reshape(n, k)
    scale, least = _multiplied_out(kind, *_file_scales(blocks, kind))
    return Blocks(codes, scale.reshape(n, k // kind.width), least.reshape(n, k // GROUP))


def _spread(packed: U8, group: int, bits: int) -> U8:
    """Codes of ``bits`` bits: ``group`` bytes hold their lowest parts first, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    count, width = packed.shape
    found = packed.reshape(count, width // group, 1, group) >> shifts & np.uint8((1 << bits) - 1)
    return found.reshape(count, width * 8 // bits)


def _fifth(blocks: U8, at: int) -> U8:
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _file_codes(blocks: U8, kind: BlockKind) -> U8:
    match kind.name:
        case "q4_0" | "iq4_nl":
            return _spread(blocks[:, 2:], 16, 4)
        case "q4_1":
            return _spread(blocks[:, 4:], 16, 4)
        case "mxfp4":
            return _spread(blocks[:, 1:], 16, 4)
        case "q5_0":
            return _spread(blocks[:, 6:], 16, 4) | _fifth(blocks, 2)
        case "q5_1":
            return _spread(blocks[:, 8:], 16, 4) | _fifth(blocks, 4)
        case "q8_0":
            return blocks[:, 2:] ^ np.uint8(128)
        case "q4_k":
            return _spread(blocks[:, 16:], 32, 4)
        case "q5_k":
            return _spread(blocks[:, 48:], 32, 4) | _spread(blocks[:, 16:48], 32, 1) << np.uint8(4)
        case "q6_k":
            return _spread(blocks[:, :128], 64, 4) | _spread(blocks[:, 128:192], 32, 2) << np.uint8(4)
        case _:  # iq4_xs
            return _spread(blocks[:, 8:], 16, 4)


def _file_scales(blocks: U8, kind: BlockKind) -> tuple[U8, U8, U8, U8]:
    """Bytes of the scale and the minimum of a block, and its fine scales and minimums; arrays without columns: none."""
    none = blocks[:, :0]
    match kind.name:
        case "q4_0" | "q5_0" | "q8_0" | "iq4_nl":
            return blocks[:, :2], none, none, none
        case "q4_1" | "q5_1":
            return blocks[:, :2], blocks[:, 2:4], none, none
        case "mxfp4":
            return blocks[:, :1], none, none, none
        case "q4_k" | "q5_k":
            first, second, third = (blocks[:, at : at + 4] for at in (4, 8, 12))
            fine = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
            return blocks[:, :2], blocks[:, 2:4], fine, np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
        case "q6_k":
            return blocks[:, 208:], none, blocks[:, 192:208], none
        case _:  # iq4_xs: steps of 6 bits, 32 above their value
            upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
            steps = _spread(blocks[:, 4:8], 1, 4) | upper.astype(np.uint8) << np.uint8(4)
            return blocks[:, :2], none, steps - np.uint8(32), none


def _half(raw: U8) -> F32:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _multiplied_out(kind: BlockKind, scale: U8, least: U8, fine: U8, fine_least: U8) -> tuple[F32, F32]:
    """scale [B, 1 or more] and least [B, columns / 32] of every block; the products are exact in float32."""
    count = len(scale)
    if kind.name == "mxfp4":  # half of 2^(e - 127), and 0 for the smallest exponent
        whole = (scale.astype(np.uint32) << np.uint32(23)).view(np.float32) * np.float32(0.5)
    else:
        whole = _half(scale)
    with np.errstate(invalid="ignore"):
        if fine.shape[1]:
            signed = fine if kind.name in ("q4_k", "q5_k") else fine.view(np.int8)
            whole = whole * signed.astype(np.float32)
        if not least.shape[1]:
            return whole, np.zeros((count, kind.columns // GROUP), np.float32)
        low = _half(least)
        return whole, low * fine_least.astype(np.float32) if fine_least.shape[1] else -low


# ---- panels ---------------------------------------------------------------------------------------------------


def lay_out(raw: U8, kind: BlockKind, n: int, k: int) -> U8:
    """The bytes of ``n`` rows in a file -> panels [ceil(N/16), panel_bytes(K)], as `kernels.blocks.lay_out` says."""
    panels, blocks = -(-n // TILE_CHANNELS), k // kind.columns

    def padded(part: U8) -> U8:
        """[N blocks, bytes] -> [P, 16, blocks, bytes]; rows beyond N are 0."""
        whole = np.zeros((panels * TILE_CHANNELS, blocks, part.shape[1]), np.uint8)
        whole[:n] = part.reshape(n, blocks, part.shape[1])
        return whole.reshape(panels, TILE_CHANNELS, blocks, part.shape[1])

    rows = raw.reshape(n * blocks, kind.nbytes)
    codes = padded(_file_codes(rows, kind)).reshape(panels, TILE_CHANNELS, k)
    heads = [_interleaved(padded(part)) for part in _file_scales(rows, kind)]
    found = np.zeros((panels, kind.panel_bytes(k)), np.uint8)
    found[:, : blocks * kind.head] = np.concatenate(heads, axis=2).reshape(panels, blocks * kind.head)
    found[:, kind.panel_bytes(k) - k // GROUP * kind.group_bytes :] = _group_bytes(codes, kind)
    return found


def _interleaved(part: U8) -> U8:
    """[P, 16, blocks, bytes] -> [P, blocks, 16 bytes]: what has one or two bytes by rows, each of more bytes by rows."""
    panels, rows, blocks, each = part.shape
    order = (0, 2, 1, 3) if each <= 2 else (0, 2, 3, 1)
    return part.transpose(order).reshape(panels, blocks, rows * each)


def _group_bytes(codes: U8, kind: BlockKind) -> U8:
    """Codes [P, 16, K] -> their bytes [P, bytes of K columns]."""
    panels, _, k = codes.shape
    groups = k // GROUP
    tiles = codes.reshape(panels, TILE_CHANNELS, groups, 8, TILE_DEPTH).transpose(0, 2, 3, 1, 4)  # [P, G, 8, 16, 4]
    if kind.bits == 8:
        return tiles.reshape(panels, groups * kind.group_bytes)
    low, above = tiles & np.uint8(15), tiles >> np.uint8(4)
    parts = [low[:, :, 0::2] | low[:, :, 1::2] << np.uint8(4)]  # [P, G, 4, 16, 4]
    if kind.bits == 5:
        parts.append(_or(above << np.arange(8, dtype=np.uint8)[:, None, None], 2)[:, :, None])
    if kind.bits == 6:
        halves = above.reshape(panels, groups, 2, 4, TILE_CHANNELS, TILE_DEPTH)
        parts.append(_or(halves << np.arange(0, 8, 2, dtype=np.uint8)[:, None, None], 3))
    return np.concatenate(parts, axis=2).reshape(panels, groups * kind.group_bytes)


def _or(values: U8, axis: int) -> U8:
    return np.asarray(np.bitwise_or.reduce(values, axis=axis))


def of_panels(panels: U8, kind: BlockKind, n: int, k: int) -> Blocks:
    """What the first ``n`` rows of ``panels`` hold, read byte by byte."""
    count, groups = len(panels), k // GROUP
    codes = np.zeros((count, TILE_CHANNELS, k), np.uint8)
    first = kind.panel_bytes(k) - groups * kind.group_bytes
    for column in range(k):
        at = panels[:, first + column // GROUP * kind.group_bytes :]
        codes[:, :, column] = _code(at, kind, column % GROUP)
    scale, least = _panel_scales(panels, kind, k)
    return Blocks(codes.reshape(-1, k)[:n], scale[:n], least[:n])


def _code(group: U8, kind: BlockKind, column: int) -> U8:
    """Column ``column`` of a group that begins at ``group`` [P, bytes]: [P, 16]."""
    tile, j = divmod(column, TILE_DEPTH)

    def bytes_at(place: int) -> U8:
        return group[:, place + j :][:, : TILE_CHANNELS * TILE_DEPTH : TILE_DEPTH]

    size = TILE_CHANNELS * TILE_DEPTH
    if kind.bits == 8:
        return bytes_at(tile * size)
    code = bytes_at(tile // 2 * size) >> np.uint8(4 * (tile % 2)) & np.uint8(15)
    if kind.bits == 5:
        code = code | (bytes_at(4 * size) >> np.uint8(tile) & np.uint8(1)) << np.uint8(4)
    if kind.bits == 6:
        code = code | (bytes_at((4 + tile // 4) * size) >> np.uint8(2 * (tile % 4)) & np.uint8(3)) << np.uint8(4)
    return code


def _panel_scales(panels: U8, kind: BlockKind, k: int) -> tuple[F32, F32]:
    """scale [16 P, K / width] and least [16 P, K / 32].

    The head of 16 rows and one block: the scale of each row, float16 (MXFP4: its exponent, a byte); where the kind has
    minimums, that of each row, float16; where it has fine scales, one byte of each row after the other, then their minimums.
    """
    count, blocks = len(panels), k // kind.columns
    heads = panels[:, : blocks * kind.head].reshape(count, blocks, kind.head)
    own = 1 if kind.name == "mxfp4" else 2
    spans = {"q4_k": 8, "q5_k": 8, "q6_k": 16, "iq4_xs": 8}.get(kind.name, 0)
    low, fine_low = (2 if kind.has_least else 0), (spans if kind.has_least else 0)
    sizes = [TILE_CHANNELS * size for size in (own, low, spans, fine_low)]
    scale, least, fine, fine_least = np.split(heads, np.cumsum(sizes[:-1]), axis=2)
    rows = count * TILE_CHANNELS

    def by_rows(part: U8, each: int) -> U8:
        return part.reshape(count, blocks, TILE_CHANNELS, each).transpose(0, 2, 1, 3).reshape(rows * blocks, each)

    def fine_by_rows(part: U8, each: int) -> U8:
        return part.reshape(count, blocks, each, TILE_CHANNELS).transpose(0, 3, 1, 2).reshape(rows * blocks, each)

    whole, lowest = _multiplied_out(
        kind, by_rows(scale, own), by_rows(least, low), fine_by_rows(fine, spans), fine_by_rows(fine_least, fine_low)
    )
    return whole.reshape(rows, k // kind.width), lowest.reshape(rows, k // GROUP)


def rows_of(panels: U8, kind: BlockKind, k: int, rows: I64) -> F32:
    """The values [M, K] of ``rows``: scale times value, less the minimum, each rounded to float32 as ggml has it."""
    found = of_panels(panels, kind, len(panels) * TILE_CHANNELS, k)
    values = values_of_codes(found.codes, kind).astype(np.float32) * np.repeat(found.scale, kind.width, axis=1)
    if kind.has_least:
        values = values - np.repeat(found.least, GROUP, axis=1)
    return np.asarray(values[rows])


# ---- products -------------------------------------------------------------------------------------------------


def quantize(x: F32) -> tuple[I8, F32]:
    """x[M, K] -> q[M, K], scale[M, K/32]: the largest magnitude of 32 columns becomes 127."""
    groups = x.reshape(len(x), -1, GROUP)
    largest = np.maximum(np.abs(groups).max(axis=2), np.float32(_LEAST))
    inverse = np.float32(127) / largest
    q = np.rint(np.clip(groups * inverse[..., None], -127, 127)).astype(np.int8)
    return q.reshape(x.shape), largest / np.float32(127)


def product(x: F32, panels: U8, kind: BlockKind, n: int) -> F32:
    """x[M, K] times the weight [N, K] in ``panels`` -> [M, N]."""
    k = x.shape[1]
    found = of_panels(panels, kind, n, k)
    weight = values_of_codes(found.codes, kind)
    q, scale = quantize(x)
    y = np.zeros((len(x), n), np.float32)
    for group in range(k // GROUP):
        columns = slice(GROUP * group, GROUP * (group + 1))
        for span in range(columns.start // kind.width, columns.stop // kind.width):
            some = slice(kind.width * span, kind.width * (span + 1))
            dot = q[:, some].astype(np.int32) @ weight[:, some].T
            y = fma(dot.astype(np.float32), found.scale[:, span] * scale[:, group, None], y)
        if kind.has_least:
            total = q[:, columns].sum(axis=1, dtype=np.int32).astype(np.float32)
            y = fma(-found.least[:, group], (total * scale[:, group])[:, None], y)
    return y


def block_linear(
    x: F32,
    parts: Sequence[tuple[U8, BlockKind, int]],
    *,
    bias: F32 | None = None,
    add: F32 | None = None,
    gain: F32 | None = None,
    eps: float = 0.0,
    gate: Activation | None = None,
    out: F32 | None = None,
) -> F32:
    """`kernels.blocks.block_linear` of the ``parts`` of a `BlockLinear`."""
    if gate is not None and add is not None:
        raise ValueError("`gate` takes no `add`")
    rows = x if gain is None else rms_norm(x, gain, eps)
    if not np.isfinite(rows).all():
        raise ValueError("non-finite activation")
    y = np.concatenate([product(rows, *part) for part in parts], axis=1)
    if bias is not None:
        y = y + bias
    if gate is not None:
        return into(out, gated(y, gate))
    return into(out, y if add is None else y + add)
