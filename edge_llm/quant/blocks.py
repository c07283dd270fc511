"""Floats in blocks of Q8_0, rounded as ggml does, and the scales of blocks times a number."""

from __future__ import annotations

import numpy as np

from edge_llm.errors import InvalidModel
from edge_llm.kernels.blocks import GROUP, KINDS, BlockKind

Q8_0 = KINDS["q8_0"]
_SCALES = {"q6_k": (208,), "q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2)}
"""Where the float16 numbers of a block lie; in every other kind that has any, at its beginning."""


def to_q8_0(values: np.ndarray, name: str) -> np.ndarray:
    """float32 [N, K] -> the bytes of its blocks, uint8 [N, K / 32 * 34].

    The largest magnitude of a block becomes 127, halves are rounded away from zero.  A block whose scale has no inverse in
    float32 is 0.  Raises `InvalidModel`, with ``name``, where a scale is not finite in float16.
    """
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, GROUP)
    scale = np.abs(groups).max(axis=1) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
        stored = scale.astype("<f2")
    inverse[~np.isfinite(inverse)] = 0
    if not np.isfinite(scale).all():
        raise InvalidModel(f"`{name}` holds a value that is no number; download the file again")
    if not np.isfinite(stored).all():
        raise InvalidModel(f"`{name}` holds a value that blocks of Q8_0 cannot hold; import it with --weights int8")
    exact = groups * inverse[:, None]
    whole = np.trunc(exact)
    codes = (whole + np.copysign(np.abs(exact - whole) >= 0.5, exact)).astype(np.int8)
    blocks = np.concatenate([stored.view(np.uint8).reshape(-1, 2), codes.view(np.uint8)], axis=1)
    return blocks.reshape(len(values), -1)


def can_scale(kind: BlockKind) -> bool:
    """Whether the scales of ``kind`` can be multiplied by any number: MXFP4 has powers of two."""
    return kind.name != "mxfp4"


def scaled(raw: np.ndarray, kind: BlockKind, factor: float) -> np.ndarray:
    """The bytes ``raw`` of blocks with their scales times ``factor``, each rounded to float16 once more."""
    blocks = raw.reshape(-1, kind.nbytes).copy()
    for at in _SCALES.get(kind.name, (0,)):
        before = np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)
        blocks[:, at : at + 2] = (before * np.float32(factor)).astype("<f2").view(np.uint8)
    return blocks.reshape(raw.shape)
