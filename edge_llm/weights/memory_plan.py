"""What a plan of a model's memory says: which layers are resident, and how many slots there are for parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_TABLES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ExpertSlots:
    """Memory for experts that come from flash."""

    quota: int
    """Experts of every layer that stay."""
    ahead: int
    """Slots beside these, for what is read on a guess and for what comes before another leaves."""
    slot_bytes: int
    """Bytes of a slot's buffer."""
    count: int
    """Experts of a layer."""
    slots: int
    """Of all layers, those ahead included."""
    sweep_bytes: int
    """Bytes that a window of a prompt reads, which wants all experts."""


@dataclass(frozen=True)
class NeuronSlots:
    """Memory for the columns of neurons that come from flash."""

    quota: int
    """Runs of every linear that stay: those that were active last."""
    slot_bytes: int
    """Bytes of a run."""
    count: int
    """Runs of a linear."""
    slots: int
    """Of all linears."""


@dataclass(frozen=True)
class MemoryPlan:
    """Which layers are resident and which are streamed."""

    budget: int
    """Bytes that weights may take."""
    resident: tuple[int, ...]
    """Layers that stay in memory, ascending."""
    streamed: tuple[int, ...]
    """Layers that are read from flash in every sweep over the model, ascending."""
    slots: int
    """Streamed layers that are in memory at a time; 0 when no layer is streamed."""
    slot_bytes: int
    """Bytes of one slot's buffer."""
    held_bytes: int
    """Bytes of memory that the weights take."""
    streamed_bytes: int
    """Bytes read from flash in one sweep; one generated token or one window of a prompt takes one sweep."""
    flash_tables: frozenset[str] = NO_TABLES
    """Which of the embedding and the output matrix stay on flash too."""
    experts: ExpertSlots | None = None
    """Where experts come from flash: every layer is resident but for them, and ``streamed_bytes`` is what a token reads if all
    experts are as likely."""
    neurons: NeuronSlots | None = None
    """The same where columns of neurons do: ``streamed_bytes`` is what a token reads if all neurons are as likely."""


@dataclass(frozen=True)
class StagingPlan:
    """How weights pass through the host on their way to a card, and what of them stays."""

    plan: MemoryPlan
    """No layer is resident; those that are streamed are read from flash whenever the card asks for them."""
    cold_bytes: int
    """Most memory for input channels that overflows wanted."""
    whole: bool
    """Whether the card has the output matrix as well."""
    hosted: tuple[int, ...] = ()
    """Layers that the card asks for as often, and that stay in main memory as it takes them, ascending."""
    hosted_bytes: int = 0
    """Bytes of main memory that these take; of what the plan holds."""


def layer_ranges(layers: Sequence[int]) -> str:
    """Layer numbers as people write them: ``0-3, 7``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1][-1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
