"""The static range of every channel of keys and values, for INT8 keys: the largest that a sample of tokens shows.

The sample is drawn from the whole vocabulary by a fixed seed, and as long in any context, so the ranges of a model are always
the same: keys of other ranges are other numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_llm.ascend.devices.card.model import CardModel
from edge_llm.devices.base import Chunk, Room, Rows, static_length

SAMPLE = 512
"""Tokens."""


def sample_room(room: Room) -> Room:
    """The room that a sample needs."""
    return replace(room, tokens=SAMPLE, positions=SAMPLE, window=1)


def seen_ranges(model: CardModel, room: Room) -> list[np.ndarray]:
    """Of every layer float32 [2, KV * D]: the largest key and value of each channel, over a sample that ``model`` computes."""
    tokens = np.random.default_rng(0).integers(0, model.decoder.vocab_size, room.tokens).astype(np.int64)
    for first in range(0, room.tokens, room.lengths[-1]):
        _compute(model, _chunk(tokens, first, model, room))
    return model.keys.largest()


def _compute(model: CardModel, chunk: Chunk) -> None:
    """Carry ``chunk`` through all layers; those that are streamed come one by one."""
    model.walk(range(1), chunk)()
    for layer in range(len(model.decoder.layers)):
        model.weights.request(layer)
        model.weights.wait(layer)
        model.walk(range(layer + 1, layer + 2), chunk)()


def _chunk(tokens: np.ndarray, first: int, model: CardModel, room: Room) -> Chunk:
    """The ``tokens`` from ``first`` on of one sequence, which has all pages in order."""
    at = np.arange(first, min(first + room.lengths[-1], len(tokens)))
    table = np.arange(model.keys.count, dtype=np.int32)[None]
    sequence, position = np.zeros(len(at), np.int32), at.astype(np.int32)
    rows = Rows(static_length(len(at), room.lengths), tokens[at], sequence, position, at, table)
    nothing = np.empty(0, np.int64)
    return Chunk(0, rows, nothing, nothing)
