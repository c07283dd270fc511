"""Mixtures of experts (Shazeer et al., 2017, arXiv 1701.06538): a router sends every row to a few gated MLPs out of many.

An expert is a unit of weights: its linears ``experts.17.gate_up`` and ``experts.17.down`` lie together in a bundle.  What the
chosen experts give is added in the order of their numbers, so a row has one result in any batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from edge_llm.config import DEFAULT_SCHEME
from edge_llm.kernels.experts import Expert, expert_of, experts
from edge_llm.operations.arithmetic import same_bits_by
from edge_llm.operations.base import Back, Buffers, FloatRun, Gain, HeadTurns, Op, Operation, Passes
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.router import Router, Routes

if TYPE_CHECKING:
    from edge_llm.kernels import ThreadPool
    from edge_llm.operations.host_call import HostCall, HostWeight
    from edge_llm.operations.questions import AnyLayer

    ExpertRun = Sequence[tuple[int, Sequence[HostWeight]]]
    """Experts by their numbers, and the linears of each."""
    ExpertRuns = Callable[[Sequence[int], np.ndarray, ThreadPool], Iterator[ExpertRun]]
    """`HostExperts.runs`."""

NAME = "experts"
"""What units of weights are called, before their numbers."""
_LINEARS = 2
"""Of an expert: gate and up, then down."""
_CALL_ROWS = 1024
"""Of a call for experts that come from flash, each row as often as experts read it: more would take memory for nothing."""
_PRODUCTS, _ACTIVATED = "expert_products", "expert_activated"
"""Buffers inside an expert."""


def is_of_expert(name: str) -> bool:
    """Whether the linear ``name`` of a layer is one of an expert."""
    return name.startswith(f"{NAME}.")


@dataclass(frozen=True)
class Experts(Operation):
    """``writes = sum of weight * down(activation(gate(reads)) * up(reads)) of the chosen experts (+ adds)``."""

    KIND: ClassVar[str] = "experts"
    CHOSEN: ClassVar[tuple[str, ...]] = ("schemes", "turns")
    BESIDE_CARDS: ClassVar[str] = "a mixture of experts"

    columns: int
    """Channels of what it reads, and of what it writes."""
    width: int
    """Channels inside an expert."""
    router: Router
    gate_module: str
    """The module of an expert's gate in the source, with braces for the expert's number; so those of up and down.  Gate and up
    may be one module, the gate's rows first."""
    up_module: str
    down_module: str
    reads: str
    writes: str
    adds: str = ""
    activation: str = "silu"
    limit: float = 0.0
    """Of a clamped gate; else 0."""
    bias: bool = False
    """Whether the linears of experts have biases."""
    alternate: bool = False
    """Where gate and up are one module: whether their rows alternate."""
    schemes: tuple[str, ...] = ()
    """The weight schemes of `linears`, in order; empty: all are `DEFAULT_SCHEME`."""
    turns: tuple[int, ...] = ()
    """Blocks of input channels that are turned before they are rounded, in the same order; empty: none."""

    def __post_init__(self) -> None:
        if min(self.columns, self.width) < 1 or self.router.weight.size != self.columns:
            raise ValueError(f"experts of {self.columns} channels, {self.width} within, and a router of others")
        if any("{}" not in module for module in (self.gate_module, self.up_module, self.down_module)):
            raise ValueError("the modules of experts have no place for a number")
        if any(len(said) not in (0, _LINEARS * self.count) for said in (self.schemes, self.turns)):
            raise ValueError(f"{self.count} experts have {len(self.schemes)} schemes and {len(self.turns)} turns")

    @property
    def count(self) -> int:
        """Of all experts."""
        return self.router.weight.rows

    @property
    def used(self) -> int:
        """Experts that a row goes to."""
        return self.router.used

    @property
    def share(self) -> float:
        return self.used / self.count

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        """Of every expert gate and up in one, then down."""
        return tuple(one for expert in range(self.count) for one in self.linears_of(expert))

    def linears_of(self, expert: int) -> tuple[Linear, Linear]:
        """Of one expert: gate and up in one, then down."""
        gate, up = (module.format(expert) for module in (self.gate_module, self.up_module))
        rows: tuple[SourceRows, ...] = (SourceRows(gate, self.width), SourceRows(up, self.width))
        if gate == up:
            step, second = (2, 1) if self.alternate else (1, self.width)
            rows = tuple(SourceRows(gate, self.width, start, 2 * self.width, step) for start in (0, second))
        down = (SourceRows(self.down_module.format(expert), self.columns),)
        first, name = _LINEARS * expert, f"{NAME}.{expert}"
        schemes = self.schemes[first : first + _LINEARS] or (DEFAULT_SCHEME,) * _LINEARS
        turns = self.turns[first : first + _LINEARS] or (0,) * _LINEARS
        gate_up = Linear(f"{name}.gate_up", rows, self.columns, self.reads, _PRODUCTS, "", self.bias, schemes[0], turns[0])
        return gate_up, Linear(f"{name}.down", down, self.width, _ACTIVATED, self.writes, "", self.bias, schemes[1], turns[1])

    @cached_property
    def glu(self) -> GLU:
        """What is between the linears of an expert."""
        return GLU(self.width, _PRODUCTS, _ACTIVATED, self.activation, self.limit)

    @property
    def read_width(self) -> int:
        return self.columns

    @property
    def write_width(self) -> int:
        return self.columns

    @property
    def gains(self) -> tuple[Gain, ...]:
        return self.router.gains

    def with_schemes(self, scheme_of: Callable[[str], str | None]) -> Self:
        return replace(self, schemes=tuple(scheme_of(one.name) or one.scheme for one in self.linears))

    def with_turns(self, turn_of: Callable[[str], int], heads: HeadTurns) -> Self:
        turns = tuple(turn_of(one.name) for one in self.linears)
        return replace(self, turns=turns if any(turns) else ())

    # -- float ---------------------------------------------------------------------------------------------------------

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        x = buffers[self.reads]
        routes = self.router.routes(x, run.weights.gains, run.arithmetic)
        y = np.zeros_like(x)
        for expert, rows, weights in self._groups(routes, run):
            y[rows] += self._of_expert(expert, x[rows], run) * weights
        return buffers[self.adds] + y if self.adds else y

    def _groups(self, routes: Routes, run: FloatRun) -> Sequence[tuple[int, np.ndarray, np.ndarray]]:
        """The rows of every expert; who observes linears is told of all of them, with no rows where there are none."""
        found = routes.by_expert()
        if run.observe is None and run.apply is None:
            return found
        there = {expert: (expert, rows, weights) for expert, rows, weights in found}
        none = np.empty(0, np.int64), np.empty((0, 1), np.float32)
        return [there.get(expert, (expert, *none)) for expert in range(self.count)]

    def _of_expert(self, expert: int, x: np.ndarray, run: FloatRun) -> np.ndarray:
        gate_up, down = self.linears[_LINEARS * expert : _LINEARS * (expert + 1)]
        buffers = {self.reads: x}
        buffers[_PRODUCTS] = gate_up.forward(buffers, run)
        buffers[_ACTIVATED] = self.glu.forward(buffers, run)
        return down.forward(buffers, run)

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x = buffers[self.reads]
        routes, router_back = self.router.routes_and_back(x, run.weights.gains, run.arithmetic)
        y, steps = np.zeros_like(x), []
        for expert, rows, weights in routes.by_expert():
            given, backs = self._expert_and_back(expert, x[rows], run)
            y[rows] += given * weights
            steps.append((expert, rows, weights, given, backs))

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            at_input, at_weights = np.zeros_like(x), np.zeros_like(routes.weights)
            for expert, rows, weights, given, backs in steps:
                felt = gradient[rows]
                at_weights[rows, (routes.experts[rows] == expert).argmax(axis=1)] = (felt * given).sum(axis=1)
                at_input[rows] += backs(felt * weights)
            at_input += router_back(at_weights)
            found = [(self.reads, at_input)]
            return [(self.adds, gradient), *found] if self.adds else found

        return buffers[self.adds] + y if self.adds else y, back

    def _expert_and_back(
        self, expert: int, x: np.ndarray, run: FloatRun
    ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """What an expert makes of x [R, columns], and the way back of gradients."""
        gate_up, down = self.linears[_LINEARS * expert : _LINEARS * (expert + 1)]
        steps: list[Back] = []
        buffers = {self.reads: x}
        for operation in (gate_up, self.glu, down):
            written, back = operation.forward_and_back(buffers, run)
            buffers[operation.writes] = written
            steps.append(back)

        def through(gradient: np.ndarray) -> np.ndarray:
            for back in reversed(steps):
                ((_, gradient),) = back(gradient)
            return gradient

        return written, through

    # -- the host ------------------------------------------------------------------------------------------------------

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(NAME, Op("experts", self.read_by, (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.columns}

    def add_call(self, call: HostCall) -> None:
        x, out = call.buffers[self.reads], call.buffers[self.writes]
        add = call.buffers[self.adds] if self.adds else None
        weights = [] if call.experts else [call.linears[one.name] for one in self.linears]
        found = self._of_one_call(weights)
        runs = call.experts.runs if call.experts else partial(_resident_runs, weights)
        apply = partial(self._apply, runs, call)
        arithmetic, pool, gate = same_bits_by(call.pool), call.pool, self.glu.gate

        def step(rows: int, late: np.ndarray | None) -> None:
            read, added, written = x[:rows], None if add is None else add[:rows], out[:rows]
            routes = self.router.routes(read, call.gains, arithmetic)
            if found:
                experts(read, routes.experts, routes.weights, found, pool, gate=gate, add=added, out=written)
            else:
                y = apply(read, routes)
                written[:] = y if added is None else added + y

        call.add(step)

    def _of_one_call(self, weights: Sequence[HostWeight]) -> list[Expert]:
        """The experts for one call of the kernels, where that takes all of their ``weights``; else none."""
        known = [one for one in (weight.in_experts for weight in weights) if one is not None]
        if len(known) < len(weights):
            return []
        pairs = list(zip(known[::_LINEARS], known[1::_LINEARS], strict=True))
        if not all(gate_up.is_like(pairs[0][0]) and down.is_like(pairs[0][1]) for gate_up, down in pairs):
            return []
        return [expert_of(*pair) for pair in pairs]

    def _apply(self, runs: ExpertRuns, call: HostCall, x: np.ndarray, routes: Routes) -> np.ndarray:
        """What the experts make of the rows x, some at a time: a linear gives a row the same beside any others."""
        groups = {expert: (rows, shares) for expert, rows, shares in routes.by_expert()}
        sums = _InOrder(np.zeros_like(x), groups)
        for run in runs(list(groups), x, call.pool):
            for some in _cut(run, [len(groups[expert][0]) for expert, _ in run]):
                rows = [groups[expert][0] for expert, _ in some]
                given = self._give(some, rows, x, call)
                for (expert, _), one in zip(some, given, strict=True):
                    sums.add(expert, one)
        return sums.y

    def _give(self, run: ExpertRun, rows: Sequence[np.ndarray], x: np.ndarray, call: HostCall) -> Iterable[np.ndarray]:
        """What the experts of ``run`` give to these ``rows`` of x: float32 [rows, columns] of each."""
        found = self._of_one_call([weight for _, weights in run for weight in weights]) if call.experts else []
        if found:
            counts = [len(one) for one in rows]
            places = np.repeat(np.arange(len(run)), counts)[:, None]
            alone = np.ones(places.shape, np.float32)
            given = experts(x[np.concatenate(rows)], places, alone, found, call.pool, gate=self.glu.gate)
            return np.split(given, np.cumsum(counts)[:-1])
        return (self._give_alone(weights, x[own], call) for (_, weights), own in zip(run, rows, strict=True))

    def _give_alone(self, weights: Sequence[HostWeight], x: np.ndarray, call: HostCall) -> np.ndarray:
        gate_up, down = weights
        activated = gate_up.apply(x, call.pool, gate=self.glu.gate, shadow=call.shadow)
        return down.apply(activated, call.pool, shadow=call.shadow)


def _cut(run: ExpertRun, counts: Sequence[int]) -> Iterator[ExpertRun]:
    """``run``, whose experts have ``counts`` rows, in pieces of at most `_CALL_ROWS` rows or of one expert."""
    first = rows = 0
    for place, count in enumerate(counts):
        if place > first and rows + count > _CALL_ROWS:
            yield run[first:place]
            first, rows = place, 0
        rows += count
    yield run[first:]


def _resident_runs(
    weights: Sequence[HostWeight], experts: Sequence[int], x: np.ndarray, pool: ThreadPool
) -> Iterator[ExpertRun]:
    """`HostExperts.runs` where all ``weights`` are in memory, those of every expert side by side."""
    yield [(one, weights[_LINEARS * one : _LINEARS * (one + 1)]) for one in experts]


class _InOrder:
    """Adds what experts give to the rows of ``y``, in the order of their numbers, in whatever order it comes.

    ``groups`` has the rows of every expert and their shares, ascending.
    """

    def __init__(self, y: np.ndarray, groups: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
        self.y = y
        self._groups = groups
        self._next = deque(groups)
        self._early: dict[int, np.ndarray] = {}

    def add(self, expert: int, given: np.ndarray) -> None:
        """What ``expert`` gives: float32 [its rows, columns]."""
        self._early[expert] = given
        while self._next and self._next[0] in self._early:
            rows, shares = self._groups[self._next[0]]
            self.y[rows] += self._early.pop(self._next.popleft()) * shares
