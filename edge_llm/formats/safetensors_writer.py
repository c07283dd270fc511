"""Writes safetensors, as little as is needed to keep a model's float weights in a bundle."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable

_WIDTH = {"F16": 2, "F32": 4}


def safetensors_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Everything before the data, for tensors (name, F16 or F32, shape) that follow without gaps in this order."""
    header: dict[str, object] = {}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + math.prod(shape) * _WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins on a multiple of 8
    return struct.pack("<Q", len(text)) + text
