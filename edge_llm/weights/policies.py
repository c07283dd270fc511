"""Which expert leaves its slot where a cache of experts is full: policies without I/O over the slots of every layer.

A token walks through the layers in order, so a cache that is smaller than one walk and forgets by time alone forgets just
what comes next.  Every layer has slots of its own, therefore, as many as any other, and its experts compete with each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol


class Key(NamedTuple):
    """An expert of a layer."""

    layer: int
    expert: int


class Policy(Protocol):
    """Chooses who leaves.  The same calls in the same order give the same choices."""

    def touched(self, key: Key) -> None:
        """A step uses ``key``, whether it is in memory or not; once a step."""
        ...

    def worth(self, key: Key) -> float:
        """Of the experts of a layer that may go, the one that is worth least leaves, the lower number of two that are equal.

        It changes by `touched` alone.
        """
        ...


class _Clocks:
    """The time of every layer: how often a step has used one of its experts."""

    def __init__(self) -> None:
        self._now: dict[int, int] = defaultdict(int)

    def tick(self, layer: int) -> int:
        self._now[layer] += 1
        return self._now[layer]

    def now(self, layer: int) -> int:
        return self._now[layer]


class _Fading:
    """How often keys were used, an older use counting less: half as much after ``half_life`` uses of the layer's experts."""

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._seen: dict[Key, tuple[float, int]] = {}

    def add(self, key: Key, now: int) -> None:
        self._seen[key] = (self.at(key, now) + 1, now)

    def at(self, key: Key, now: int) -> float:
        count, then = self._seen.get(key, (0.0, now))
        return count * math.exp2((then - now) / self._half_life)


class LeastRecent:
    """The expert leaves that was not used for longest."""

    def __init__(self) -> None:
        self._clocks = _Clocks()
        self._last: dict[Key, int] = {}

    def touched(self, key: Key) -> None:
        self._last[key] = self._clocks.tick(key.layer)

    def worth(self, key: Key) -> float:
        return self._last.get(key, 0)


class LeastFrequent:
    """The expert leaves that was used least, whether it was in memory then or not; an older use counts less."""

    def __init__(self, half_life: float) -> None:
        """``half_life`` in uses of a layer's experts."""
        self._clocks = _Clocks()
        self._counts = _Fading(half_life)

    def touched(self, key: Key) -> None:
        self._counts.add(key, self._clocks.tick(key.layer))

    def worth(self, key: Key) -> float:
        return self._counts.at(key, self._clocks.now(key.layer))


class FrequentAndRecent:
    """The expert leaves that is used least in the long run and now: a sum of two counts, one that forgets slowly and one fast.

    The slow one knows which experts a model likes, the fast one which of them the text at hand wants.
    """

    def __init__(self, slow: float, fast: float, weight: float = 1.0) -> None:
        """Half-lives in uses of a layer's experts, and what the fast count is multiplied with."""
        self._clocks = _Clocks()
        self._slow, self._fast, self._weight = _Fading(slow), _Fading(fast), weight

    def touched(self, key: Key) -> None:
        now = self._clocks.tick(key.layer)
        self._slow.add(key, now)
        self._fast.add(key, now)

    def worth(self, key: Key) -> float:
        now = self._clocks.now(key.layer)
        return self._slow.at(key, now) + self._weight * self._fast.at(key, now)


class Optimum:
    """The expert leaves whose next use is farthest away (Belady's MIN), which one has to know beforehand.

    Where no step uses more experts than there are slots, no policy reads fewer.
    """

    def __init__(self, uses: Iterable[Key]) -> None:
        """``uses``: with what `touched` will be called, in order."""
        self._ahead: dict[Key, list[int]] = defaultdict(list)  # when, the next last
        self._clocks = _Clocks()
        for key in uses:
            self._ahead[key].append(self._clocks.tick(key.layer))
        for times in self._ahead.values():
            times.reverse()
        self._clocks = _Clocks()

    def touched(self, key: Key) -> None:
        """Raises ValueError for a use that was not foretold."""
        now, times = self._clocks.tick(key.layer), self._ahead.get(key)
        if not times or times.pop() != now:
            raise ValueError(f"use {now} of layer {key.layer} is of expert {key.expert}, which was not foretold")

    def worth(self, key: Key) -> float:
        times = self._ahead.get(key)
        return -times[-1] if times else -math.inf


