"""How a card keeps keys and values, and which operators write and read them.

float16 through ATB's paged attention, whose lengths are arrays of the card or are told to a graph, so that steps can be
recorded; or INT8 under static scales of every channel through `npu_incre_flash_attention`, whose lengths the host gives,
operator by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edge_llm.ascend.devices.card.inputs import Inputs
from edge_llm.ascend.npu.calls import MASKED, Calls, causal_mask
from edge_llm.ascend.npu.law import most_int8_rows
from edge_llm.ascend.npu.runtime import Runtime, run
from edge_llm.devices.base import Rows
from edge_llm.operations.attention import Attention

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 1.25
"""Of a channel's static range over the largest value that was seen."""


@dataclass(frozen=True)
class LayerKeys:
    """One layer's keys and values on the card, and its number."""

    index: int
    keys: Tensor
    values: Tensor


class Attend(Protocol):
    """Attention of query float16 [T, H, D] over a layer's keys, which have those of these rows: float16 [T, H, D]."""

    def __call__(self, query: Tensor, keys: LayerKeys, attention: Attention) -> Tensor: ...


class KeyForm(Protocol):
    """One way to keep keys and values."""

    dtype: Any
    in_fractals: bool
    """Whether caches are [blocks, KV * D / 16, tokens, 16] in the chip's own format, and not [blocks, tokens, KV * D]."""
    records: bool
    """Whether a graph can be recorded of steps."""
    host_lengths: bool
    """Whether a graph is told the lengths of every step, which it does not read from the card."""

    def cache(self, attention: Attention, blocks: int) -> Tensor:
        """The keys, or the values, of a layer in ``blocks`` blocks: zeros; inside of work."""
        ...

    def slots(self, inputs: Inputs, count: int) -> Any:
        """Where `write` puts ``count`` rows, as it wants to know it."""
        ...

    def write(self, layer: LayerKeys, key: Tensor, value: Tensor, slots: Any) -> None:
        """Put key and value float16 [T, KV, D] into the T ``slots``, which `slots` gave."""
        ...

    def chunk(self, rows: Rows, inputs: Inputs) -> Attend:
        """Attention of the ``rows`` of a prompt; fills lengths and table of ``inputs``."""
        ...

    def step(self, inputs: Inputs, lengths: Sequence[int]) -> Attend:
        """Attention of rows of which each has its own length and table in ``inputs``; the host has the ``lengths`` too."""
        ...


def fill_rows(rows: Rows, inputs: Inputs) -> None:
    """Lengths and table of every row."""
    inputs.host("lengths")[: rows.count] = rows.position + 1
    inputs.host("table")[: rows.count, : rows.page_table.shape[1]] = rows.page_table[rows.sequence]


def put_rows(target: Tensor, places: Any, rows: Tensor) -> None:
    """Put ``rows`` into ``target`` at ``places``, an array of the card or of the host; inside of work.

    Where the host has them, neighbours go together, and of rows for one place the last.
    """
    import torch

    if isinstance(places, torch.Tensor):
        target.index_copy_(0, places.to(torch.int64), rows)
        return
    for first, stop, place in _runs(places):
        target[place : place + stop - first].copy_(rows[first:stop])


