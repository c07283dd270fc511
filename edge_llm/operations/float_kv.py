"""What a layer keeps of a sequence in float32."""

from __future__ import annotations

import numpy as np


class FloatKV:
    """Keys (after rotation) and values of one layer, float32 [kv heads, length, head_dim]; grows by doubling.

    Without ``kv_heads`` there are none, and nobody appends.
    """

    def __init__(self, kv_heads: int = 0, head_dim: int = 0) -> None:
        self.length = 0
        self.fixed: dict[str, np.ndarray] = {}
        """What operations keep in a fixed shape, by name; an array is never written again.  Missing: zeros."""
        self._data = np.empty((2, kv_heads, 0, head_dim), np.float32)

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add tokens [T, kv heads, head_dim]; returns all keys and values so far."""
        end = self.length + k.shape[0]
        if end > self._data.shape[2]:
            _, heads, room, dim = self._data.shape
            grown = np.empty((2, heads, max(end, 2 * room), dim), np.float32)
            grown[:, :, : self.length] = self._data[:, :, : self.length]
            self._data = grown
        self._data[0, :, self.length : end] = k.transpose(1, 0, 2)
        self._data[1, :, self.length : end] = v.transpose(1, 0, 2)
        self.length = end
        return self._data[0, :, :end], self._data[1, :, :end]

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""
        self.length = min(self.length, length)
