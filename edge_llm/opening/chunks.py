"""Chunks of a prompt that are longer than was asked, for mixtures: a chunk reads each expert once, from wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from edge_llm.config import MOST_CHUNK, RuntimeConfig
from edge_llm.devices.base import Room
from edge_llm.models.layer import Decoder
from edge_llm.operations.early_router import mixture_of

if TYPE_CHECKING:
    from edge_llm.opening.plan import WeightsPlan

_ROWS_BETWEEN = 4
"""Sums, and what goes into and comes out of a call.  Half of what experts give waits for others, whose numbers are lower."""


class Placed(NamedTuple):
    """Where the weights lie beside activations of ``work`` bytes."""

    runtime: RuntimeConfig
    room: Room
    work: int
    weights: WeightsPlan


def between_experts(decoder: Decoder, rows: int) -> int:
    """About the bytes that the experts of a layer take for so many ``rows``, beside the buffers of the layer."""
    found = [one for one in map(mixture_of, decoder.layers) if one is not None]
    return max((4 * rows * one.columns * (_ROWS_BETWEEN + one.used // 2) for one in found), default=0)


def in_long_chunks(asked: Placed, placed: Callable[[RuntimeConfig], Placed]) -> Placed:
    """A mixture as ``asked``, or with as many chunks of a window in one as leave as many of its experts in memory.

    A step still has as many rows as were asked for.
    """
    runtime, experts = asked.runtime, asked.weights.host.experts
    assert runtime.chunk is not None and runtime.context is not None
    for joined in range(runtime.window, 1, -1):
        chunk = min(joined * runtime.chunk, max(runtime.chunk, runtime.context))
        if runtime.window % joined or not runtime.chunk < chunk <= MOST_CHUNK:
            continue
        found = placed(replace(runtime, chunk=chunk, window=runtime.window // joined))
        left = found.weights.host.experts
        if left is None or experts is None or left.quota >= experts.quota:
            return found
    return asked