LRU, LFU, DEFAULT, OPTIMUM = "lru", "lfu", "lrfu", "optimum"
_SLOW, _FAST, _WEIGHT = 16, 1, 8
"""Half-lives of the default, in uses per expert of the layer, and what its fast count is multiplied with.

The 8 was chosen on one trace of a toy mixture, which docs/performance.md reports.
"""
POLICIES: dict[str, Callable[[int], Policy]] = {
    LRU: lambda experts: LeastRecent(),
    LFU: lambda experts: LeastFrequent(_SLOW * experts),
    DEFAULT: lambda experts: FrequentAndRecent(_SLOW * experts, _FAST * experts, _WEIGHT),
}
"""What makes a policy for layers of so many experts, by its name; `Optimum` is none of them."""


def policy_of(name: str, experts: int) -> Policy:
    """The policy ``name`` of `POLICIES` for layers of so many ``experts``."""
    return POLICIES[name](experts)


class Taken(NamedTuple):
    """A use of an expert that a step makes."""

    expert: int
    is_read: bool
    """Whether it has to be read: it was not in memory."""
    leaves: int | None
    """Which expert gives it its slot; None where one was free, or nothing is read."""


@dataclass(frozen=True)
class Uses:
    """What was used and what had to be read for it."""

    used: int = 0
    """Experts that steps used: one counts once a step, for all of its rows."""
    read: int = 0
    """Of these, how many were not in memory."""

    @property
    def hit_rate(self) -> float:
        """Share of uses that found their expert in memory; 1 where there were none."""
        return 1 - self.read / self.used if self.used else 1.0

    def __add__(self, other: Uses) -> Uses:
        return Uses(self.used + other.used, self.read + other.read)


class Slots:
    """Which experts are in memory: every layer has ``quota`` slots, and ``policy`` says who leaves them."""

    def __init__(self, policy: Policy, quota: int) -> None:
        """Raises ValueError for fewer than one slot."""
        if quota < 1:
            raise ValueError(f"{quota} slots hold no expert")
        self._policy, self.quota = policy, quota
        self._held: dict[int, set[int]] = defaultdict(set)

    def held(self, layer: int) -> frozenset[int]:
        """The experts of ``layer`` in memory."""
        return frozenset(self._held[layer])

    def take(self, layer: int, experts: Sequence[int]) -> list[Taken]:
        """A step uses ``experts``, each once, for all rows that go there: what is used in which order, and who leaves.

        What is in memory is used first, so that it may leave for the rest where a step uses more experts than there are slots.
        """
        held, wanted = self._held[layer], sorted(set(experts))
        for expert in wanted:
            self._policy.touched(Key(layer, expert))
        there, missing = [one for one in wanted if one in held], [one for one in wanted if one not in held]
        return [*(Taken(one, False, None) for one in there), *self._admit(layer, missing, wanted)]

    def _admit(self, layer: int, missing: Sequence[int], wanted: Sequence[int]) -> Iterator[Taken]:
        """The ``missing`` get slots: from experts that are not ``wanted`` while there are any.

        No worth changes meanwhile, so each is asked for once: a step takes no longer than a sort, however many experts it uses.
        """
        held = self._held[layer]
        is_full = len(held) + len(missing) > self.quota
        idle = self._by_worth(layer, held.difference(wanted)) if is_full else []
        in_use: list[tuple[float, int]] | None = None
        for expert in missing:
            leaves = None
            if len(held) == self.quota:
                if not idle and in_use is None:
                    in_use = self._by_worth(layer, held)
                _, leaves = heappop(idle or in_use or [])
                held.remove(leaves)
            held.add(expert)
            if in_use is not None:
                heappush(in_use, (self._policy.worth(Key(layer, expert)), expert))
            yield Taken(expert, True, leaves)

    def _by_worth(self, layer: int, experts: Iterable[int]) -> list[tuple[float, int]]:
        """A heap of ``experts``: what each is worth, and its number."""
        heap = [(self._policy.worth(Key(layer, one)), one) for one in experts]
        heapify(heap)
        return heap


def uses_of(taken: Sequence[Taken]) -> Uses:
    """What one step of a layer counts."""
    return Uses(len(taken), sum(one.is_read for one in taken))
