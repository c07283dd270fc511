"""The float weights that a bundle may carry, as a safetensors file."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from edge_llm.formats.safetensors import safetensors_header
from edge_llm.progress import StageProgress
from edge_llm.quant.scheme import MAX_FLOAT16
from edge_llm.sources.base import Source


def float_copy(source: Source, unused: Collection[str], progress: StageProgress) -> Iterator[bytes | np.ndarray]:
    """The tensors of ``source`` but the ``unused``: matrices in float16 where they fit, the rest in float32."""
    names = [name for name in source.names() if name not in set(unused)]
    kinds: dict[str, str] = {}
    for name in names:
        matrix = len(source.shape(name)) > 1
        kinds[name] = "F16" if matrix and np.abs(source.read(name)).max(initial=0) <= MAX_FLOAT16 else "F32"
    yield safetensors_header((name, kinds[name], source.shape(name)) for name in names)
    for done, name in enumerate(names):
        progress("copy", done, len(names))
        values = source.read(name)
        data = values.astype(np.float16) if kinds[name] == "F16" else values
        yield data.reshape(-1).view(np.uint8)
    progress("copy", len(names), len(names))
