"""What a way to keep keys and values costs: the float model, in which nothing else is rounded, held against itself.

Keys and values are folded as the bundle's are, and keys lose its offset, before they are rounded.  A bundle has folded
weights and no list of the factors, so these are found again: the beginning of the text runs through every layer twice, with the
source's weights and with the bundle's, and a factor is how much longer a channel is in the one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.bench.quality import check_enough, compare
from edge_llm.bench.roofs import Costs
from edge_llm.config import RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.models.layer import Decoder
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.opening.begin import bind
from edge_llm.opening.float_assembly import bundle_layer, float_model
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.operations.attention import KEY_OFFSET, Attention
from edge_llm.operations.base import KVRounding
from edge_llm.paths import find_bundle
from edge_llm.progress import CountProgress
from edge_llm.quant.kv import KVScheme, kv_schemes
from edge_llm.quant.quality import Quality
from edge_llm.quant.turning import turned, turned_back
from edge_llm.runner.float_path import FloatRunner
from edge_llm.subgraphs.placement import choose_placement
from edge_llm.weights.resident import ResidentWeights

DEPTH = 4096
"""Tokens of context at which bytes are counted."""
(TODAY,) = kv_schemes("int8")
"""How the host keeps them."""
FOLD_TOKENS = 256
"""Tokens by which folds are found again."""


@dataclass(frozen=True)
class KVQuality:
    """What one scheme costs a model."""

    scheme: str
    key_bits: float
    value_bits: float
    """Bits per value, with all scales."""
    kv_bytes: int
    """Of the keys and values of `DEPTH` tokens."""
    reads: float
    """What a token of generation reads at `DEPTH`, over what it reads with `TODAY`: a bound on the gain in speed."""
    quality: Quality


@dataclass(frozen=True)
class Folded:
    """What a layer's keys and values [kv heads, head_dim] are divided by before they are kept, and what keys then lose."""

    keys: np.ndarray
    values: np.ndarray
    offset: np.ndarray
    key_turn: int = 0
    """Block of channels that keys are turned in before they are kept; 0: none."""
    value_turn: int = 0

    def rounding(self, scheme: KVScheme) -> KVRounding:
        """What a cache of ``scheme`` gives back of the keys and values of the layer."""

        def rounding(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            kept_keys = scheme.keys.rounded(turned(keys / self.keys - self.offset, self.key_turn))
            kept_values = scheme.values.rounded(turned(values / self.values, self.value_turn))
            found = (turned_back(kept_keys, self.key_turn) + self.offset) * self.keys
            return found, turned_back(kept_values, self.value_turn) * self.values

        return rounding


def measure_kv_quality(
    name: str | Path,
    runtime: RuntimeConfig,
    schemes: Sequence[KVScheme],
    tokens: Sequence[int],
    window: int,
    bos: int | None = None,
    progress: CountProgress | None = None,
) -> list[KVQuality]:
    """What each of ``schemes`` costs the bundle ``name`` on ``tokens``, in `compare`'s windows.

    Raises `ModelNotFound` when the bundle's float weights are gone, `UsageError` for too few tokens and for a ``runtime`` that
    the float model does not have.
    """
    choose_placement(runtime.placement, ("host",), "--kv")
    if not runtime.shadow:
        raise UsageError("--no-shadow has no meaning with --kv, which measures the float model", param="no_shadow")
    check_enough(tokens, window, bos)
    with open_bundle(find_bundle(name)) as bundle:
        plan = resolve(runtime, this_machine(), bundle)
        bind(plan.cpus)
        model = float_model(bundle)
        read = Costs.of_bundle(bundle).weight_bytes
        text, pool = tokens[: min(FOLD_TOKENS, window)], ThreadPool(plan.threads)
        folds = find_folds(model, bundle.decoder, ResidentWeights(bundle), text, pool)
    oracle = FloatRunner(model, plan.context)
    attentions = model.decoder.attentions
    found = []
    for done, scheme in enumerate(schemes):
        if progress is not None:
            progress(done, len(schemes))
        runner = FloatRunner(model.with_kv_rounding([fold.rounding(scheme) for fold in folds]), plan.context)
        quality = compare(runner, oracle, tokens, window, bos)
        key_bits, value_bits = (max(each.bits(one.head_dim) for one in attentions) for each in (scheme.keys, scheme.values))
        nbytes = round(DEPTH * scheme.token_bytes(attentions))
        found.append(KVQuality(scheme.name, key_bits, value_bits, nbytes, reads(scheme, attentions, read), quality))
    if progress is not None:
        progress(len(schemes), len(schemes))
    return found


def reads(scheme: KVScheme, attentions: Sequence[Attention], weight_bytes: float) -> float:
    """`KVQuality.reads` of a model that reads ``weight_bytes`` of weights for a token."""
    now, today = (weight_bytes + DEPTH * each.token_bytes(attentions) for each in (scheme, TODAY))
    return now / today


def kv_quality_table(found: Sequence[KVQuality]) -> str:
    """``found`` for people, a line each."""
    head = f"{'keys/values':26}{'bits':>13}{'KL':>12}{'perplexity':>12}{'top-1':>10}{'MB':>8}{'reads':>9}"
    lines = [
        f"{each.scheme:26}{f'{each.key_bits:.2f}/{each.value_bits:.2f}':>13}{each.quality.mean_kl:12.6f}"
        f"{f'x{each.quality.perplexity / each.quality.float_perplexity:.5f}':>12}{each.quality.top1_agreement:>10.2%}"
        f"{each.kv_bytes / 1e6:8.1f}{f'x{each.reads:.3f}':>9}"
        for each in found
    ]
    return "\n".join(
        [
            head,
            *lines,
            f"against the float model, on {found[0].quality.tokens} tokens; MB of keys and values at a depth of {DEPTH},",
            f"and what a token of generation reads there over what it reads with {TODAY.name} ones",
        ]
    )


def find_folds(
    model: FloatModel, decoder: Decoder, weights: ResidentWeights, tokens: Sequence[int], pool: ThreadPool
) -> list[Folded]:
    """What the keys and values of every layer of the bundle of ``weights`` were folded by, as ``tokens`` show it.

    ``decoder`` is the bundle's description.
    """
    tables = RopeTables(max(1, len(tokens)))
    x, found = model.embedding[np.asarray(tokens, np.int64)], []
    for index, (layer, own) in enumerate(zip(decoder.layers, model.layers, strict=True)):
        block, ours, theirs = weights.use(index), Seen(), Seen()
        bundle_layer(x, layer, block, tables, pool, None, ours)
        x = layer_forward(x, layer, own, tables, rounding=theirs)
        attention, value_turn = layer.attention, layer.attention.value_turn
        found.append(
            Folded(
                keys=key_factors(attention, theirs.keys, ours.keys),
                values=_ratios(*_matched(theirs.values, turned_back(ours.values, value_turn))),
                offset=block.gains[KEY_OFFSET],
                key_turn=attention.turn,
                value_turn=value_turn,
            )
        )
    return found


class Seen:
    """A `KVRounding` that changes nothing, and can be asked what it saw."""

    keys: np.ndarray
    values: np.ndarray

    def __call__(self, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.keys, self.values = keys, values
        return keys, values


def key_factors(attention: Attention, long: np.ndarray, short: np.ndarray) -> np.ndarray:
    """f [kv heads, D] with long = f * short as nearly as may be, both keys [T, kv heads, D]; a rotation pair has one factor."""
    pairs = attention.head_dim // 2
    pair_of_channel = attention.channels_of(np.arange(pairs)[None])[0]
    of_pair = pair_of_channel[:, None] == np.arange(pairs)  # [D, D / 2]
    met, heard = (each @ of_pair for each in _matched(long, short))
    return attention.channels_of(_ratios(met, heard))


def _matched(long: np.ndarray, short: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every channel the products of both, and the squares of ``short``, summed over the tokens: float64 [heads, D]."""
    x, y = long.astype(np.float64), short.astype(np.float64)
    return (x * y).sum(axis=0), (y * y).sum(axis=0)


def _ratios(met: np.ndarray, heard: np.ndarray) -> np.ndarray:
    """The factors that come nearest: float32; 1 where nothing is heard, or the two are opposed."""
    factor = np.divide(met, heard, out=np.ones_like(heard), where=heard > 0)
    return np.where(factor > 0, factor, 1.0).astype(np.float32)
