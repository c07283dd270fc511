"""A card's own memory: arrays that only the card may touch, allocated and counted, filled and read by explicit copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, local
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from edge_llm.ascend.npu.chips import ChipLaw
from edge_llm.errors import DeviceError


class CardArray:
    """An array in card memory: it has a shape and a type, and no values that the host could read.

    Only the card's own operators use ``values``; everybody else copies.
    """

    def __init__(self, values: np.ndarray, allocated: int) -> None:
        self.values = values
        self.allocated = allocated
        """Bytes that the allocator took for it."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def view(self, part: Any = ...) -> CardArray:
        """``part`` of the same values; the memory stays this array's."""
        return CardArray(self.values[part], 0)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise DeviceError(f"{self!r} lies on the card; copy it to the host first")

    def __repr__(self) -> str:
        return f"CardArray(shape={self.shape}, dtype={self.dtype})"


class CardMemory:
    """Allocates card arrays up to a ceiling, the chip's or a lower one; threads may share it.

    ``held`` bytes are taken now, ``peak`` were at most.  Weights may take all; see `weights_are_in`.
    """

    def __init__(self, law: ChipLaw, ceiling: int | None = None) -> None:
        self._lowered = law.memory_bytes if ceiling is None else ceiling
        self.ceiling = min(self._lowered, law.memory_bytes)
        self.held = 0
        self.peak = 0
        self.copied_in = 0
        """Bytes copied from the host so far; ``copied_out`` to it."""
        self.copied_out = 0
        self._law = law
        self._lock = Lock()
        self._thread = local()

    def most(self, weights: int) -> int:
        """Bytes that arrays may take in all, ``weights`` bytes of weights that lie there for good among them."""
        return min(self._lowered, self._law.ceiling(weights))

    def weights_are_in(self) -> None:
        """From now on, a share of what the weights left free stays with graphs and with workspaces of operators."""
        self.ceiling = self.most(self.held)

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> CardArray:
        """A zeroed array.  Raises `DeviceError` when it does not fit below the ceiling; nothing is held then."""
        dtype = np.dtype(dtype)
        wanted = self._law.allocation(int(np.prod(shape)) * dtype.itemsize)
        with self._lock:
            if self.held + wanted > self.ceiling:
                raise DeviceError(
                    f"out of memory on {self._law.soc}: `{wanted}` bytes wanted, {self.held} held, "
                    f"ceiling {self.ceiling}; use a smaller chunk or context, or stream layers: --card-memory"
                )
            self.held += wanted
            self.peak = max(self.peak, self.held)
        array = CardArray(np.zeros(shape, dtype), wanted)
        made = self._made
        if made is not None:
            made.append(array)
        return array

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Where an error ends the block, all that the calling thread allocated in it is freed."""
        outer = self._made
        self._thread.made = made = list[CardArray]()
        try:
            yield
        except BaseException:
            for array in made:
                self.free(array)
            raise
        finally:
            self._thread.made = outer
        if outer is not None:
            outer += made

    @property
    def _made(self) -> list[CardArray] | None:
        """What the calling thread allocated in the innermost `all_or_nothing` so far; None outside."""
        made: list[CardArray] | None = getattr(self._thread, "made", None)
        return made

    def free(self, array: CardArray) -> None:
        """Give the memory of ``array`` back; it must not be used again."""
        with self._lock:
            self.held -= array.allocated
        array.allocated = 0
        array.values = np.empty(0, array.dtype)

    def copy_in(self, host: np.ndarray, card: CardArray) -> None:
        """Copy a host array into the first rows, and of those the first columns, of ``card``; types must be equal."""
        part = self._corner(card, host, "into")
        part[...] = host
        with self._lock:
            self.copied_in += host.nbytes

    def copy_out(self, card: CardArray, host: np.ndarray) -> None:
        """Copy the first rows, and of those the first columns, of ``card`` into a host array; types must be equal."""
        part = self._corner(card, host, "out of")
        host[...] = part
        with self._lock:
            self.copied_out += host.nbytes

    def upload(self, host: np.ndarray, shape: tuple[int, ...] | None = None) -> CardArray:
        """A new card array of ``shape`` (the host array's own if None) that begins with ``host``, zeros behind."""
        card = self.allocate(shape or host.shape, host.dtype)
        self.copy_in(host, card)
        return card

    def taken(self, values: np.ndarray) -> np.ndarray:
        """A copy for the host of ``values`` that operators of the card made."""
        with self._lock:
            self.copied_out += values.nbytes
        return values.copy()

    def given(self, values: np.ndarray) -> np.ndarray:
        """A copy for operators of the card of ``values`` of the host."""
        with self._lock:
            self.copied_in += values.nbytes
        return values.copy()

    def renewed(self, card: CardArray | None, host: np.ndarray) -> CardArray:
        """``host`` on the card: over ``card`` if that has its type and shape, else in new memory and ``card`` is freed."""
        if card is not None and card.shape == host.shape and card.dtype == host.dtype:
            self.copy_in(host, card)
            return card
        if card is not None:
            self.free(card)
        return self.upload(host)

    @staticmethod
    def _corner(card: CardArray, host: np.ndarray, way: str) -> np.ndarray:
        if isinstance(host, CardArray) or not isinstance(card, CardArray):
            raise DeviceError(f"a copy is between the host and the card, not {type(host).__name__} {way} {type(card).__name__}")
        if host.dtype != card.dtype or host.ndim != len(card.shape):
            raise DeviceError(f"cannot copy {host.dtype} {list(host.shape)} {way} {card!r}: another type or rank")
        if any(small > large for small, large in zip(host.shape, card.shape, strict=True)):
            raise DeviceError(f"cannot copy {host.dtype} {list(host.shape)} {way} {card!r}: it does not fit")
        return card.values[tuple(slice(0, length) for length in host.shape)]
