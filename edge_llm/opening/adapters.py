"""Adapters that requests may name: opened, checked against a bundle, and made ready to be multiplied beside its weights.

A bundle's linears are folded and turned (`edge_llm.convert.layer_folds`, `edge_llm.convert.turns`), and an adapter was trained
beside the model as its author published it: so an adapter is folded and turned in the same way, W' = R W C and up' = R up,
down' = down C.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.convert.kept_folds import read_folds
from edge_llm.convert.layer_folds import column_factors, places
from edge_llm.errors import InvalidModel, UnsupportedModel, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle
from edge_llm.models.weights import arranged, layer_shapes
from edge_llm.opening.adapter_plan import NamedAdapter, OpenAdapters
from edge_llm.operations.attention import VALUES
from edge_llm.operations.base import Factors, Folding
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.progress import ignore
from edge_llm.quant.scheme import MAX_FLOAT16
from edge_llm.quant.turning import turned_columns, turned_rows
from edge_llm.sources.hugging_face import digest_files
from edge_llm.sources.lora import EMBEDDING, OUTPUT, Adapter, LowRank
from edge_llm.sources.lora_places import Wish, open_adapter, wish
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.adapters import LayerAdapter, LinearAdapter, UpPart, together

MOST_ADAPTERS = 256
"""That one model may have."""
_MOST_NAME = 128
"""Characters of a name."""
_UP_CHANNELS = 2048
"""Output channels of a part: so many take one core a few microseconds, and more are not worth waking another one."""


def named_wish(text: str) -> tuple[str, Wish]:
    """``NAME=FOLDER``, or ``FOLDER`` alone, which is called as it is there.  Raises `UsageError`."""
    name, sign, place = text.partition("=")
    if not sign or Path(text).exists() or "/" in name:
        found = wish(text)
        name = Path(found.source.rstrip("/")).name.removesuffix(".gguf")
    else:
        found = wish(place)
    if not 0 < len(name) <= _MOST_NAME or not name.isprintable() or name != name.strip():
        raise UsageError(
            f"--lora `{shown(text)}`: the name of an adapter has 1 to {_MOST_NAME} printable characters; write "
            "`--lora name=FOLDER`",
            param="lora",
        )
    return name, found


def check_names(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raise `UsageError` for a name of an adapter that another one or the model has."""
    used = {*taken}
    for name in names:
        if name in used:
            raise UsageError(f"the name `{shown(name)}` is taken; write `--lora another-name=FOLDER`", param="lora")
        used.add(name)


def open_adapters(texts: Sequence[str], bundle: Bundle, model: str) -> OpenAdapters:
    """The adapters that ``texts`` name, for the model in ``bundle``, which is called ``model``.

    Raises `ModelNotFound`, `UsageError`, `InvalidModel`, `UnsupportedModel`, `HubError`, `StorageError` or `CorruptBundle`.
    """
    if len(texts) > MOST_ADAPTERS:
        raise UsageError(f"{len(texts)} adapters are more than the {MOST_ADAPTERS} that a model may have", param="lora")
    wishes = [named_wish(text) for text in texts]
    check_names([name for name, _ in wishes], [model])
    folds, notices = read_folds(bundle), list[str]()
    base = _Base(bundle, model)
    opened = [_opened(name, one, base, folds, notices.append) for name, one in wishes]
    layers = [one.layers for one in opened]
    nbytes = sum(linear.nbytes for one in layers for layer in one for linear in layer.values())
    ready = together(bundle.decoder.layers, layers, [one.digest for one in opened])
    return OpenAdapters(tuple(one.named for one in opened), ready, nbytes, tuple(notices))


@dataclass(frozen=True)
class _Opened:
    named: NamedAdapter
    layers: Sequence[LayerAdapter]
    digest: bytes


def _opened(
    name: str, asked: Wish, base: _Base, folds: Sequence[Factors], notice: Callable[[str], None]
) -> _Opened:
    adapter = open_adapter(asked.source, base, ignore, notice)
    try:
        layers = _Reading(adapter, asked, base.bundle).layers(folds)
        content = f"{digest_files(list(adapter.files), ignore)} {asked.strength!r}".encode()
    finally:
        adapter.close()
    return _Opened(NamedAdapter(name, adapter.template), layers, hashlib.sha256(content).digest())


