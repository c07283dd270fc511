"""What a probe of the self-test stands on: a card, arrays on it, how long work takes, how far a result is from the right one.

A probe is a function of a `Ground` that gives its figures, a mapping for JSON.  What it finds wrong it says under `error`, and
under `SPOILED` that the next one needs a new process.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.runtime import Runtime, run
from edge_llm.errors import DeviceError

if TYPE_CHECKING:
    from torch import Tensor

Figures = dict[str, Any]
SPOILED = "spoiled"
"""Among the figures of a probe: the card may answer wrongly from here on."""
SEED = 1
ROUNDS = 5
"""A time is the median of so many."""
LONGEST_ERROR = 500
_LOST = re.compile(r"\b507(?!903)[0-9]{3}\b")
"""[doc] Codes of the runtime after which a card does nothing any more; others refuse one call, and 507903 ends a capture."""
SUM_COLUMNS = 1024
"""So many products of two int8 are summed exactly in float32."""


class _Unchecked(Calls):
    """Calls past the chip's law: a report says what a card takes, and not what we think that it takes."""

    def _check(self, operator: str, operands: Any, **settings: Any) -> None:
        """Nothing is refused here."""


class Ground:
    """The card of ``runtime``.  Where its operators are emulated, shapes are small and times mean nothing."""

    def __init__(self, runtime: Runtime) -> None:
        import torch

        self.torch = torch
        self.runtime = runtime
        self.calls = Calls(runtime.law) if runtime.emulated else _Unchecked(runtime.law)
        self.law = runtime.law
        self._random = torch.Generator().manual_seed(SEED)

    def size(self, full: int, small: int) -> int:
        """``full`` on a card, ``small`` where operators are emulated."""
        return small if self.runtime.emulated else full

    # ---- arrays, on the host ----

    def int8(self, *shape: int) -> Tensor:
        return self.torch.randint(-127, 128, shape, generator=self._random, dtype=self.torch.int8)

    def float32(self, *shape: int) -> Tensor:
        return self.torch.randn(shape, generator=self._random)

    def float16(self, *shape: int) -> Tensor:
        return self.float32(*shape).half()

    def int32(self, *values: int) -> Tensor:
        return self.torch.tensor(values, dtype=self.torch.int32)

    # ---- work on the card ----

    def held(self, *tensors: Tensor) -> list[Any]:
        """Copies on the card, which stay there."""
        return run(self.runtime, lambda: [tensor.to(self.runtime.device, copy=True) for tensor in tensors])

    def lengths(self, lengths: Tensor) -> Tensor:
        """Lengths of keys where the chip's attention takes them: on the card, or on the host."""
        return lengths if self.law.host_lengths else self.held(lengths)[0]

    def made(self, work: Callable[[], Any]) -> Any:
        """What ``work`` makes on the card."""
        return run(self.runtime, work)

    def result(self, work: Callable[..., Any], *tensors: Tensor) -> Any:
        """What ``work`` makes of copies of ``tensors``, brought to the host: a tensor, or a tuple of them."""
        cards = self.held(*tensors)
        return self.made(lambda: _on_host(work(*cards)))

    def after(self, work: Callable[[], None], made: Callable[[], Any]) -> Any:
        """What ``made`` gives when ``work`` has been done, brought to the host."""

        def both() -> Any:
            work()
            return made()

        return self.result(both)

    def seconds(self, work: Callable[[], Any], count: int = 50) -> float:
        """Of ``work`` on the card, one after the other; the host waits for the last."""
        return statistics.median(total for _, total in self._rounds(work, count))

    def seconds_to_give(self, work: Callable[[], Any], count: int = 50) -> float:
        """Of the host until it has given ``work`` to the card."""
        return statistics.median(given for given, _ in self._rounds(work, count))

    def both_seconds(self, work: Callable[[], Any], count: int = 50) -> tuple[float, float]:
        """Of the host to give ``work``, and of ``work``."""
        given, total = zip(*self._rounds(work, count), strict=True)
        return statistics.median(given), statistics.median(total)

    def _rounds(self, work: Callable[[], Any], count: int) -> list[tuple[float, float]]:
        """Seconds to give ``work`` and to do it, of ``count`` at a time."""
        count = self.size(count, 2)

        def many() -> None:
            for _ in range(count):
                work()

        run(self.runtime, work)
        rounds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            done = self.runtime.enqueue(many)
            given = time.perf_counter()
            done()
            rounds.append(((given - start) / count, (time.perf_counter() - start) / count))
        return rounds

    # ---- operators outside of what the backend calls ----

    def operator(self, space: str, name: str) -> Any:
        """``torch.ops.SPACE.NAME``, called past the chip's law to see what the chip takes.  Raises `DeviceError`."""
        found = getattr(getattr(self.torch.ops, space), name, None)
        if found is None:
            raise DeviceError(f"there is no operator {space}::{name} here")
        return found

    # ---- int8 products ----

    def exact(self, x: Tensor, weight: Tensor) -> Tensor:
        """int32 [T, N] = x int8 [T, K] @ weight int8 [N, K], on the host, by another way than the emulation's."""
        sums = self.torch.zeros((len(x), len(weight)), dtype=self.torch.int32)
        for first in range(0, x.shape[1], SUM_COLUMNS):
            part = slice(first, first + SUM_COLUMNS)
            sums += (x[:, part].float() @ weight[:, part].float().T).to(self.torch.int32)
        return sums


