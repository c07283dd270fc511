"""LoRA: a small adapter that changes the matrices of a model, merged as they are read.

    W' = W + scale * up @ down            up [rows, rank], down [rank, columns]
    W' = m * (W + scale * up @ down) / norm of its rows          DoRA: m has one number per row

An adapter may hold whole tensors too, which replace the model's.  Products are float64, rounded once.

    with adapted(source, adapters) as merged:
        merged.read("model.layers.0.self_attn.q_proj.weight")
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.limits import MAX_WEIGHT
from edge_llm.models import load_config
from edge_llm.progress import StageProgress, ignore
from edge_llm.sources.base import AdapterBase, PackedSource, QuantizedSource, Source
from edge_llm.sources.hugging_face import digest_files, stamp
from edge_llm.sources.quantization import plain_settings
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.template_files import TOOL_USE
from edge_llm.text.tokenizer import Tokenizer

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
_ROWS = 1024
"""Of a matrix that are changed at once: a product in float64 is beside it."""

Read = Callable[[], np.ndarray]


@dataclass(frozen=True)
class LowRank:
    """What is added to a matrix [rows, columns]."""

    up: Read
    """float32 [rows, rank]."""
    down: Read
    """float32 [rank, columns]."""
    scale: float
    magnitude: Read | None = None
    """DoRA's: float32, one per row, or per column of an embedding."""
    axis: int = 1
    """Over which DoRA's norm goes."""

    def added(self, values: np.ndarray, strength: float, original: np.ndarray) -> np.ndarray:
        """``values`` with it, ``strength`` times; ``original`` is what the model itself has, which DoRA's norm is of."""
        up, down = self.up().astype(np.float64), self.down().astype(np.float64) * (self.scale * strength)
        if self.magnitude is None:
            for first in range(0, len(values), _ROWS):
                rows = slice(first, first + _ROWS)
                values[rows] = values[rows] + up[rows] @ down
            return values
        with np.errstate(divide="ignore", invalid="ignore"):  # a length of 0 is refused with the values that it gives
            factor = self.magnitude().astype(np.float64) / np.sqrt(_squares(original, up, down, self.axis))
            for first in range(0, len(values), _ROWS):
                rows = slice(first, first + _ROWS)
                values[rows] = (values[rows] + up[rows] @ down) * (factor[rows, None] if self.axis else factor)
        return values


def _squares(original: np.ndarray, up: np.ndarray, down: np.ndarray, axis: int) -> np.ndarray:
    """Sums of squares of ``original + up @ down`` over ``axis``."""
    found = [(original[first : first + _ROWS] + up[first : first + _ROWS] @ down) ** 2 for first in range(0, len(up), _ROWS)]
    return np.concatenate([one.sum(axis=1) for one in found]) if axis else np.sum([one.sum(axis=0) for one in found], axis=0)


@dataclass(frozen=True)
class Change:
    """What an adapter does to a tensor: ``whole`` replaces it, then ``low_rank`` is added."""

    whole: Read | None = None
    low_rank: LowRank | None = None


@dataclass(frozen=True)
class Adapter:
    """An open adapter, checked against the model that it changes."""

    named: str
    """As a person named it: a path, or a hub id with its revision."""
    place: str
    """Where it is found again: an absolute path."""
    changes: Mapping[str, Change]
    """By the names of the model's tensors."""
    files: Sequence[Path]
    close: Callable[[], None]
    template: ChatTemplate | None = None
    """The chat template that it was trained with, where that is another than the model's."""
    template_files: Mapping[str, bytes] = field(default_factory=dict)
    ties: bool = False
    """Whether its embedding is a tied output matrix too."""
    told: Sequence[str] = ()
    """What a person should know of it, a line at a time."""


