"""The arrays that kernels take and give, and the size of a tile."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]

TILE_CHANNELS = 16
"""Output channels of a tile (the layout is in `kernels.layout`)."""
TILE_DEPTH = 4
"""Input channels of a tile."""
MAX_COLUMNS = 1 << 17
"""Input channels of a product (`kMaxColumns` of the native kernels)."""


class Residual(NamedTuple):
    """What quantization cut off, sparse by row (CSR): row m holds entries row_start[m] .. row_start[m+1]."""

    row_start: I64  # [M+1]
    column: I32  # [R], ascending inside a row
    value: F32  # [R], in units of the input scale


class Rounding(NamedTuple):
    """How a product ends in float16: float16(clamp(float32(dot + bias) * scale, -65504, 65504)), half to even."""

    scale: F32  # [N]
    bias: I32 | None  # [N], |bias| + 127 * 127 * K < 2^31: the sum is an int32 whatever the activations are
