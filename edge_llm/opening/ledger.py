"""What the models of this process take of its memory, by name: who fits beside the others, and what is free when one goes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Protocol

from edge_llm.errors import OutOfMemory
from edge_llm.files import shown


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that an open model takes at most."""

    weights: int = 0
    """Weights in main memory; those that are streamed count with their buffers."""
    pages: int = 0
    """Keys and values in main memory, when all pages are in use."""
    work: int = 0
    """Activations in main memory, and the tables of positions."""
    card: int = 0
    """All that lies in the memory of a card."""
    texts: int = 0
    """The tokenizer in main memory, about."""
    states: int = 0
    """What layers keep in a fixed shape of running sequences and of checkpoints, in main memory, when all slots are in use."""
    adapters: int = 0
    """Adapters that requests may name, in main memory."""

    @property
    def main(self) -> int:
        """Bytes of main memory."""
        return self.weights + self.pages + self.states + self.work + self.texts + self.adapters

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """What takes main memory, in words, and its bytes."""
        first = ("weights", self.weights), ("keys and values", self.pages)
        states = [("states of sequences", self.states)] if self.states else []
        last = (("adapters", self.adapters),) if self.adapters else ()
        return *first, *states, ("activations", self.work), ("tokenizer", self.texts), *last

    def __add__(self, other: MemoryNeeds) -> MemoryNeeds:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return MemoryNeeds(*(one + another for one, another in pairs))


class Planned(Protocol):
    """What a claim is made for; a `Plan` is one."""

    @property
    def name(self) -> str: ...

    @property
    def memory(self) -> MemoryNeeds: ...


class Claim:
    """The memory that a ledger keeps for the model ``name``, until `release`; also a context."""

    def __init__(self, ledger: Ledger, name: str, needs: MemoryNeeds) -> None:
        self.name = name
        self.needs = needs
        self._ledger = ledger

    def release(self) -> None:
        """The model is gone, and its memory is free for others.  Calling it again changes nothing."""
        self._ledger._forget(self)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Ledger:
    """The memory of one process: at most ``main`` bytes of main memory and ``card`` bytes of a card's; None: no limit.

    Any thread may use it.
    """

    def __init__(self, main: int | None = None, card: int | None = None) -> None:
        self.main = main
        self.card = card
        self._claims: list[Claim] = []
        self._lock = threading.Lock()

    @property
    def taken(self) -> MemoryNeeds:
        """The sum of all claims."""
        return sum((claim.needs for claim in self._held()), MemoryNeeds())

    @property
    def claims(self) -> Mapping[str, MemoryNeeds]:
        """What each model has claimed, by name, the oldest first."""
        found: dict[str, MemoryNeeds] = {}
        for claim in self._held():
            found[claim.name] = found.get(claim.name, MemoryNeeds()) + claim.needs
        return found

    def fits(self, plan: Planned) -> bool:
        """Whether the model of ``plan`` has room beside those that are open."""
        with self._lock:
            return self._refusal(plan, self._claims) is None

    def ever_fits(self, plan: Planned) -> bool:
        """Whether the model of ``plan`` has room alone, after all others are gone."""
        return self._refusal(plan, []) is None

    def claim(self, plan: Planned) -> Claim:
        """Keep the memory that ``plan`` says for its model.

        Raises `OutOfMemory` that says what it takes and what is free, and keeps nothing then.
        """
        with self._lock:
            refusal = self._refusal(plan, self._claims)
            if refusal is not None:
                raise refusal
            claim = Claim(self, plan.name, plan.memory)
            self._claims.append(claim)
            return claim

    def _held(self) -> list[Claim]:
        with self._lock:
            return list(self._claims)

    def _forget(self, claim: Claim) -> None:
        with self._lock:
            self._claims = [one for one in self._claims if one is not claim]

    def _refusal(self, plan: Planned, beside: list[Claim]) -> OutOfMemory | None:
        """Why the model of ``plan`` has no room ``beside`` those claims; None where it has."""
        taken = sum((claim.needs for claim in beside), MemoryNeeds())
        needs = plan.memory
        places = (("memory", needs.main, taken.main, self.main), ("card's memory", needs.card, taken.card, self.card))
        for place, wanted, held, limit in places:
            if limit is not None and wanted and held + wanted > limit:
                return _no_room(plan, place, wanted, held, limit, [claim.name for claim in beside])
        return None


def _no_room(plan: Planned, place: str, wanted: int, held: int, limit: int, others: list[str]) -> OutOfMemory:
    whose = f", of which {', '.join(map(shown, dict.fromkeys(others)))} hold {_mebibytes(held)}" if others else ""
    return OutOfMemory(
        f"`{shown(plan.name)}` takes {_mebibytes(wanted)} and the {place} for models is {_mebibytes(limit)}{whose}; "
        "allow more, stop another model, or choose a smaller context"
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