def tried(cases: Mapping[str, Callable[[], Figures]]) -> tuple[dict[str, Figures], bool]:
    """What each case finds, or its error, and whether the card was lost by the last one; the others are not asked then."""
    found: dict[str, Figures] = {}
    for name, case in cases.items():
        try:
            found[name] = case()
        except (DeviceError, RuntimeError, TypeError) as error:
            text = str(error.__cause__ or error)
            found[name] = {"error": text[:LONGEST_ERROR]}
            if _LOST.search(text):
                return found, True
    return found, False


def _on_host(made: Any) -> Any:
    if isinstance(made, tuple | list):
        return tuple(_on_host(one) for one in made)
    return made.cpu().clone()


def compared(found: Tensor, expected: Tensor) -> Figures:
    """How many values of ``found`` differ from ``expected``, and how far; both on the host."""
    differing = (found != expected) & ~(found.isnan() & expected.isnan())
    distance = (found.double() - expected.double()).abs()
    finite = distance[distance.isfinite()]
    figures: Figures = {
        "values": found.numel(),
        "differing": int(differing.sum()),
        "largest_difference": float(finite.max()) if finite.numel() else 0.0,
        "largest_expected": float(expected.double().abs().max()),
    }
    if finite.numel() < distance.numel():
        figures["not_finite"] = distance.numel() - finite.numel()
    if found.element_size() == 2 and found.is_floating_point():
        figures["float16_steps"] = int((_ordered(found) - _ordered(expected)).abs().max())
    return figures


def _ordered(values: Tensor) -> Tensor:
    """float16 as numbers of which neighbours are one apart."""
    import torch

    bits = values.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def equal(found: Tensor, expected: Tensor) -> Figures:
    """Compares; any difference is an error."""
    figures = compared(found, expected)
    if figures["differing"]:
        figures["error"] = f"{figures['differing']} of {figures['values']} values differ"
    return figures


def near(found: Tensor, expected: Tensor, share: float) -> Figures:
    """Compares; a difference above ``share`` of the largest value is an error."""
    figures = compared(found, expected) | {"bound": share}
    if figures["largest_difference"] > share * figures["largest_expected"] or "not_finite" in figures:
        figures["error"] = f"values differ by up to {figures['largest_difference']:.3g}"
    return figures


def together(cases: dict[str, Figures], **more: Any) -> Figures:
    """The figures of several cases, and the errors of all."""
    errors = [f"{name}: {one['error']}" for name, one in cases.items() if "error" in one]
    figures: Figures = {**more, "cases": cases}
    differing = [one["differing"] for one in cases.values() if "differing" in one]
    if differing:
        figures = {"differing": sum(differing), **figures}
    return figures | ({"error": "; ".join(errors)} if errors else {})
