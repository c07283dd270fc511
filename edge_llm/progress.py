"""How long work tells how far it is: two forms of callback, one that nobody looks at, and estimates of what is left."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

CountProgress = Callable[[int, int], None]
"""Called as (done, total), in units that the caller names."""
StageProgress = Callable[[str, int, int], None]
"""Called as (stage, done, total).  Those of `IN_BYTES` count bytes, others layers, tokens, choices ..."""


IN_BYTES = frozenset({"download", "digest", "read", "load"})
"""The stages that are counted in bytes."""

DOWNLOAD = "download"
LIKELY_DOWNLOAD_RATE = 12.5e6
"""Bytes per second that are reckoned with before any have come: 100 Mbit/s."""
RATE_SECONDS = 10.0
"""The time over which the rate of a download is taken."""
IMPORT_SECONDS = {
    "int8": {"digest": 1.0, "calibration": 45.0, "layers": 160.0, "output": 10.0},
    "fast": {"digest": 1.0, "calibration": 45.0, "layers": 25.0, "output": 6.0},
    "w4": {"digest": 1.0, "calibration": 50.0, "layers": 210.0, "output": 10.0},
    "auto": {"digest": 1.0, "calibration": 50.0, "costs of 4 bits": 125.0, "layers": 250.0, "output": 12.0},
}
"""By what is done with weights: seconds of one core per gigabyte of the source, stage by stage (measured: SmolLM2-135M,
Qwen2.5-0.5B, Zen 4)."""
START_SECONDS = 0.5
"""Of every stage, however small the model."""
SURE_AFTER = 0.2
"""Share of the expected time of an import after which only what was measured counts."""


@dataclass(frozen=True)
class Step:
    """How far some work is."""

    stage: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None
    """Of this stage."""
    seconds_left_in_all: float | None = None
    """Of this stage and those behind it, where that is known."""
    per_second: float | None = None
    """Bytes, of a download."""

    @property
    def share(self) -> float:
        return self.done / self.total if self.total > 0 else 0.0

    def after(self, seconds: float) -> Step:
        """The same ``seconds`` later, where nothing more was told."""
        left, in_all = (
            None if value is None else max(0.0, value - seconds) for value in (self.seconds_left, self.seconds_left_in_all)
        )
        return replace(self, seconds_left=left, seconds_left_in_all=in_all)

    def over(self) -> Step:
        """The same without times: another stage has begun."""
        return replace(self, seconds_left=None, seconds_left_in_all=None, per_second=None)

    def to_json(self) -> str:
        """As a program is told."""
        optional = {"seconds_left": self.seconds_left, "seconds_left_in_all": self.seconds_left_in_all}
        known = {name: round(value, 1) for name, value in optional.items() if value is not None}
        rate = {} if self.per_second is None else {"bytes_per_second": round(self.per_second)}
        return json.dumps({"stage": self.stage, "done": self.done, "total": self.total, **known, **rate})

    @classmethod
    def from_json(cls, line: str) -> Step | None:
        """What a line of `to_json` says; None for any other line."""
        if not line.startswith("{"):
            return None
        try:
            said = json.loads(line)
            left, in_all, rate = (
                None if said.get(name) is None else float(said[name])
                for name in ("seconds_left", "seconds_left_in_all", "bytes_per_second")
            )
            return cls(str(said["stage"]), int(said["done"]), int(said["total"]), left, in_all, rate)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None

    def __str__(self) -> str:
        """`download 141 of 257 MB, 24 MB/s, 0:06 left`, `layers 3 of 30, 1:05 left in all`."""
        return f"{self.stage} {self.so_far}"

    @property
    def begun(self) -> str:
        """The stage, and what is known at its beginning."""
        if self.stage == DOWNLOAD:
            return str(self)
        in_all = self.seconds_left_in_all
        return self.stage if in_all is None else f"{self.stage}, {clock_time(in_all)} left in all"

    @property
    def so_far(self) -> str:
        """The same without the stage's name."""
        if self.stage == DOWNLOAD and self.total > 0:
            parts = [f"{_amount(self.done, self.total)} of {byte_count(self.total)}"]
            parts += [] if not self.per_second else [f"{byte_count(self.per_second)}/s"]
        elif self.stage in IN_BYTES:
            parts = [f"{self.done / self.total if self.total else 1:.0%}"]
        else:
            parts = [f"{self.done} of {self.total}"]
        if self.seconds_left_in_all is not None:
            parts.append(f"{clock_time(self.seconds_left_in_all)} left in all")
        elif self.seconds_left is not None and self.done < self.total:
            parts.append(f"{clock_time(self.seconds_left)} left")
        return ", ".join(parts)


