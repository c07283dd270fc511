"""What a plan knows of the adapters of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge_llm.weights.adapters import Adapters

if TYPE_CHECKING:
    from edge_llm.text.chat import ChatTemplate


@dataclass(frozen=True)
class NamedAdapter:
    """One that requests may name."""

    name: str
    template: ChatTemplate | None
    """The chat template that it was trained with, where that is another than the model's."""


@dataclass(frozen=True)
class OpenAdapters:
    """The adapters of a model in memory, in the order of their numbers."""

    named: tuple[NamedAdapter, ...]
    ready: Adapters
    nbytes: int
    notices: tuple[str, ...] = ()
    """What a person should know of them."""
