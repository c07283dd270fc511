"""The sizes that options name become bytes, once: here, and nowhere else in an opening."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_llm.config import RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.progress import byte_size
from edge_llm.resources import free_memory
from edge_llm.weights.budget import MAX_BYTES, parse_disk, parse_memory


@dataclass(frozen=True)
class Budgets:
    """What options allow, in bytes; None: no limit was named."""

    weights: int | None
    """Of main memory, for weights."""
    pages: int | None
    """Of main memory, for keys and values."""
    card: int | None
    """Of a card's memory."""
    disk: int
    """For pages that are kept for the next start; 0: none are kept."""

    def less(self, nbytes: int) -> Budgets:
        """The same without ``nbytes`` of main memory that something else beside the weights takes."""
        return self if self.weights is None else replace(self, weights=self.weights - nbytes)


def read_budgets(options: RuntimeConfig, memory: int, weights: int) -> Budgets:
    """The sizes that ``options`` name, on a machine of ``memory`` bytes, for a model of ``weights`` bytes.

    Raises `UsageError` for what is no size.
    """
    return Budgets(
        None if options.memory is None else parse_memory(options.memory, weights),
        None if options.kv_memory is None else parse_memory(options.kv_memory, memory, "kv_memory", of="main memory"),
        card_budget(options),
        parse_disk(options.prefix_cache or "0"),
    )


def check_sizes(options: RuntimeConfig) -> None:
    """Raise `UsageError` for sizes of ``options`` that are none, whatever the model and the machine."""
    read_budgets(options, MAX_BYTES, MAX_BYTES)


def card_budget(options: RuntimeConfig) -> int | None:
    """Bytes of a card's memory that a model may take, and all models of a process together; None where ``options`` do not say.

    Raises `UsageError` for what is no size.
    """
    return None if options.card_memory is None else parse_memory(options.card_memory, None, "card_memory")


def models_budget(text: str) -> int:
    """Bytes of main memory that all models of a process may take, by what ``text`` says of those that are free now.

    Raises `UsageError` for what is no size, and for more than is free.
    """
    free = free_memory()
    budget = parse_memory(text, free, "models_memory", of="the memory that is free")
    if budget > free:
        raise UsageError(
            f"--models-memory {text} is {byte_size(budget)}, of which {byte_size(free)} are free; give at most 100%",
            param="models_memory",
        )
    return budget
