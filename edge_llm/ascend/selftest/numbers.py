"""Probes of numbers: what is too large or none, how clips are counted, and arrays that are written in part.

Several ways to the same end are tried one by one: which of them a chip has is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from edge_llm.ascend.selftest.ground import SPOILED, Figures, Ground, equal, tried

FLOAT16_MAX = 65504.0
WIDE = 4864


def overflow(ground: Ground) -> Figures:
    """Whether Inf and NaN exist, or become the largest number and 0: tests for overflow look for one or the other."""
    torch = ground.torch
    large = torch.full((32,), 60000.0, dtype=torch.float16)
    wide, infinite = torch.full((32,), 1e30), torch.full((32,), float("inf"))

    def work(large: Any, wide: Any, infinite: Any, minus: Any) -> tuple[Any, ...]:
        return large + large, wide.to(torch.float16), wide * wide, infinite + minus, infinite * 1.0

    found = [float(one[0]) for one in ground.result(work, large, wide, infinite, -infinite)]
    names = ("float16_sum", "float16_cast", "float32_product", "infinity_and_minus_infinity", "infinity")
    said: Figures = {name: str(value) for name, value in zip(names, found, strict=True)}
    figures = {"saturates": bool(found[0] == FLOAT16_MAX), "has_nan": bool(found[3] != found[3]), "values": said}
    odd = [name for name, value in zip(names[:2], found[:2], strict=True) if value not in (FLOAT16_MAX, float("inf"))]
    return figures | ({"error": f"{', '.join(odd)} gave {', '.join(said[name] for name in odd)}"} if odd else {})


def counting(ground: Ground) -> Figures:
    """How many values are above a bound: sums in int64, which a processor beside the cores may make, in int32 and float32."""
    torch = ground.torch
    x = ground.float32(ground.size(256, 8), WIDE)
    expected = (x.abs() > 1.0).sum()
    ways: dict[str, Callable[[Any], Any]] = {
        "int64": lambda x: x.abs().gt(1.0).sum(),
        "int32": lambda x: x.abs().gt(1.0).sum(dtype=torch.int32),
        "float32": lambda x: x.abs().gt(1.0).to(torch.float32).sum(),
    }
    return _each(ground, {name: (way, (x,), expected) for name, way in ways.items()}, needed="int64")


def indexed_writes(ground: Ground) -> Figures:
    """Rows of an array that are replaced at places which the card holds, for INT8 keys and for blocks that return."""
    torch = ground.torch
    places = ground.int32(5, 0, 130, 511)
    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {}
    for name, cache, rows in (
        ("int8", ground.int8(512, 256), ground.int8(4, 256)), ("float16", ground.float16(512, 256), ground.float16(4, 256)),
    ):  # fmt: skip
        expected = cache.clone()
        expected[places.long()] = rows
        ways: dict[str, Callable[..., Any]] = {
            "index_copy_": lambda cache, places, rows: cache.index_copy_(0, places.to(torch.int64), rows),
            "assignment": lambda cache, places, rows: cache.index_put_((places.to(torch.int64),), rows),
            "assignment by int32": lambda cache, places, rows: cache.index_put_((places,), rows),
            "slices": partial(_slices, places.tolist()),
        }
        cases |= {f"{name} {way}": (work, (cache, places, rows), expected) for way, work in ways.items()}
    return _each(ground, cases)


def _slices(places: list[int], cache: Any, _: Any, rows: Any) -> Any:
    for row, place in enumerate(places):
        cache[place].copy_(rows[row])
    return cache


def small_writes(ground: Ground) -> Figures:
    """Whether 4 bytes that are written into the middle of an array leave their neighbours as they were."""
    x = ground.int32(*range(64))
    expected = x.clone()
    expected[1], expected[3], expected[4:7] = -1, 40, 0

    def work(x: Any) -> Any:
        x[1:2].fill_(-1)
        x[3:4].copy_(x[40:41])
        x[4:7].zero_()
        return x

    return equal(ground.result(work, x), expected)


def _way(ground: Ground, work: Callable[..., Any], tensors: tuple[Any, ...], expected: Any) -> Figures:
    figures = equal(ground.result(work, *tensors).to(expected.dtype), expected)
    held = ground.held(*tensors)
    return figures | {"seconds": ground.seconds(partial(work, *held), 20)}


def _each(
    ground: Ground, cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]], needed: str = ""
) -> Figures:
    """Each way by itself: whether it is there and right, and its seconds; an error where the ``needed`` one, or any, fails."""
    found, lost = tried({name: partial(_way, ground, *case) for name, case in cases.items()})
    wrong = {name: one["error"] for name, one in found.items() if "error" in one}
    figures: Figures = {"ways": len(cases), "failed": len(wrong), "cases": found} | ({SPOILED: True} if lost else {})
    bad = {name: text for name, text in wrong.items() if name == needed} if needed else wrong
    return figures | ({"error": "; ".join(f"{name}: {text}" for name, text in bad.items())} if bad else {})
