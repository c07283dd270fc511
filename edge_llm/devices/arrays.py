"""Where the arrays of a model lie, and those in the host's memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np

from edge_llm.devices.base import Buffers, Room, Rows
from edge_llm.devices.kv_pages import MakeArray, PagedKV
from edge_llm.kv.states import LEAST_SLOTS
from edge_llm.operations.layer import Layer


class Arrays(Protocol):
    """Where the arrays of a model lie, and how they get there."""

    head_rows: int
    """Rows whose logits are computed at once, at most."""

    def buffers(self, rows: int, widths: Mapping[str, int]) -> Buffers:
        """Float32 [rows, width] by their names, for as long as the model is open."""
        ...

    def pages(self, layers: Sequence[Layer], room: Room) -> PagedKV:
        """What ``layers`` keep of as many tokens and states as ``room`` says, or more."""
        ...

    def workspace(self) -> AbstractContextManager[MakeArray]:
        """Makes arrays that are gone afterwards; they hold anything."""
        ...

    def rows(self, slot: int, rows: Rows) -> Rows:
        """``rows`` as subgraphs find them; those of the same ``slot`` are not used any more."""
        ...

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """``array``, which was made in a workspace, for the host to keep."""
        ...

    def launch(self) -> AbstractContextManager[None]:
        """Stands around what is sent to the device in one go."""
        ...


class HostArrays:
    """Arrays in the host's memory."""

    head_rows = sys.maxsize

    def buffers(self, rows: int, widths: Mapping[str, int]) -> Buffers:
        return {name: np.zeros((rows, width), np.float32) for name, width in widths.items()}

    def pages(self, layers: Sequence[Layer], room: Room) -> PagedKV:
        fixed = [layer.fixed for layer in layers]
        slots = max(room.states, LEAST_SLOTS) if any(fixed) else 0
        attentions = [layer.attention if layer.attentions else None for layer in layers]
        return PagedKV(attentions, room.tokens, fixed=fixed, slots=slots)

    def workspace(self) -> AbstractContextManager[MakeArray]:
        return nullcontext(np.empty)

    def rows(self, slot: int, rows: Rows) -> Rows:
        return rows

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array

    def launch(self) -> AbstractContextManager[None]:
        return nullcontext()