class Pace:
    """How long the rest of a stage takes, if it goes on as it went since the stage was first told of."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[float, int]] = {}

    def seconds_left(self, stage: str, done: int, total: int, now: float) -> float | None:
        """Told how far ``stage`` is at the second ``now`` of any clock: the time that is left, None where it is not known."""
        begun, first = self._begun.setdefault(stage, (now, done))
        return (now - begun) / (done - first) * (total - done) if done > first else None


class Journey:
    """How long a download and an import take together: what was expected, corrected by what each stage has taken so far."""

    def __init__(
        self, kind: str | None = None, cores: int | None = None, slowness: Callable[[int], float] | None = None
    ) -> None:
        """``kind``: one of `IMPORT_SECONDS`; None for work that is no import, whose stages are told one by one.

        ``slowness``: how many times as long as there a model of so many parameters takes; asked once, before the import.
        """
        self._kind = kind
        self._cores = cores
        self._slowness = slowness
        self._slower = 1.0
        self._pace = Pace()
        self._rate = _Rate()
        self._expected: Mapping[str, float] = {}
        self.stage = ""
        """What was told of last."""
        self._begun = 0.0
        self._first = 0.0
        """The share of the stage that was done when it was first told of."""
        self._spent = self._foreseen = 0.0
        """Seconds of the stages that are over, and those that were expected of them."""

    def told(self, stage: str, done: int, total: int, now: float) -> Step:
        """``stage`` is so far at the second ``now`` of any clock."""
        left = self._pace.seconds_left(stage, done, total, now)
        rate = self._rate.of(done, now) if stage == DOWNLOAD else None
        if rate:
            left = (total - done) / rate
        if stage in (DOWNLOAD, "digest"):
            self._expect(stage, total)
        if stage != self.stage:
            self._enter(stage, done / total if total > 0 else 0.0, now)
        step = Step(stage, done, total, left, None, rate)
        return Step(stage, done, total, left, self._in_all(step, now), rate)

    def _expect(self, stage: str, source_bytes: int) -> None:
        if self._kind is None or self._foreseen:
            return
        if stage != DOWNLOAD and self._slowness is not None:
            self._slower, self._slowness = self._slowness(source_bytes // 2), None
        self._expected = import_seconds(source_bytes, self._kind, self._cores, self._slower)

    def _enter(self, stage: str, first: float, now: float) -> None:
        if self.stage in self._expected:
            self._spent += now - self._begun
            self._foreseen += self._expected[self.stage] * (1 - self._first)
        self.stage, self._begun, self._first = stage, now, first

    def _in_all(self, step: Step, now: float) -> float | None:
        if not self._expected or not (step.stage in self._expected or step.stage == DOWNLOAD):
            return None
        if step.stage == DOWNLOAD:
            here = (step.total - step.done) / LIKELY_DOWNLOAD_RATE if step.seconds_left is None else step.seconds_left
            return here + sum(self._expected.values())
        stages = list(self._expected)
        at = stages.index(step.stage)
        whole = self._expected[step.stage]
        foreseen = self._foreseen + whole * max(0.0, step.share - self._first)
        doubt = max(0.0, SURE_AFTER * sum(self._expected.values()) - foreseen) / 4
        factor = (self._spent + (now - self._begun if step.share > self._first else 0.0) + doubt) / (foreseen + doubt)
        here = whole * (1 - step.share) * factor
        if step.seconds_left is not None:  # the further the stage is, the more its own pace says
            here += (step.seconds_left - here) * min(1.0, 2 * step.share)
        return here + factor * sum(self._expected[stage] for stage in stages[at + 1 :])


class _Rate:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, done: int, now: float) -> float | None:
        if self._seen and done < self._seen[-1][1]:  # another file, or from the start again
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_SECONDS:
            self._seen.popleft()
        begun, first = self._seen[0]
        return (done - first) / (now - begun) if done > first and now > begun else None


def import_seconds(
    source_bytes: int, kind: str = "int8", cores: int | None = None, slowness: float = 1.0
) -> dict[str, float]:
    """The stages of an import of weights of so many bytes (two each), and the seconds that each may take on ``cores``
    (default: those of this process), where all takes ``slowness`` times as long."""
    scale = slowness * source_bytes / 1e9 / min(16, cores or len(os.sched_getaffinity(0)))
    return {stage: START_SECONDS + seconds * scale for stage, seconds in IMPORT_SECONDS[kind].items()}


def whole_seconds(download_bytes: int, source_bytes: int) -> float:
    """Seconds that a download, of what is not here yet, and its import may take together."""
    return download_bytes / LIKELY_DOWNLOAD_RATE + sum(import_seconds(source_bytes).values())


def byte_count(count: float) -> str:
    """`80 B`, `257 MB`, `1.5 GB`: as the hub counts."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:.1f} {unit}" if unit == "GB" or count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def byte_size(count: float) -> str:
    """`80 B`, `1.5 KiB`, `300 MiB`, `2.0 GiB`: as memory is counted; what every face says of a model's size."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _amount(part: float, whole: float) -> str:
    """``part`` in the unit that ``whole`` is told in: `141` of `257 MB`."""
    size = next((size for size in (1e9, 1e6, 1e3) if whole >= 0.9995 * size), 1.0)
    return f"{part / size:.1f}" if size == 1e9 or (size > 1 and whole < 10 * size) else f"{part / size:.0f}"


def clock_time(seconds: float) -> str:
    """`0:06`, `2:10`, `1:02:10`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{f'{hours}:{minutes:02}' if hours else minutes}:{rest:02}"


def rough_time(seconds: float) -> str:
    """`20 s`, `2 min`, `1 h 10 min`: no more exact than an estimate is."""
    if seconds < 60:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def ignore(*_: object) -> None:
    """Progress, or a notice, that nobody looks at."""
