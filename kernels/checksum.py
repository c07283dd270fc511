"""CRC-32C, the checksum of stored tensors: the CPU's own instruction where it has one, tables elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_llm.kernels import _native
from edge_llm.kernels._native import ThreadPool


def crc32c(data: bytes | bytearray | memoryview | npt.NDArray[Any], pool: ThreadPool | None = None) -> int:
    """CRC-32C (Castagnoli, RFC 3720) of the bytes of `data`, split over `pool` when given.

    An array counts as the bytes it lies in, in C order. Raises ValueError when `data` is not contiguous.
    """
    if isinstance(data, np.ndarray) and not data.flags.c_contiguous:
        raise ValueError(f"`data` must be C-contiguous; got `{data.dtype}{list(data.shape)}` with strides `{data.strides}`")
    return _native.crc32c(data, pool)
