"""Where INT8's loss comes from: the linears, the keys, the values and the output matrix, one after the other made INT8.

The text runs through the bundle's own INT8 linears with float attention, float keys and values and the float output matrix;
then with one of these in INT8 as well.  A share is what that one adds to the divergence from the float path.  Errors that
have nothing to do with each other add up, so the shares come near the whole; a small one may be measured below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.bench.quality import compare
from edge_llm.config import STATIC, RuntimeConfig
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.models.layer import Decoder
from edge_llm.models.reference import FloatCache, FloatModel
from edge_llm.models.rope import RopeTables
from edge_llm.opening.begin import bind
from edge_llm.opening.float_assembly import bundle_layer, float_model
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.operations.arithmetic import soft_cap
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.float_kv import FloatKV
from edge_llm.operations.layer import Layer
from edge_llm.paths import find_bundle
from edge_llm.progress import CountProgress
from edge_llm.quant.scheme import rounded_kv
from edge_llm.quant.turning import turned, turned_back
from edge_llm.runner.float_path import FloatRunner
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.tables import float_rows
from edge_llm.weights.resident import ResidentWeights

MAX_TOKENS = 2048
"""Tokens of the text that shares are measured on."""
PLACES = ("linears", "keys", "values", "output")


@dataclass(frozen=True)
class Shares:
    """Nats per token that INT8 adds to KL(float || INT8) in each place, on ``tokens`` predicted tokens."""

    linears: float
    """All linears of the layers, and the embedding."""
    keys: float
    values: float
    output: float
    """The output matrix."""
    tokens: int


def measure_shares(
    name: str | Path,
    runtime: RuntimeConfig,
    tokens: Sequence[int],
    window: int,
    bos: int | None = None,
    progress: CountProgress | None = None,
) -> Shares:
    """The shares of the loss of the bundle ``name`` on the first `MAX_TOKENS` of ``tokens``, in `compare`'s windows.

    Raises `ModelNotFound` when the bundle's float weights are gone.
    """
    bundle = open_bundle(find_bundle(name))
    bundle = bundle.with_static_scales() if runtime.activations == STATIC else bundle
    plan = resolve(runtime, this_machine(), bundle)
    bind(plan.cpus)
    model, weights, pool = float_model(bundle), ResidentWeights(bundle), ThreadPool(plan.threads)
    oracle = FloatRunner(model, plan.context)
    losses = {}
    for done, place in enumerate(PLACES):
        if progress is not None:
            progress(done, len(PLACES))
        runner = FloatRunner(PartlyInt8(weights, model, bundle.decoder, pool, place), plan.context)
        found = compare(runner, oracle, tokens[:MAX_TOKENS], window, bos)
        losses[place] = found.mean_kl
    if progress is not None:
        progress(len(PLACES), len(PLACES))
    linears = losses.pop("linears")
    return Shares(linears=linears, tokens=found.tokens, **{place: loss - linears for place, loss in losses.items()})


class PartlyInt8:
    """INT8 linears with all else in float but ``place``, one of `PLACES`: the float reference with other linears."""

    def __init__(
        self, weights: ResidentWeights, model: FloatModel, decoder: Decoder, pool: ThreadPool, place: str
    ) -> None:
        self.config = model.config
        self.decoder = decoder
        self._weights = weights
        self._float = model
        self._pool = pool
        self._place = place
        self._tables = RopeTables(min(model.config.context, 4096))

    def forward(self, tokens: Sequence[int], cache: FloatCache) -> np.ndarray:
        """Logits float32 [T, vocab] of ``tokens`` that follow what ``cache`` holds."""
        states = self.states(tokens, cache)
        if self._place == "output":
            logits = self._weights.head.linears["output"].apply(states, self._pool)
        else:
            logits = np.asarray(states @ self._float.output.T)
        return soft_cap(logits, self.decoder.cap)

    def states(self, tokens: Sequence[int], cache: FloatCache) -> np.ndarray:
        """Normed last hidden states float32 [T, hidden] of the same."""
        norm, gains = self.decoder.norm, self._weights.head.gains
        ours = self._place == "output"
        vectors = np.stack([gains[gain.name] for gain in norm.gains]) if ours else self._float.final_norm
        return norm.applied(self._hidden(tokens, cache), vectors)

    def _hidden(self, tokens: Sequence[int], cache: FloatCache) -> np.ndarray:
        table = self._weights.embedding
        ids = np.asarray(tokens, np.int64)
        x = float_rows(table, ids, self.decoder.embedding.factor)
        end = cache.length + len(ids)
        if end > self._tables.positions:
            self._tables = RopeTables(min(self.config.context, 2 * end))
        for index, (layer, past) in enumerate(zip(self.decoder.layers, cache.layers, strict=True)):
            x = self._layer(x, layer, self._weights.use(index), past)
        cache.length = end
        return x

    def _layer(self, x: np.ndarray, layer: Layer, block: BlockWeights, past: FloatKV) -> np.ndarray:
        def rounded(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            keys = keys - block.gains[KEY_OFFSET]
            if self._place == "keys":
                turn = layer.attention.turn
                keys = turned_back(rounded_kv(turned(keys, turn)), turn)
            if self._place == "values":
                values = rounded_kv(values)
            return keys, values

        return bundle_layer(x, layer, block, self._tables, self._pool, past, rounded)
