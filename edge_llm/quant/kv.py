"""What INT8 pages give back of keys and values, without the pages."""

from __future__ import annotations

import numpy as np

LIMIT = np.float32(127)
_LARGEST_SCALE = np.float32(65504)


def rounded(x: np.ndarray) -> np.ndarray:
    """Keys or values float32 [..., head_dim] after INT8 with one float16 scale per token and head.

    The same numbers as `kernels.reference.append_kv` stores and `paged_attention` reads.
    """
    step = np.minimum(np.abs(x).max(axis=-1, keepdims=True) / LIMIT, _LARGEST_SCALE).astype(np.float16).astype(np.float32)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    return np.asarray(np.rint(np.clip(x * inverse, -LIMIT, LIMIT)) * step)
