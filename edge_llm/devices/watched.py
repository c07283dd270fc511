"""Subgraphs that a device builds operation by operation, so that a watch can be told what each took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from edge_llm.devices.base import Buffers, Rows, RunSubgraph, Watch, WatchedOp
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.schemes.base import BlockWeights
from edge_llm.subgraphs.ops import Subgraph


def builder(
    build: Callable[[Subgraph, RopeTables], RunSubgraph], tables: RopeTables, watch: Watch | None
) -> Callable[[Subgraph], RunSubgraph]:
    """``build`` for these ``tables``; with a ``watch``, operation by operation, each of which it is told of."""
    if watch is None:
        return lambda subgraph: build(subgraph, tables)

    def build_watched(subgraph: Subgraph) -> RunSubgraph:
        steps = [_watched(subgraph.part, op, build(replace(subgraph, ops=(op,)), tables), watch) for op in subgraph.ops]

        def run(*given: Any) -> None:
            for step in steps:
                step(*given)

        return run

    return build_watched


def _watched(part: str, op: Op, step: RunSubgraph, watch: Watch) -> RunSubgraph:
    """``step``, which is ``op``, from its start to the end of its work."""

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        started = time.perf_counter()
        if (completion := step(weights, buffers, rows, pages)) is not None:
            completion()
        watch((WatchedOp(part, op, weights, pages, slice(0, 1)),), rows.position, np.array([time.perf_counter() - started]))

    return run