class AdaptedSource:
    """``source`` with adapters merged in order, each ``strength`` times.  It closes them all."""

    def __init__(self, source: Source, adapters: Sequence[tuple[Adapter, float]]) -> None:
        self.kind, self.path, self.place = source.kind, source.path, source.place
        self.adapters = tuple(adapters)
        self._source = source
        self._untied = source.config.tied_embeddings and any(_unties(one) for one, _ in adapters)
        self.config: ModelConfig = load_config(plain_settings(self._settings())) if self._untied else source.config
        self._stamps = [stamp(file) for file in self._files]

    @property
    def original(self) -> Source:
        """What the adapters are merged into."""
        return self._source

    def names(self) -> list[str]:
        names = self._source.names()
        return [*names, OUTPUT] if self._untied and OUTPUT not in names else names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(self._original(name))

    def read(self, name: str) -> np.ndarray:
        values = self._source.read(self._original(name))
        changes = [(one.changes[name], strength) for one, strength in self.adapters if name in one.changes]
        needs_original = any(change.low_rank and change.low_rank.magnitude for change, _ in changes)
        original = values.copy() if needs_original else values
        for change, strength in changes:
            if change.whole is not None:
                values = change.whole()
                original = values.copy() if needs_original else values
            if change.low_rank is not None:
                values = change.low_rank.added(values, strength, original)
        if changes and not np.maximum(-values.min(initial=0), values.max(initial=0)) <= MAX_WEIGHT:
            raise InvalidModel(
                f"`{shown(name)}` is beyond {MAX_WEIGHT:g} once `{shown(self.adapters[-1][0].named)}` is merged; the adapter "
                "is damaged: download or save it again"
            )
        return values

    def _original(self, name: str) -> str:
        """The source's own name of the tensor: an output matrix that was tied is the embedding."""
        return EMBEDDING if self._untied and name == OUTPUT else name

    def tokenizer(self) -> Tokenizer:
        return self._source.tokenizer()

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        found = [one.template for one, _ in self.adapters if one.template is not None]
        return found[-1] if found else self._source.template(tokenizer)

    def generation_config(self) -> dict[str, Any]:
        return self._source.generation_config()

    def side_files(self) -> Mapping[str, bytes]:
        files = dict(self._source.side_files())
        for adapter, _ in self.adapters:
            if adapter.template_files:
                files.pop(TOOL_USE, None)
            files |= adapter.template_files
        if self._untied:
            files["config.json"] = json.dumps(self._settings(), indent=2, ensure_ascii=False).encode()
        return files

    def _settings(self) -> dict[str, Any]:
        """The source's config.json, with an output matrix beside the embedding."""
        return {**json.loads(self._source.side_files()["config.json"]), "tie_word_embeddings": False}

    def digest(self, progress: StageProgress = ignore) -> str:
        parts = [self._source.digest(progress)]
        parts += [f"{digest_files(list(one.files), progress)} {strength!r}" for one, strength in self.adapters]
        return f"sha256:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"

    def check_unchanged(self) -> None:
        self._source.check_unchanged()
        for path, before in zip(self._files, self._stamps, strict=True):
            if stamp(path) != before:
                raise InvalidModel(f"`{shown(path)}` changed during the import; import it again")

    @property
    def _files(self) -> list[Path]:
        return [path for adapter, _ in self.adapters for path in adapter.files]

    def close(self) -> None:
        for adapter, _ in self.adapters:
            adapter.close()
        self._source.close()

    def __enter__(self) -> AdaptedSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AdaptedPackedSource(AdaptedSource):
    """The same of a source whose weights somebody else has quantized."""

    def __init__(self, source: Source, adapters: Sequence[tuple[Adapter, float]]) -> None:
        super().__init__(source, adapters)
        assert isinstance(source, PackedSource)
        self.quantization, self.nbytes, self.bits_per_weight = source.quantization, source.nbytes, source.bits_per_weight


def adapted(source: Source, adapters: Sequence[tuple[Adapter, float]]) -> AdaptedSource:
    """``source`` with ``adapters`` merged; see `AdaptedSource`."""
    kind = AdaptedPackedSource if isinstance(source, PackedSource) else AdaptedSource
    return kind(source, adapters)


def check_mergeable(source: Source) -> None:
    """Raise `UnsupportedModel` where the source's integers are taken over as they are."""
    modules = (name.removesuffix(".weight") for name in source.names())
    if isinstance(source, QuantizedSource) and any(source.static_scale(module) is not None for module in modules):
        raise UnsupportedModel(
            f"`{shown(source.path)}` is quantized to integers that are taken over as they are, so nothing can be merged into "
            "it: import the float model with --lora"
        )


def _unties(adapter: Adapter) -> bool:
    """Whether the embedding and the output matrix, which were one, are two behind ``adapter``."""
    changed = {EMBEDDING, OUTPUT} & adapter.changes.keys()
    return OUTPUT in changed if adapter.ties and EMBEDDING not in changed else bool(changed) and not adapter.ties


def refuse_unknown(what: str, where: str, base: str, model: AdapterBase) -> InvalidModel:
    """The error for ``what`` an adapter changes and ``model`` does not have; ``base`` is the model that it was made for."""
    way_out = f"it was made for `{shown(base)}`: give that model" if base else "give the model that it was made for"
    return InvalidModel(f"{where} changes `{shown(what)}`, which `{shown(model.path)}` does not have; {way_out}")


def refuse_shape(
    what: str, found: Sequence[int], wanted: Sequence[int], where: str, base: str, model: AdapterBase
) -> InvalidModel:
    """The error for the tensor ``what`` of an adapter that is of another shape than ``model`` wants."""
    way_out = f"it was made for `{shown(base)}`: give that model" if base else "give the model that it was made for"
    return InvalidModel(f"{where}: `{shown(what)}` is {list(found)}, and `{shown(model.path)}` wants {list(wanted)}; {way_out}")
