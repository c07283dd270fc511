"""What the disk of a streamed model can give, and how much of the time it was at work."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_llm.bench.memory import forget_peak
from edge_llm.formats.block_reader import read_rate
from edge_llm.formats.bundle import Bundle
from edge_llm.weights.base import FlashCounts

_STAT = "/sys/dev/block/{}:{}/stat"
_BUSY_FIELD = 9
"""Of the kernel's block layer statistics: milliseconds in which a request was under way."""


def measure_disk(bundle: Bundle, seconds: float = 0.5) -> float:
    """Bytes per second from the disk of ``bundle``, several requests in flight, past the page cache."""
    return read_rate(bundle, seconds)


def busy_seconds(folder: Path) -> float | None:
    """Seconds since the start of the machine in which the disk of ``folder`` had work; None where nobody says."""
    device = folder.stat().st_dev
    try:
        return int(Path(_STAT.format(os.major(device), os.minor(device))).read_text().split()[_BUSY_FIELD]) / 1e3
    except (OSError, IndexError, ValueError):  # no block device: a network file system, an overlay
        return None


@dataclass(frozen=True)
class DiskUse:
    """The disk while something ran."""

    rate: float
    """Bytes per second that it gave alone, right before and after."""
    busy: float | None
    """Share of the time in which it had a request, anybody's."""


@dataclass(frozen=True)
class _Before:
    rate: float
    clock: float
    busy: float | None


class DiskMeter:
    """Measures the disk of ``bundle`` around tests; with None, nothing."""

    def __init__(self, bundle: Bundle | None) -> None:
        self._bundle = bundle

    def before(self) -> _Before | None:
        """Call it right before a test."""
        if self._bundle is None:
            return None
        rate = measure_disk(self._bundle)
        forget_peak()  # the meter's buffers are no part of the model
        return _Before(rate, time.perf_counter(), busy_seconds(self._bundle.folder))

    def after(self, before: _Before | None, *, alone: bool) -> DiskUse | None:
        """Call it right after the test; if nobody else took turns (``alone``), it tells how busy the disk was."""
        if self._bundle is None or before is None:
            return None
        busy, seconds = busy_seconds(self._bundle.folder), time.perf_counter() - before.clock
        share = None
        if alone and busy is not None and before.busy is not None:
            share = min(1.0, (busy - before.busy) / seconds)
        return DiskUse((before.rate + measure_disk(self._bundle)) / 2, share)


def streaming(
    row: dict[str, Any], streamed_bytes: int, disk: DiskUse | None, experts: FlashCounts | None = None
) -> dict[str, Any]:
    """What a row says of streamed weights; ``disk_share`` is generation over what the disk alone would allow.

    Of ``experts`` that come from flash a token reads what these counts say.
    """
    if disk is None:
        return dict.fromkeys(_KEYS)
    if experts is not None:
        found = experts.facts
        return streaming(row, round(found["flash_bytes_per_token"] or 0), disk) | found
    share = None if row["n_prompt"] else row["median_ts"] * streamed_bytes / disk.rate
    return dict(zip(_KEYS, (streamed_bytes, disk.rate, share, disk.busy), strict=True))


_KEYS = ("streamed_bytes_per_token", "disk_bytes_per_s", "disk_share", "disk_busy_share")