class _Base:
    """The model of ``bundle`` as adapters are checked against it."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self.bundle = bundle
        self.path = name
        self.config: ModelConfig = bundle.config
        decoder = bundle.decoder
        table = decoder.vocab_size, decoder.hidden_size
        self._shapes: dict[str, tuple[int, ...]] = {EMBEDDING: table, decoder.embedding.source: table}
        if not bundle.config.tied_embeddings:
            self._shapes[OUTPUT] = table
        for layer in decoder.layers:
            self._shapes |= layer_shapes(layer)
        self._shapes |= {gain.source: (decoder.hidden_size,) for gain in decoder.norm.gains}

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self.bundle.folder, self.config.vocab_size)

    def side_files(self) -> Mapping[str, bytes]:
        return self.bundle.side_files()


class _Reading:
    """Reads ``adapter`` for the linears of ``bundle``."""

    def __init__(self, adapter: Adapter, asked: Wish, bundle: Bundle) -> None:
        self._adapter = adapter
        self._asked = asked
        self._bundle = bundle
        self._check_kinds()

    def _check_kinds(self) -> None:
        """Raise `UnsupportedModel` for what only an import can do."""
        modules = {
            f"{layer.prefix}{part.source}.weight"
            for layer in self._bundle.decoder.layers
            for linear in _linears(layer)
            for part in linear.sources
        }
        for name, change in self._adapter.changes.items():
            if change.whole is not None:
                raise self._refusal(f"holds `{shown(name)}` whole")
            if change.low_rank is not None and change.low_rank.magnitude is not None:
                raise self._refusal("has magnitudes (DoRA)")
            if name not in modules:
                raise self._refusal(f"changes `{shown(name)}`")

    def _refusal(self, what: str) -> UnsupportedModel:
        named = shown(self._adapter.named)
        return UnsupportedModel(
            f"the adapter `{named}` {what}, which cannot be added request by request; merge it once: "
            f"`edge-llm import MODEL --lora {shown(str(self._asked))} --name NEW`"
        )

    def layers(self, folds: Sequence[Factors]) -> list[LayerAdapter]:
        """What it does to every layer, whose factors are ``folds``."""
        return [self._of_layer(layer, one) for layer, one in zip(self._bundle.decoder.layers, folds, strict=True)]

    def _of_layer(self, layer: Layer, factors: Factors) -> dict[str, LinearAdapter]:
        pairs = {
            linear.name: found for linear in _linears(layer) if (found := self._pairs(layer.prefix, linear))
        }
        if not pairs:
            return {}
        folding = Folding({one.name: np.ones(one.shape, np.float32) for one in layer.gains}, {})
        for name, place in places(layer).items():
            place.maker.fold(layer, place, factors[name], folding)
        columns = column_factors(layer, factors)

        def ready(name: str) -> LinearAdapter:
            made = folding.rows.get(name), columns.get(name)
            return self._ready([_folded(layer, layer.linear(name), pair, *made) for pair in pairs[name]])

        return {name: ready(name) for name in pairs}

    def _pairs(self, prefix: str, linear: Linear) -> list[_Pair]:
        """What is added to the rows of each of the sources of ``linear``."""
        found, first = [], 0
        for part in linear.sources:
            change = self._adapter.changes.get(f"{prefix}{part.source}.weight")
            if change is not None and change.low_rank is not None:
                one: LowRank = change.low_rank
                up = arranged(one.up(), part) * np.float32(part.factor * one.scale * self._asked.strength)
                found.append(_Pair(up, np.ascontiguousarray(one.down(), np.float32), first))
            first += part.count
        return found

    def _ready(self, pairs: Sequence[_Pair]) -> LinearAdapter:
        """``pairs`` in float16, the sizes of each rank's two halves made even."""
        downs, parts, first_rank = [], [], 0
        for pair in pairs:
            up, down = _balanced(pair.up, pair.down)
            if not max(np.abs(up).max(initial=0), np.abs(down).max(initial=0)) <= MAX_FLOAT16:
                raise InvalidModel(
                    f"the adapter `{shown(self._adapter.named)}` has values beyond {MAX_FLOAT16:g}; it is damaged: download or "
                    "save it again"
                )
            downs.append(down.astype(np.float16))
            for first in range(0, len(up), _UP_CHANNELS):
                some = np.ascontiguousarray(up[first : first + _UP_CHANNELS].T.astype(np.float16))
                parts.append(UpPart(first_rank, pair.first + first, some))
            first_rank += len(down)
        return LinearAdapter(np.ascontiguousarray(np.concatenate(downs).T), parts)


@dataclass(frozen=True)
class _Pair:
    """What is added to some rows of a linear, from ``first`` on: up float32 [rows, rank], down float32 [rank, columns]."""

    up: np.ndarray
    down: np.ndarray
    first: int


def _linears(layer: Layer) -> list[Linear]:
    """Those that each row is multiplied with."""
    return [one for one in layer.operations if isinstance(one, Linear)]


def _folded(layer: Layer, linear: Linear, pair: _Pair, rows: np.ndarray | None, columns: np.ndarray | None) -> _Pair:
    """``pair`` as the weight of ``linear`` was folded, by factors of its ``rows`` and ``columns``, and turned."""
    whole, some = np.zeros((linear.rows, pair.up.shape[1]), np.float32), slice(pair.first, pair.first + len(pair.up))
    whole[some] = pair.up
    up = whole if rows is None else whole * rows[:, None]
    down = pair.down if columns is None else pair.down * columns
    attention = layer.attentions[0] if layer.attentions else None
    if attention is not None and attention.value_turn:
        if linear == layer.projection:
            first = attention.q_size + attention.kv_size
            up[first:] = turned_rows(up[first:], attention.value_turn)
        elif linear in places(layer)[VALUES].readers:
            down = turned_columns(down, attention.value_turn)
    return _Pair(up[some], np.ascontiguousarray(down), pair.first)


def _balanced(up: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same product, each rank's two halves about as large: in float16 small values have few digits."""
    above, below = np.abs(up).max(axis=0, initial=0), np.abs(down).max(axis=1, initial=0)
    both = (above > 0) & (below > 0) & np.isfinite(above) & np.isfinite(below)
    ratio = np.divide(above, below, out=np.ones_like(above), where=both)
    factor = np.exp2(np.round(np.log2(ratio) / 2)).astype(np.float32)
    return up / factor, down * factor[:, None]
