"""Probes of the card itself: its software, its memory, copies to and from it, and what it takes to launch an operator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from edge_llm.ascend.npu.findings import driver_version
from edge_llm.ascend.npu.machine import AscendMachine
from edge_llm.ascend.npu.runtime import run
from edge_llm.ascend.npu.toolkit import nnal_version
from edge_llm.ascend.selftest.ground import ROUNDS, Figures, Ground, equal

COPIED = 64 << 20
ALLOCATED = 1 << 30
SMALL = 2 << 20


def software(ground: Ground) -> Figures:
    """The chip and its software, as they name themselves."""
    torch = ground.torch
    if ground.runtime.emulated:
        return {"torch": torch.__version__, **installed(AscendMachine())}
    import torch_npu  # type: ignore[import-not-found]

    card = torch.npu.get_device_properties(ground.runtime.device)
    properties = ("name", "total_memory", "cube_core_num", "vector_core_num", "L2_cache_size")
    return {
        "torch": torch.__version__,
        "torch_npu": torch_npu.__version__,
        "cann": torch_npu.npu.utils.get_cann_version("CANN"),
        "cards": torch.npu.device_count(),
        "soc_number": int(torch_npu.npu.get_soc_version()),
        "bfloat16": bool(torch.npu.is_bf16_supported()),
        "properties": {name: getattr(card, name, None) for name in properties},
        **_state(torch, torch_npu),
        **installed(AscendMachine()),
    }


def _state(torch: Any, torch_npu: Any) -> Figures:
    """What was set in this process: whether operators are compiled on call, whether fractals are made, what Inf becomes."""
    said: dict[str, Callable[[], Any]] = {
        "jit_compile": lambda: not torch.npu.is_jit_compile_false(),
        "internal_format": lambda: (torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT") or b"").decode() != "disable",
        "inf_and_nan": lambda: bool(torch_npu.npu.utils.is_support_inf_nan()),
    }
    figures: Figures = {}
    for name, ask in said.items():
        try:
            figures[name] = ask()
        except (AttributeError, RuntimeError, TypeError, UnicodeDecodeError) as error:
            figures[name] = f"unknown: {type(error).__name__}"
    return figures


def installed(machine: AscendMachine) -> Figures:
    """Versions that no library tells: of NNAL and of the driver (HDK)."""
    versions = {"nnal": nnal_version(machine), "driver": driver_version(machine)}
    return {name: version for name, version in versions.items() if version}


def memory(ground: Ground) -> Figures:
    """Free memory before, with and after an array of 1 GiB."""
    size = ground.size(ALLOCATED, SMALL)
    free, total = ground.runtime.memory()
    held = [ground.made(lambda: ground.torch.zeros(size, dtype=ground.torch.int8, device=ground.runtime.device))]
    with_array, _ = ground.runtime.memory()
    held.clear()
    if not ground.runtime.emulated:
        ground.torch.npu.empty_cache()
    after, _ = ground.runtime.memory()
    figures = {"total_bytes": total, "free_bytes": free, "array_bytes": size}
    return {**figures, "free_with_array_bytes": with_array, "free_after_bytes": after}


def copies(ground: Ground) -> Figures:
    """Seconds of copies of 4 bytes and bytes per second of 64 MiB, each way, from and to pinned memory."""
    torch, runtime = ground.torch, ground.runtime
    size = ground.size(COPIED, SMALL)
    small_host, host, back = (runtime.pinned((count,), torch.int8) for count in (4, size, size))
    host.copy_(ground.int8(size))
    small, card = ground.held(small_host, back)
    ways: dict[str, Any] = {
        "in": (lambda: runtime.copy_in(small, small_host), lambda: runtime.copy_in(card, host)),
        "out": (lambda: runtime.copy_out(small_host, small), lambda: runtime.copy_out(back, card)),
    }
    figures: Figures = {}
    for way, (short, long) in ways.items():
        figures |= {
            f"{way}_seconds": ground.seconds(short, 100),
            f"{way}_seconds_with_wait": _waited(ground, short),
            f"{way}_bytes_per_second": size / ground.seconds(long, 4),
        }
    return figures | equal(back, host)


def launch(ground: Ground) -> Figures:
    """Seconds of a tiny operator: among many, of the host alone, and with a wait for it."""
    (x,) = ground.held(ground.float32(16))

    def add() -> None:
        x.add_(1.0)

    return {
        "seconds": ground.seconds(add, 1000),
        "seconds_to_give": ground.seconds_to_give(add, 1000),
        "seconds_with_wait": _waited(ground, add),
    }


def _waited(ground: Ground, work: Any) -> float:
    """Seconds of ``work`` alone, and of the wait for it."""
    seconds = []
    for _ in range(ROUNDS * ground.size(20, 1)):
        start = time.perf_counter()
        run(ground.runtime, work)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def views(ground: Ground) -> Figures:
    """Whether the part of an int32 array that holds float32 can be read as that: the inputs of a step are one copy."""
    torch, x = ground.torch, ground.float32(4, 64)
    words = torch.cat((x.view(torch.int32).reshape(-1), ground.int32(7, -7)))

    def read(card: Any) -> tuple[Any, Any]:
        return card[: x.numel()].view(torch.float32).view(4, 64) * 2.0, card[x.numel() :] + 1

    floats, integers = ground.result(read, words)
    figures = equal(floats, x * 2.0)
    if integers.tolist() != [8, -6]:
        figures["error"] = f"int32 behind float32 came back as {integers.tolist()}"
    return figures
