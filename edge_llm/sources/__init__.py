"""Models as somebody published them, one file per kind: config, float tensors, tokenizer, template and digest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from edge_llm.formats.gguf import is_gguf
from edge_llm.progress import StageProgress, ignore
from edge_llm.sources import gguf, hubs, modelslim, quantized
from edge_llm.sources.base import Source
from edge_llm.sources.lora_places import Wish, with_adapters

__all__ = ["Source", "add_source", "open_source"]


class SourceFile(Protocol):
    """What `add_source` takes."""

    def claims(self, source: str) -> bool:
        """Whether ``source`` (a path or an id) names a model of this kind."""
        ...

    @property
    def open(self) -> Callable[..., Source]:
        """``(source, *, revision, progress) -> Source``."""
        ...


_ADDED: list[SourceFile] = []


def open_source(
    source: str | Path,
    *,
    revision: str | None = None,
    progress: StageProgress = ignore,
    notice: Callable[[str], None] = ignore,
    lora: Sequence[Wish] = (),
) -> Source:
    """Open the model that ``source`` names, as `edge_llm.sources.place.place_of` reads it; what is on the hub is downloaded.

    ``notice`` is told where that cannot be reached and the Hugging Face cache is used, and what of the model is left out.
    lora: adapters that are merged.
    Raises `ModelNotFound`, `UsageError`, `InvalidModel`, `UnsupportedModel`, `HubError` or `StorageError`.
    """
    opened = _open(source, revision, progress, notice)
    return opened if not lora else with_adapters(opened, lora, progress, notice)


def _open(source: str | Path, revision: str | None, progress: StageProgress, notice: Callable[[str], None]) -> Source:
    kind = next((one for one in _ADDED if one.claims(str(source))), None)
    if kind is not None:
        return kind.open(source, revision=revision, progress=progress)
    named, path, place = hubs.find_folder(source, revision, progress, notice)
    if is_gguf(place):
        return gguf.GgufSource(named, path, place)
    opened_as = modelslim.ModelSlimSource if modelslim.describes(place) else quantized.open_folder
    opened = opened_as(named, path, place)
    for line in opened.told:
        notice(line)
    return opened


def add_source(kind: SourceFile) -> None:
    """Have the models that ``kind`` claims opened by it, a module or object that is not a file of this folder."""
    _ADDED.append(kind)
