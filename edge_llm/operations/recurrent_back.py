"""The way back of gradients through a mixer with a state, over a whole sequence."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from edge_llm.kernels import ThreadPool, recurrent
from edge_llm.operations.arithmetic import (
    SAME_BITS,
    rms_norm,
    rms_norm_gradient,
    sigmoid,
    silu,
    silu_slope,
)
from edge_llm.operations.base import Back
from edge_llm.operations.keeps import one_run

_SEGMENT = 32
"""Rows whose states are in memory together."""


class _Columns(Protocol):
    @property
    def convolved(self) -> slice: ...
    @property
    def q(self) -> slice: ...
    @property
    def k(self) -> slice: ...
    @property
    def v(self) -> slice: ...
    @property
    def gate(self) -> slice: ...
    @property
    def steps(self) -> slice: ...
    @property
    def write(self) -> slice | None: ...


class _Constants(Protocol):
    @property
    def weight(self) -> np.ndarray: ...
    @property
    def bias(self) -> np.ndarray | None: ...
    @property
    def rate(self) -> np.ndarray: ...
    @property
    def step_bias(self) -> np.ndarray: ...
    @property
    def gain(self) -> np.ndarray: ...
    @property
    def skip(self) -> np.ndarray | None: ...


class _Mixer(Protocol):
    """What is asked of `edge_llm.operations.recurrent.Recurrent`."""

    CORRECTS: ClassVar[bool]
    GATE_FIRST: ClassVar[bool]

    @property
    def reads(self) -> str: ...
    @property
    def columns(self) -> _Columns: ...
    @property
    def group(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def tiled(self) -> bool: ...
    @property
    def eps(self) -> float: ...
    @property
    def least_step(self) -> float: ...
    @property
    def longest_step(self) -> float: ...
    def of_keys(self, columns: np.ndarray) -> np.ndarray: ...
    def of_values(self, columns: np.ndarray) -> np.ndarray: ...
    def for_heads(self, keys: np.ndarray) -> np.ndarray: ...
    def lengths(self) -> tuple[tuple[slice, np.ndarray, float], ...]: ...


class Scan(NamedTuple):
    """What a recurrence takes: q, k [T, H, K], v [T, H, V], decay and strength [T, H], skip [H] or None."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    decay: np.ndarray
    strength: np.ndarray
    skip: np.ndarray | None
    corrects: bool


def way_back(mixer: _Mixer, mixed: np.ndarray, constants: _Constants, out: np.ndarray) -> tuple[np.ndarray, Back]:
    """``out`` and the way back from it to ``mixed`` [T, read_width], which begins a sequence."""
    at = mixer.columns
    summed = _convolved(mixed[:, at.convolved], constants)
    activated = silu(summed, SAME_BITS)
    units = activated.copy()
    for columns, gain, eps in mixer.lengths():
        units[:, columns] = rms_norm(mixer.of_keys(activated[:, columns]), gain, eps).reshape(len(mixed), -1)
    steps, write = mixed[:, at.steps], None if at.write is None else mixed[:, at.write]
    bounds = {"low": mixer.least_step, "high": mixer.longest_step}
    decay, strength = recurrent.rates(steps, constants.step_bias, constants.rate, write, ThreadPool(1), **bounds)
    q, k = (mixer.for_heads(mixer.of_keys(units[:, one])) for one in (at.q, at.k))
    scan = Scan(q, k, mixer.of_values(units[:, at.v]), decay, strength, constants.skip, mixer.CORRECTS)

    def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
        found = np.zeros_like(mixed)
        given = recurred(scan).reshape(len(mixed), -1)
        at_given, found[:, at.gate] = _through_norm(mixer, constants.gain, given, mixed[:, at.gate], gradient)
        felt = scan_gradient(scan, mixer.of_values(at_given))
        slope = sigmoid(steps + constants.step_bias, SAME_BITS)
        inside = (felt.decay * decay * constants.rate) + (felt.strength if write is None else 0)
        found[:, at.steps] = inside * slope * _within(steps + constants.step_bias, mixer)
        if at.write is not None:
            found[:, at.write] = felt.strength * strength * (1 - strength)
        at_units = np.zeros_like(units)
        for columns, one in ((at.q, felt.q), (at.k, felt.k)):
            at_units[:, columns] = _of_served(mixer, one)
        at_units[:, at.v] = felt.v.reshape(len(mixed), -1)
        for columns, gain, eps in mixer.lengths():
            heads, felt_heads = mixer.of_keys(activated[:, columns]), mixer.of_keys(at_units[:, columns])
            at_units[:, columns] = rms_norm_gradient(heads, gain, eps, felt_heads).reshape(len(mixed), -1)
        found[:, at.convolved] = convolution_gradient(at_units * silu_slope(summed, SAME_BITS), constants.weight)
        return [(mixer.reads, found)]

    return out, back


def _of_served(mixer: _Mixer, felt: np.ndarray) -> np.ndarray:
    """The sum of what each head of queries or keys feels in the heads that it serves: [T, H, K] -> [T, groups * K]."""
    order, axis = ((-1, mixer.groups), 1) if mixer.tiled else ((mixer.groups, -1), 2)
    return np.asarray(felt.reshape(len(felt), *order, felt.shape[2]).sum(axis=axis).reshape(len(felt), -1))


def _convolved(x: np.ndarray, constants: _Constants) -> np.ndarray:
    """The sums of the convolution of x [T, C] that begins a sequence."""
    weight = constants.weight
    tails = np.zeros((1, len(weight) - 1, x.shape[1]), np.float32)
    return recurrent.short_convolution(x, weight, constants.bias, tails, one_run(len(x)), ThreadPool(1))


