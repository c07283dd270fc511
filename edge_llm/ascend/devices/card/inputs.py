"""What a step needs from the host, in one array that is copied once: hidden states, positions, slots, lengths, blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.ascend.npu.runtime import Runtime, run

if TYPE_CHECKING:
    from torch import Tensor


BLOCK = 8
"""Words of 4 bytes: [vllm] what a 310P reads and writes begins at a multiple of 32 bytes."""


class Inputs:
    """For ``rows`` rows of ``width`` channels, whose sequences have at most ``blocks`` blocks.

    On either side the same bytes: hidden float32 [rows, width], and int32 positions, slots, wanted, lengths [rows] and table
    [rows, blocks].  Lengths and table are those of rows or of sequences, as the attention wants them.
    """

    def __init__(self, rows: int, width: int, blocks: int, runtime: Runtime) -> None:
        import torch

        numbers = dict.fromkeys(("positions", "slots", "wanted", "lengths"), (rows,))
        shapes: dict[str, tuple[int, ...]] = {"hidden": (rows, width), **numbers, "table": (rows, blocks)}
        words = sum(_whole_blocks(math.prod(shape)) for shape in shapes.values())
        self._host = runtime.pinned((words,), torch.int32)
        self._card = run(runtime, lambda: torch.empty(words, dtype=torch.int32, device=runtime.device))
        self._runtime = runtime
        self._on_host: dict[str, np.ndarray] = {}
        self._on_card: dict[str, Tensor] = {}
        start = 0
        for name, shape in shapes.items():
            at = slice(start, start + math.prod(shape))
            start = _whole_blocks(at.stop)
            host, card = self._host.numpy()[at], self._card[at]
            if name == "hidden":
                host, card = host.view(np.float32), card.view(torch.float32)
            self._on_host[name] = host.reshape(shape)
            self._on_card[name] = card.view(shape)

    def host(self, name: str) -> np.ndarray:
        """The array of this name in pinned memory, to be written."""
        return self._on_host[name]

    def card(self, name: str) -> Tensor:
        """The same on the card, as of the last `copy`."""
        return self._on_card[name]

    def copy(self) -> None:
        """Copy all of it to the card; inside of work."""
        self._runtime.copy_in(self._card, self._host)


def _whole_blocks(words: int) -> int:
    return -(-words // BLOCK) * BLOCK