def _runs(places: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """From which row to which, and the place of the first: of rows that have places one behind the other."""
    steps = np.diff(places)
    replaced = np.append(steps == 0, False)  # by the next row
    begins = np.append(True, steps != 1)
    starts = np.flatnonzero(begins)
    for first, stop in zip(starts, np.append(starts[1:], len(places)), strict=True):
        if not replaced[first]:
            yield int(first), int(stop), int(places[first])


class Float16Keys:
    """Float16 through ATB."""

    records = True

    def __init__(self, runtime: Runtime, calls: Calls) -> None:
        import torch

        self.dtype = torch.float16
        self.in_fractals = calls.law.keys_are_nz
        self.host_lengths = calls.law.host_lengths
        self._torch = torch
        self._runtime = runtime
        self._calls = calls
        self._mask = run(runtime, lambda: causal_mask().to(runtime.device)) if calls.has_one_mask else None

    def cache(self, attention: Attention, blocks: int) -> Tensor:
        shape = self._calls.law.cache_shape(blocks, attention.kv_heads, attention.head_dim)
        zeros = self._torch.zeros(shape, dtype=self.dtype, device=self._runtime.device)
        return self._calls.to_nz(zeros) if self.in_fractals else zeros

    def slots(self, inputs: Inputs, count: int) -> Tensor:
        return inputs.card("slots")[:count]

    def write(self, layer: LayerKeys, key: Tensor, value: Tensor, slots: Tensor) -> None:
        self._calls.write_keys(key, value, layer.keys, layer.values, slots)

    def chunk(self, rows: Rows, inputs: Inputs) -> Attend:
        starts = np.flatnonzero(np.diff(rows.sequence, prepend=-1))
        ends = np.append(starts[1:], rows.count)
        count = len(starts)
        inputs.host("lengths")[:count] = rows.position[ends - 1] + 1
        inputs.host("table")[:count, : rows.page_table.shape[1]] = rows.page_table[rows.sequence[starts]]
        query_lengths = self._torch.from_numpy((ends - starts).astype(np.int32))
        table, lengths = inputs.card("table")[:count], self._lengths(inputs, inputs.host("lengths")[:count])
        longest = int(rows.position.max()) + 1
        mask = self._mask_of(inputs.card("positions")[: rows.count], longest)

        def attend(query: Tensor, keys: LayerKeys, attention: Attention) -> Tensor:
            return self._calls.attend_chunk(
                query, keys.keys, keys.values, attention.kv_heads, table, lengths, mask(), query_lengths
            )

        return attend

    def step(self, inputs: Inputs, lengths: Sequence[int]) -> Attend:
        table, seen = inputs.card("table"), self._lengths(inputs, lengths)

        def attend(query: Tensor, keys: LayerKeys, attention: Attention) -> Tensor:
            return self._calls.attend(query, keys.keys, keys.values, attention.kv_heads, table, seen)

        return attend

    def _lengths(self, inputs: Inputs, lengths: Sequence[int] | np.ndarray) -> Tensor:
        """The lengths of ``inputs`` int32, of which the host knows the first, where the attention wants them."""
        if self.host_lengths:
            return self._torch.from_numpy(np.array(lengths, np.int32))
        return inputs.card("lengths")[: len(lengths)]

    def _mask_of(self, positions: Tensor, longest: int) -> Callable[[], Tensor]:
        """Gives the mask of rows at ``positions``, which is made once; inside of work."""
        made = [] if self._mask is None else [self._mask]

        def mask() -> Tensor:
            if not made:
                tokens = self._torch.arange(longest, dtype=self._torch.int32).to(self._runtime.device)
                made.append((tokens[None] > positions[:, None]).to(self._torch.float16) * MASKED)
            return made[0]

        return mask


class Int8Keys:
    """INT8 under the static ``ranges`` of every layer: float32 [2, KV * D], the largest key and value of each channel."""

    records = False
    in_fractals = False
    host_lengths = False

    def __init__(self, runtime: Runtime, calls: Calls, ranges: Sequence[np.ndarray]) -> None:
        import torch

        self.dtype = torch.int8
        self._torch = torch
        self._runtime = runtime
        self._calls = calls
        self._scales: list[Tensor] = []
        self._reciprocals: list[Tensor] = []
        scales = [np.maximum(one * MARGIN / 127, 1e-6).astype(np.float16) for one in ranges]
        run(runtime, lambda: self._upload(scales))

    def cache(self, attention: Attention, blocks: int) -> Tensor:
        shape = (blocks, self._calls.law.page_tokens, attention.kv_size)
        return self._torch.zeros(shape, dtype=self.dtype, device=self._runtime.device)

    def slots(self, inputs: Inputs, count: int) -> Any:
        if self._calls.copies_by_index:
            return inputs.card("slots")[:count]
        return inputs.host("slots")[:count].copy()

    def write(self, layer: LayerKeys, key: Tensor, value: Tensor, slots: Any) -> None:
        for rows, cache, reciprocal in zip(
            (key, value), (layer.keys, layer.values), self._reciprocals[layer.index], strict=True
        ):
            wide = rows.reshape(len(rows), -1).to(self._torch.float32)
            quantized = self._calls.quantize(wide, reciprocal)
            put_rows(cache.view(-1, cache.shape[2]), slots, quantized)

    def chunk(self, rows: Rows, inputs: Inputs) -> Attend:
        fill_rows(rows, inputs)
        return self._attend(inputs, (rows.position + 1).tolist())

    def step(self, inputs: Inputs, lengths: Sequence[int]) -> Attend:
        return self._attend(inputs, lengths)

    def _attend(self, inputs: Inputs, lengths: Sequence[int]) -> Attend:
        table = inputs.card("table")[: len(lengths)]
        most = most_int8_rows(self._calls.law)
        pieces = [slice(begin, begin + most) for begin in range(0, len(lengths), most)]

        def attend(query: Tensor, keys: LayerKeys, attention: Attention) -> Tensor:
            cached = keys.keys, keys.values, attention.kv_heads
            scales = self._scales[keys.index]
            found = [self._calls.attend_int8(query[at], *cached, table[at], lengths[at], scales) for at in pieces]
            return found[0] if len(found) == 1 else self._torch.cat(found)

        return attend

    def _upload(self, scales: Sequence[np.ndarray]) -> None:
        device = self._runtime.device
        self._scales = [self._torch.from_numpy(one).to(device) for one in scales]
        self._reciprocals = [self._torch.from_numpy(1 / one.astype(np.float32)).to(device) for one in scales]
