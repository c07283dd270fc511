"""The types of tensors in a GGUF file: their blocks, and how a block becomes float32, exactly as ggml has it.

A block holds so many columns of one row in so many bytes.  A decoder takes blocks as uint8 [blocks, bytes] and gives float32
[blocks, columns].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Decoder = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class BlockType:
    """One type of ggml; ``decode`` is None where its values cannot be had here."""

    name: str
    columns: int
    nbytes: int
    decode: Decoder | None = None


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte ``at`` of every block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _parts(codes: np.ndarray, group: int, bits: int) -> np.ndarray:
    """Codes of ``bits`` bits, as uint8 [blocks, columns]: ``group`` bytes hold their lowest parts first, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    spread = codes.reshape(len(codes), -1, 1, group) >> shifts
    return (spread & np.uint8((1 << bits) - 1)).reshape(len(codes), -1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """16 for the columns whose bit is set in the 32 bits at byte ``at``, else 0."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0) * (_parts(blocks[:, 2:], 16, 4).astype(np.float32) - np.float32(8))


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0) * _parts(blocks[:, 4:], 16, 4).astype(np.float32) + _halves(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    codes = _parts(blocks[:, 6:], 16, 4) | _fifth_bits(blocks, 2)
    return _halves(blocks, 0) * (codes.astype(np.float32) - np.float32(16))


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    codes = _parts(blocks[:, 8:], 16, 4) | _fifth_bits(blocks, 4)
    return _halves(blocks, 0) * codes.astype(np.float32) + _halves(blocks, 2)


def _by_group(codes: np.ndarray, groups: int) -> np.ndarray:
    return codes.astype(np.float32).reshape(len(codes), groups, -1)


def _flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    scales = blocks[:, :16]
    step = _halves(blocks, 80) * (scales & 15).astype(np.float32)
    least = _halves(blocks, 82) * (scales >> 4).astype(np.float32)
    codes = _by_group(_parts(blocks[:, 16:80], 32, 2), 16)
    return _flat(step[..., None] * codes - least[..., None])


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    packed = blocks[:, 96:108]
    scales = (_parts(packed[:, :8], 8, 4) | (_parts(packed[:, 8:], 4, 2) << np.uint8(4))).astype(np.float32) - np.float32(32)
    third = _parts(blocks[:, :32], 32, 1) << np.uint8(2)
    codes = _by_group(_parts(blocks[:, 32:96], 32, 2) | third, 16) - np.float32(4)
    return _flat((_halves(blocks, 108) * scales)[..., None] * codes)


def _scales_and_least(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of Q4_K and Q5_K: step and minimum of every 32 columns, float32 [blocks, 8, 1]."""
    first, second, third = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    least = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    step = _halves(blocks, 0) * scales.astype(np.float32)
    return step[..., None], (_halves(blocks, 2) * least.astype(np.float32))[..., None]


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    step, least = _scales_and_least(blocks)
    return _flat(step * _by_group(_parts(blocks[:, 16:], 32, 4), 8) - least)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    step, least = _scales_and_least(blocks)
    codes = _parts(blocks[:, 48:], 32, 4) | (_parts(blocks[:, 16:48], 32, 1) << np.uint8(4))
    return _flat(step * _by_group(codes, 8) - least)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    step = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    codes = _parts(blocks[:, :128], 64, 4) | (_parts(blocks[:, 128:192], 32, 2) << np.uint8(4))
    return _flat(step[..., None] * (_by_group(codes, 16) - np.float32(32)))


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the values of the 4-bit floats."""


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0) * _IQ4[_parts(blocks[:, 2:], 16, 4)]


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    high = blocks[:, 2:4].astype(np.uint16)
    upper = ((high[:, :1] | (high[:, 1:] << 8)) >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = _parts(blocks[:, 4:8], 1, 4) | (upper << 4)
    step = _halves(blocks, 0) * (scales.astype(np.float32) - np.float32(32))
    return _flat(step[..., None] * _by_group(_IQ4[_parts(blocks[:, 8:], 16, 4)], 8))


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    exponent = blocks[:, :1].astype(np.int32)
    return np.ldexp(np.float32(1), exponent - 128) * _E2M1[_parts(blocks[:, 1:], 16, 4)]


TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, _f32),
    1: BlockType("F16", 1, 2, _f16),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k),
    11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18, _iq4_nl),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136, _iq4_xs),
    24: BlockType("I8", 1, 1),
    25: BlockType("I16", 1, 2),
    26: BlockType("I32", 1, 4),
    27: BlockType("I64", 1, 8),
    28: BlockType("F64", 1, 8),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2, _bf16),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17, _mxfp4),
    40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18),
    42: BlockType("Q2_0", 64, 18),
}
"""By ggml's number."""
REMOVED = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip
"""Types that ggml itself reads no more."""


def decoded_names() -> str:
    """The types that are read, for a message."""
    return ", ".join(kind.name for kind in TYPES.values() if kind.decode)


def decode(kind: BlockType, raw: np.ndarray) -> np.ndarray:
    """The float32 values, flat, of whole blocks in ``raw`` (uint8, contiguous); ``kind`` has a decoder."""
    assert kind.decode
    with np.errstate(over="ignore", invalid="ignore"):  # a scale that is no number shows in the values
        return np.ascontiguousarray(kind.decode(raw.reshape(-1, kind.nbytes)), np.float32).reshape(-1)
