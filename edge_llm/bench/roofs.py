"""What the machine could do at most, and how much of it a speed is.

Prefill is held against the bare INT8 rate, decode against the rate at which memory can be read; both are measured
right before and after the test that they are a roof for, with the same threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.bench.measure import Measurement, Test
from edge_llm.formats.bundle import Bundle
from edge_llm.kernels import ThreadPool, isa
from edge_llm.kernels.layout import row_sums
from edge_llm.kernels.linear import Int8Linear, linear
from edge_llm.kernels.roofs import int8_rate, read_bandwidth
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.models.layer import Decoder
from edge_llm.operations.layer import Layer


@dataclass(frozen=True)
class Roofs:
    """Limits of this machine with ``threads`` threads."""

    threads: int
    isa: str
    operations: float
    """INT8 operations per second (a multiply-add is two) of the bare kernel on data in the nearest cache."""
    read_bytes: float
    """Bytes per second of a sequential read of main memory."""

    def higher(self, other: Roofs) -> Roofs:
        """The higher of two measurements: what disturbs a roof only ever lowers it."""
        operations, read_bytes = max(self.operations, other.operations), max(self.read_bytes, other.read_bytes)
        return Roofs(self.threads, self.isa, operations, read_bytes)

    def as_dict(self) -> dict[str, Any]:
        return {"n_threads": self.threads, "isa": self.isa, "gops": self.operations / 1e9, "gb_s": self.read_bytes / 1e9}


def measure_roofs(pool: ThreadPool) -> Roofs:
    """Takes half a second and half a gigabyte of memory."""
    return Roofs(pool.threads, isa(), int8_rate(pool), read_bandwidth(pool))


def measure_layer(layer: Layer, pool: ThreadPool, rows: int, repetitions: int = 5) -> float:
    """INT8 operations per second of the linears of one layer on ``rows`` rows: what is left of the roof in a prompt."""
    random = np.random.default_rng(0)
    shapes = [(linear.rows, linear.columns) for linear in layer.linears]
    works = [_linear_of(random, outputs, inputs, rows, pool) for outputs, inputs in shapes]
    seconds = []
    for _ in range(repetitions + 1):  # the first wakes the machine
        started = time.perf_counter()
        for work in works:
            work()
        seconds.append(time.perf_counter() - started)
    return 2 * rows * sum(outputs * inputs for outputs, inputs in shapes) / float(np.median(seconds[1:]))


def _linear_of(
    random: np.random.Generator, outputs: int, inputs: int, rows: int, pool: ThreadPool
) -> Callable[[], np.ndarray]:
    """A linear of random weights without outliers, ready to run."""
    tiles = random.integers(-127, 128, (-(-outputs // 16), -(-inputs // 4), 16, 4), np.int8)
    x = random.standard_normal((rows, inputs), np.float32)
    product_scale, row_sum = np.ones(outputs, np.float32), row_sums(tiles, outputs)
    hot, hot_weight = np.empty(0, np.int32), np.empty((0, outputs), np.float16)
    out = np.empty((rows, outputs), np.float32)
    weight = Int8Linear(tiles, outputs, inputs, 0.05, product_scale, row_sum, hot, hot_weight, None)
    return lambda: linear(x, weight, pool, out=out)


@dataclass(frozen=True)
class Costs:
    """What a token costs an engine: what must be multiplied, and what must be read."""

    operations: int
    """INT8 operations of the linear layers for one token, logits left out."""
    logit_operations: int
    """Operations of one token's logits."""
    weight_bytes: int
    """Bytes of all weights that a generated token needs: all but the embedding, or that too if it is the output."""
    kv_bytes: int
    """Bytes of the keys and values of one token of context."""

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> Costs:
        unread = "" if bundle.decoder.tied else "embedding."
        read = [t for t in bundle.tensors.values() if not (unread and t.name.startswith(unread))]
        kv_bytes = page_bytes(bundle.decoder.attentions) // PAGE_TOKENS
        return cls(*operations(bundle.decoder), sum(t.nbytes for t in read), kv_bytes)

    def rates(self, measurement: Measurement) -> dict[str, float | None]:
        """``gops`` of a prompt (linear layers, and the logits as computed: of its last token), ``gb_s`` of generation."""
        test, tokens_per_s = measurement.test, measurement.as_row()["median_ts"]
        return {
            "gops": None if test.generate else tokens_per_s * self._operations_per_token(test) / 1e9,
            "gb_s": None if test.prompt else tokens_per_s * self._bytes_per_token(test) / 1e9,
        }

    def _operations_per_token(self, test: Test) -> float:
        return self.operations + self.logit_operations / test.prompt

    def _bytes_per_token(self, test: Test) -> float:
        context = test.depth + (test.generate + 1) / 2  # of the average generated token, itself included
        return self.weight_bytes + context * self.kv_bytes


def operations(decoder: Decoder) -> tuple[int, int]:
    """Operations of one token in the layers' linears, and in the logits."""
    sizes = {name: 2 * linear.rows * linear.columns for name, linear in decoder.linears().items()}
    logits = sizes.pop("output")
    return sum(sizes.values()), logits


def shares(rates: dict[str, float | None], roofs: Roofs | None) -> dict[str, float | None]:
    """``gops_share`` and ``gb_s_share``: the rates over the roofs."""
    gops, gb_s = rates["gops"], rates["gb_s"]
    return {
        "gops_share": None if roofs is None or gops is None else 1e9 * gops / roofs.operations,
        "gb_s_share": None if roofs is None or gb_s is None else 1e9 * gb_s / roofs.read_bytes,
    }
