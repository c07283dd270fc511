"""How long work tells how far it is: two forms of callback, and one that nobody looks at."""

from __future__ import annotations

from collections.abc import Callable

CountProgress = Callable[[int, int], None]
"""Called as (done, total), in units that the caller names."""
StageProgress = Callable[[str, int, int], None]
"""Called as (stage, done, total).  Stages: download, digest and load (bytes), layers, output, copy, unchanged."""


def ignore(*_: object) -> None:
    """Progress, or a notice, that nobody looks at."""