def convolution_gradient(gradient: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The gradient at the inputs [T, C] of a convolution by ``weight`` [taps, C], of that at its sums."""
    taps, rows = len(weight), len(gradient)
    behind = np.concatenate([gradient, np.zeros((taps - 1, gradient.shape[1]), np.float32)])
    found = np.zeros_like(gradient)
    for tap in range(taps):
        later = taps - 1 - tap
        found += weight[tap] * behind[later : later + rows]
    return found


def _within(steps: np.ndarray, mixer: _Mixer) -> np.ndarray:
    """1 where a step is between its bounds, else 0."""
    step = np.maximum(steps, 0) + np.log1p(np.exp(-np.abs(steps)))
    return ((step > mixer.least_step) & (step < mixer.longest_step)).astype(np.float32)


def _through_norm(
    mixer: _Mixer, gain: np.ndarray, x: np.ndarray, gate: np.ndarray, gradient: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients at x and at the gate [T, W] of that at the gated norm."""
    grouped, passed, slope = (len(x), -1, mixer.group), silu(gate, SAME_BITS), silu_slope(gate, SAME_BITS)
    gains = gain if len(gain) == mixer.group else gain.reshape(-1, mixer.group)
    if mixer.GATE_FIRST:
        felt = rms_norm_gradient((x * passed).reshape(grouped), gains, mixer.eps, gradient.reshape(grouped)).reshape(x.shape)
        return felt * passed, felt * x * slope
    normed = rms_norm(x.reshape(grouped), gains, mixer.eps).reshape(x.shape)
    felt = rms_norm_gradient(x.reshape(grouped), gains, mixer.eps, (gradient * passed).reshape(grouped))
    return felt.reshape(x.shape), gradient * normed * slope


def recurred(scan: Scan) -> np.ndarray:
    """What the states give: float32 [T, H, V]."""
    state = _nothing(scan)
    found = np.empty(scan.v.shape, np.float32)
    for row in range(len(scan.v)):
        state = _advanced(scan, state, row)
        found[row] = (scan.q[row][:, :, None] * state).sum(axis=1)
    return found if scan.skip is None else found + scan.skip[:, None] * scan.v


def scan_gradient(scan: Scan, gradient: np.ndarray) -> Scan:
    """The gradients at what a recurrence takes, of that at what it gives [T, H, V]."""
    q, k, v, decay, strength = (np.zeros_like(one) for one in (scan.q, scan.k, scan.v, scan.decay, scan.strength))
    felt = Scan(q, k, v, decay, strength, scan.skip, scan.corrects)
    state = _nothing(scan)
    begins = []
    for row in range(len(scan.v)):
        if row % _SEGMENT == 0:
            begins.append(state)
        state = _advanced(scan, state, row)
    at_state = _nothing(scan)
    for first in reversed(range(0, len(scan.v), _SEGMENT)):
        states = [begins[first // _SEGMENT]]
        for row in range(first, min(first + _SEGMENT, len(scan.v))):
            states.append(_advanced(scan, states[-1], row))
        for row in reversed(range(first, first + len(states) - 1)):
            at_state = _row_back(scan, felt, row, states[row - first], states[row - first + 1], gradient[row], at_state)
    return felt


def _nothing(scan: Scan) -> np.ndarray:
    return np.zeros((scan.k.shape[1], scan.k.shape[2], scan.v.shape[2]), np.float32)


def _advanced(scan: Scan, state: np.ndarray, row: int) -> np.ndarray:
    faded = scan.decay[row][:, None, None] * state
    return faded + scan.k[row][:, :, None] * _written(scan, faded, row)[:, None]


def _written(scan: Scan, faded: np.ndarray, row: int) -> np.ndarray:
    """What goes with a row's key into the state: [H, V]."""
    return scan.strength[row][:, None] * _news(scan, faded, row)


def _news(scan: Scan, faded: np.ndarray, row: int) -> np.ndarray:
    known = (scan.k[row][:, :, None] * faded).sum(axis=1) if scan.corrects else np.float32(0)
    return np.asarray(scan.v[row] - known)


def _row_back(
    scan: Scan, felt: Scan, row: int, before: np.ndarray, after: np.ndarray, gradient: np.ndarray, at_state: np.ndarray
) -> np.ndarray:
    """Put the gradients at a row's inputs into ``felt``; ``at_state`` is that behind it, the result that before it."""
    key, decay, strength = scan.k[row][:, :, None], scan.decay[row], scan.strength[row][:, None]
    faded = decay[:, None, None] * before
    news = _news(scan, faded, row)
    felt.q[row] = (after * gradient[:, None]).sum(axis=2)
    at_state = at_state + scan.q[row][:, :, None] * gradient[:, None]
    at_written = (at_state * key).sum(axis=1)
    felt.strength[row] = (at_written * news).sum(axis=1)
    felt.v[row] = at_written * strength + (0 if scan.skip is None else scan.skip[:, None] * gradient)
    felt.k[row] = (at_state * (strength * news)[:, None]).sum(axis=2)
    if scan.corrects:
        at_known = -(at_written * strength)
        felt.k[row] += (faded * at_known[:, None]).sum(axis=2)
        at_state = at_state + key * at_known[:, None]
    felt.decay[row] = (at_state * before).sum(axis=(1, 2))
    return np.asarray(at_state * decay[:, None, None])
