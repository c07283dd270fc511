"""How long work tells how far it is: two forms of callback, and one that nobody looks at."""

from __future__ import annotations

from collections.abc import Callable

CountProgress = Callable[[int, int], None]
"""Called as (done, total), in units that the caller names."""
StageProgress = Callable[[str, int, int], None]
"""Called as (stage, done, total).  Those of `IN_BYTES` count bytes, others layers, tokens, choices ..."""


IN_BYTES = frozenset({"download", "digest", "load"})
"""The stages that are counted in bytes."""


class Pace:
    """How long the rest of a stage takes, if it goes on as it went since the stage was first told of."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[float, int]] = {}

    def seconds_left(self, stage: str, done: int, total: int, now: float) -> float | None:
        """Told how far ``stage`` is at the second ``now`` of any clock: the time that is left, None where it is not known."""
        begun, first = self._begun.setdefault(stage, (now, done))
        return (now - begun) / (done - first) * (total - done) if done > first else None


def ignore(*_: object) -> None:
    """Progress, or a notice, that nobody looks at."""
