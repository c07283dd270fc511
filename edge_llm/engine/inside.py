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
from edge_llm.engine.memory_roof import memory_rate
from edge_llm.engine.model_facts import ModelFacts
from edge_llm.runner.inside import Lane, LaneSpan, LastPrompt, PageMap, RunnerInside, Work

if TYPE_CHECKING:
    from edge_llm.engine.engine import Engine
    from edge_llm.weights.base import FlashCounts

__all__ = ["Inside", "Lane", "LaneSpan", "LastPrompt", "ModelFacts", "PageMap", "ProcessMemory", "Work", "look"]


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
    step: Work | None = None
    """Some steps of the last answer; None where not the host does all of it."""
    experts: FlashCounts | None = None
    """What became of experts that come from flash; None where none do."""
    memory_rate: float | None = None
    """Bytes a second that main memory can be read at; None until it is measured."""

    @property
    def memory_tokens(self) -> float | None:
        """Tokens a second that one answer had at most if a step only read its weights, keys and values from main memory."""
        if self.step is None or not self.memory_rate or self.streamed_bytes or not self.step.bytes:
            return None
        return self.memory_rate * self.step.runs / self.step.bytes

    @property
    def kv_bytes(self) -> int | None:
        """Bytes of the keys and values that are held."""
        return None if self.pages is None else (len(self.pages.states) - self.pages.count("free")) * self.pages.page_bytes


def look(engine: Engine) -> Inside:
    """``engine`` as it is now."""
    runner: RunnerInside = engine.runner.look()
    running, waiting = engine.driver.running, engine.driver.waiting
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
        running=running,
        waiting=waiting,
        step=runner.step,
        experts=runner.experts,
        memory_rate=_memory_rate(engine, idle=not running and not waiting) if runner.step is not None else None,
    )


def _memory_rate(engine: Engine, *, idle: bool) -> float | None:
    pool = engine.runner.pool
    return None if pool is None else memory_rate(pool.threads, lambda: engine.counters.requests, idle=idle)


@functools.lru_cache(maxsize=1)
def _memory(second: int) -> ProcessMemory:
    """As it was when it was asked for first in this ``second``: the system takes longer to say it than all else."""
    import psutil  # slow to import

    machine = psutil.virtual_memory()
    return ProcessMemory(psutil.Process().memory_info().rss, machine.total, machine.available)
