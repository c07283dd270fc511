"""What goes on inside an engine at a moment, as plain data for faces that show it.

    inside = look(engine)      # in any thread, a few times a second, while others run its steps

A look reads numbers that are counted anyway.  It takes no lock that a step holds, so it may see a step half done: a page that
is changing hands, a token that is counted and not yet told.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from edge_llm.engine.counters import Counters
from edge_llm.quant.shadow import NONE
from edge_llm.runner.inside import Lane, LaneSpan, LastPrompt, PageMap, RunnerInside

if TYPE_CHECKING:
    from edge_llm.config import RuntimeConfig
    from edge_llm.engine.engine import Engine
    from edge_llm.formats.bundle import Bundle

__all__ = ["Inside", "Lane", "LaneSpan", "LastPrompt", "ModelFacts", "PageMap", "ProcessMemory", "look", "model_facts"]


@dataclass(frozen=True)
class ModelFacts:
    """What stays as it is as long as a model is loaded."""

    hot_channels: int = 0
    """Input channels that are computed in float beside the INT8 products, over all linears."""
    shadowed_linears: int = 0
    """Linears that add back what INT8 does not hold: hot channels, or what overflows, or both."""
    linears: int = 0
    budget: int | None = None
    """Bytes that weights may take; None: no limit."""


class ProcessMemory(NamedTuple):
    """Bytes of main memory."""

    resident: int
    """Of this process."""
    total: int
    """Of the machine."""
    available: int
    """What could still be taken."""


@dataclass(frozen=True)
class Inside:
    """An engine at one moment.  None: nobody counts it there, or there has been nothing yet."""

    prompt: LastPrompt | None
    """The lanes of the prompt that was computed last."""
    pages: PageMap | None
    prefix_disk: Mapping[str, int]
    """Pages that the prefix cache on disk read, wrote, ...; empty when it is off."""
    counters: Counters
    """Since the model was loaded."""
    preemptions: int
    facts: ModelFacts
    overflow: int | None
    """Activation values that overflowed INT8 so far and were added back."""
    clipped: int
    """Those that a card cut off in prompts so far."""
    weight_bytes: int | None
    streamed_bytes: int
    """Bytes that each token reads from flash by the plan."""
    read_bytes: int
    """Bytes that were read from flash so far."""
    memory: ProcessMemory
    running: int
    waiting: int

    @property
    def kv_bytes(self) -> int | None:
        """Bytes of the keys and values that are held."""
        return None if self.pages is None else (len(self.pages.states) - self.pages.count("free")) * self.pages.page_bytes


def look(engine: Engine) -> Inside:
    """``engine`` as it is now."""
    runner: RunnerInside = engine.runner.look()
    return Inside(
        prompt=runner.prompt,
        pages=runner.pages,
        prefix_disk=runner.prefix_disk,
        counters=replace(engine.counters),
        preemptions=engine.batcher.preempted,
        facts=engine.facts,
        overflow=runner.overflow,
        clipped=runner.clipped,
        weight_bytes=runner.weight_bytes,
        streamed_bytes=runner.streamed_bytes,
        read_bytes=runner.read_bytes,
        memory=_memory(int(time.monotonic())),
        running=engine.driver.running,
        waiting=engine.driver.waiting,
    )


def model_facts(bundle: Bundle, runtime: RuntimeConfig) -> ModelFacts:
    """The facts of the model in ``bundle`` as the filled-in ``runtime`` runs it."""
    from edge_llm.weights.budget import parse_memory
    from edge_llm.weights.plan import WeightSizes

    budget = None if runtime.memory is None else parse_memory(runtime.memory, WeightSizes.of_bundle(bundle).total)
    if runtime.float_path or not runtime.shadow:
        return ModelFacts(linears=len(bundle.facts), budget=budget)
    hot = sum(tensor.shape[0] for name, tensor in bundle.tensors.items() if name.endswith(".hot_index"))
    shadowed = sum(facts.get("shadow", NONE) != NONE for facts in bundle.facts.values())
    return ModelFacts(hot, shadowed, len(bundle.facts), budget)


@functools.lru_cache(maxsize=1)
def _memory(second: int) -> ProcessMemory:
    """As it was when it was asked for first in this ``second``: the system takes longer to say it than all else."""
    import psutil  # slow to import

    machine = psutil.virtual_memory()
    return ProcessMemory(psutil.Process().memory_info().rss, machine.total, machine.available)
