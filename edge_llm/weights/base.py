"""The interface of weights, the same for those in memory, on flash, and on a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol, Self

import numpy as np

from edge_llm.kernels.range_reader import Reading
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.tables import Table

EMBEDDING, OUTPUT = "embedding", "output"
"""The tables: blocks of a bundle that may stay on flash."""
SLOTS = 2
"""Buffers for streamed layers, on the host and on a card: one is used while the other is filled.  A third would take the memory
of a resident layer."""


@dataclass(frozen=True)
class Turn:
    """A streamed layer in a step."""

    layer: int
    """Its number."""
    weights: BlockWeights
    """Valid once its read has ended well."""
    read: Reading
    """Brings them into their buffer."""
    checksums: np.ndarray
    """What a read that ended well gives: uint32 [pieces]."""
    after: Reading
    """Brings the layer that takes this buffer next: it may begin when this layer has been used."""


class Turns(Protocol):
    """The streamed layers of one step, for a program that awaits and begins their reads itself."""

    @property
    def layers(self) -> Mapping[int, Turn]:
        """By their numbers, ascending.  They never change, so one program serves all steps of the same turns."""
        ...

    def lend(self) -> None:
        """From now on the program awaits and begins the reads of `layers`."""
        ...

    def give_back(self, layer: int | None) -> None:
        """The program has stopped before ``layer``, or has ended where that is None.

        The layers that it has begun to read are in their buffers or on their way.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class FlashCounts:
    """What became of parts of layers that come from flash."""

    NAME: ClassVar[str]
    """What one of them is called."""

    used: int = 0
    """Those that steps used: one counts once a step of a layer, for all rows."""
    read: int = 0
    """Of these, how many were not in memory by what the policy keeps; some of them came early, on a guess."""
    tokens: int = 0
    """Rows that went through the model."""
    read_bytes: int = 0
    """All bytes that were read from flash, those of tables included."""

    def __sub__(self, before: Self) -> Self:
        """What came after ``before``."""
        return type(self)(**{name: count - getattr(before, name) for name, count in asdict(self).items()})

    @property
    def guessed(self) -> tuple[int, int] | None:
        """Of how many that were used for which there was a guess it had named how many; None where nobody guesses."""
        return None

    @property
    def facts(self) -> dict[str, float | None]:
        """As plain data for faces: the counts, and the rates that follow, None where nothing was counted."""
        return {
            **{f"{self.NAME}_{name}": count for name, count in asdict(self).items()},
            f"{self.NAME}_hit_rate": 1 - self.read / self.used if self.used else None,
            "flash_bytes_per_token": self.read_bytes / self.tokens if self.tokens else None,
        }


@dataclass(frozen=True, kw_only=True)
class NeuronCounts(FlashCounts):
    """What became of runs of neurons."""

    NAME: ClassVar[str] = "neuron"


@dataclass(frozen=True, kw_only=True)
class ExpertCounts(FlashCounts):
    """What became of experts."""

    NAME: ClassVar[str] = "expert"

    named: int = 0
    """Experts that guesses named, in memory or not."""
    needed: int = 0
    """Experts that the steps used for which there was a guess."""
    recalled: int = 0
    """Of these, how many the guess had named."""
    fetched: int = 0
    """Experts whose reads began on a guess."""
    right: int = 0
    """Of these, how many the next step of their layer used."""
    vain_bytes: int = 0
    """Bytes that were read of the others."""

    @property
    def guessed(self) -> tuple[int, int]:
        return self.recalled, self.needed

    @property
    def facts(self) -> dict[str, float | None]:
        return super().facts | {"expert_guess_rate": self.recalled / self.needed if self.needed else None}


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of weights, as the bundle has them, that one generated token or one window of a prompt takes from each place."""

    card: int = 0
    host: int = 0
    """Where a card computes, this is copied to it out of main memory."""
    flash: int = 0
    """If all experts are as likely, where those come from flash."""

    @property
    def facts(self) -> dict[str, int]:
        """As plain data for faces."""
        return {f"{place}_bytes_per_token": count for place, count in asdict(self).items()}


class Weights(Protocol):
    """The weights of one model.

    A sweep over the layers requests and reads every streamed layer before it uses it.  Streamed layer j takes the memory of
    streamed layer j - slots, so the sweep requests it only after the last use of that one.
    """

    head: BlockWeights
    """The final norm and the output linear.  Its tiles or codes may lie on flash, so products take `head_blocks`."""
    streamed: tuple[int, ...]
    """Layers that are read, or copied to a card, before each use, ascending; () when all stay where they are used."""
    streamed_bytes: int
    """Bytes that one sweep and its logits read from flash; 0 when all weights are resident."""
    slots: int
    """Buffers that streamed layers take turns in; 0 when they need none, because none is streamed or the host has all."""
    hosted: Mapping[int, int]
    """Those of the streamed layers that stay in main memory as a card takes them, and their bytes in the bundle."""
    token_bytes: TokenBytes
    """What a token takes from each place."""

    @property
    def experts(self) -> FlashCounts | None:
        """What became of experts or neurons that come from flash, so far; None where none do.  Any thread may ask."""
        ...

    def use(self, index: int) -> BlockWeights:
        """Weights of decoder layer ``index``, which is resident or has been read."""
        ...

    def request(self, index: int) -> None:
        """Start to read streamed layer ``index`` in the background, unless it is in memory; returns at once."""
        ...

    def wait(self, index: int) -> None:
        """Wait until streamed layer ``index``, which was requested, is in memory and checked.

        Raises `StorageError` when the disk refuses, `CorruptBundle` when a checksum does not match.
        """
        ...

    def turns(self) -> Turns | None:
        """The turns of a step that begins now, for a program that reads the streamed layers itself.

        Starts to read the first of them.  None where the step must `request` and `wait` for each.
        """
        ...

    def host_part(self, index: int) -> BlockWeights:
        """What the host keeps of layer ``index``, which is in memory now, once a card has a copy of it."""
        ...

    def forget_layers(self) -> None:
        """Give back the memory that layers are read into, because none will be read again."""
        ...

    def forget_tables(self) -> None:
        """Give back the memory that runs of tables are read into, until one is read again."""
        ...

    def embedding_blocks(self) -> Iterator[tuple[slice, Table]]:
        """The embedding in runs of rows: (rows, the weight that has them), each valid until the next is taken.

        Raises the errors of `wait` when it lies on flash.
        """
        ...

    def embedding_rows(self, tokens: np.ndarray) -> tuple[Table, np.ndarray]:
        """A linear whose rows include the embeddings of ``tokens`` (int64 [M]), and the numbers of these rows (int64 [M]).

        Raises the errors of `wait` when the embedding lies on flash.
        """
        ...

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        """The final norm and the output linear in runs of output rows: (rows, head of these rows), each valid until the next.

        Raises the errors of `wait` when the output matrix lies on flash.
        """
        ...

    @property
    def flash_tables(self) -> frozenset[str]:
        """Which of `EMBEDDING` and `OUTPUT` lie on flash, so that every look-up or every product reads them."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weights hold."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes that were read from flash since all that is resident was there.  Any thread may ask."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Bytes of the bundle's hosted layers that were copied to a card for steps.  Any thread may ask."""
        ...
