"""INT8 products on a card beside the CPU: rows come from the host and go back there in static subgraphs."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.ascend.devices.card.linears import NpuBlock
from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.runtime import Completion, Runtime, run
from edge_llm.devices.base import Buffers, Rows
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.errors import DeviceError
from edge_llm.operations.base import Op
from edge_llm.schemes.base import BlockWeights
from edge_llm.subgraphs.ops import Subgraph

if TYPE_CHECKING:
    from torch import Tensor

IN_FLIGHT = 2
"""Products of one subgraph that have pinned memory at a time: one is computed, the next is on its way."""


@dataclass
class _Slot:
    """Pinned rows in and out, and the work that last used them."""

    rows: Tensor
    product: Tensor
    busy: Completion | None = None


class SplitProduct:
    """The one product of a static ``subgraph``."""

    def __init__(self, runtime: Runtime, calls: Calls, subgraph: Subgraph) -> None:
        import torch

        (op,) = subgraph.ops
        if op.kind != "matmul":
            raise DeviceError(f"{calls.law.soc} runs INT8 products here and nothing else, not `{op.kind}`")
        self._op: Op = op
        self._subgraph = subgraph
        self._runtime = runtime
        self._calls = calls
        columns, outputs = calls.law.padded(op.linear.columns, op.linear.rows)
        rows = (subgraph.rows, columns)
        self._x = run(runtime, lambda: torch.empty(rows, dtype=torch.int8, device=runtime.device))
        self._slots = [
            _Slot(runtime.pinned(rows, torch.int8), runtime.pinned((subgraph.rows, outputs), torch.float16))
            for _ in range(IN_FLIGHT)
        ]
        self._turn = 0
        self._lock = Lock()

    def run(self, weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> Completion:
        """Give the product of the first rows to the card; the completion puts it into its buffer as float32."""
        if not isinstance(weights, NpuBlock):
            raise DeviceError(f"the weights of `{self._op.linear.name}` are not in the card's memory")
        if rows.static != self._subgraph.rows:
            raise DeviceError(
                f"subgraph `{self._subgraph.part}` is static: it takes {self._subgraph.rows} rows and refuses `{rows.static}`"
            )
        slot = self._next()
        _fill(slot.rows, buffers[self._op.reads[0]][: rows.count])
        slot.busy = done = self._enqueue(weights, slot)
        result = buffers[self._op.writes[0]][: rows.count]

        def completion() -> None:
            done()
            result[...] = slot.product.numpy()[: len(result), : result.shape[1]]

        return completion

    def _next(self) -> _Slot:
        with self._lock:
            self._turn += 1
            slot = self._slots[self._turn % IN_FLIGHT]
        if slot.busy is not None:
            slot.busy()
        return slot

    def _enqueue(self, weights: NpuBlock, slot: _Slot) -> Completion:
        name, traffic = self._op.linear.name, weights.traffic

        def work() -> None:
            linear = weights.card[name]
            self._runtime.copy_in(self._x, slot.rows)
            product = self._calls.quant_matmul(self._x, linear.weight, linear.scale, linear.bias)
            self._runtime.copy_out(slot.product, product)

        traffic.used = self._runtime.enqueue(work, after=traffic.loaded)
        return traffic.used


def _fill(pinned: Tensor, rows: np.ndarray) -> None:
    if rows.dtype != np.int8:
        raise DeviceError(f"a card multiplies int8 rows here, not {rows.dtype}")
    pinned.numpy()[: len(rows), : rows.shape[1]] = rows
