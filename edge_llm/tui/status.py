"""The line above the prompt: what goes on now, how long it will take, and how full the context is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

from textual.content import Content
from textual.widgets import Static

from edge_llm.files import printable
from edge_llm.tui.units import estimated_time


class Estimate:
    """Estimates how long something takes, from what it tells of how far it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._first = (0.0, 0)
        self._last = (0.0, 0)
        """(when, done) as the stage told it first and last."""

    def text(self, stage: str, done: int, total: int) -> str:
        """`stage  43 %  3 s left`; the time as soon as there is something to reckon from."""
        now = self._clock()
        if stage != self._stage or done < self._last[1]:
            self._stage, self._first, self._last = stage, (now, done), (now, done)
        elif done > self._last[1]:
            self._last = (now, done)
        if total <= 0:
            return stage
        text = f"{stage}  {min(1.0, done / total):.0%}"
        (began, first), (told, _) = self._first, self._last
        if first < done < total and told > began:
            left = (total - done) * (told - began) / (done - first) - (now - told)
            text += f"  {estimated_time(left)} left"
        return text


def bar(share: float, width: int = 20) -> str:
    """A bar of ``width`` cells, filled to ``share``."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "░")


class StatusLine(Static):
    """Shows an activity on the left and what is known of model and context on the right."""

    def __init__(self) -> None:
        super().__init__("", id="status", markup=False)
        self._activity = ""
        self._about: tuple[tuple[str, str], ...] = ()

    def show(self, activity: str, about: Sequence[tuple[str, str]]) -> None:
        """Change what is shown; ``about`` has texts and their styles."""
        before = (self._activity, self._about)
        self._activity = printable(activity)
        self._about = tuple((printable(text), style) for text, style in about)
        if before != (self._activity, self._about):
            self._draw()

    @property
    def activity(self) -> str:
        """What goes on; empty for nothing."""
        return self._activity

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        left = Content(self._activity)
        runs = [("  ".join(text for text, _ in run), style) for style, run in groupby(self._about, lambda part: part[1])]
        right = Content("  ").join(Content.styled(text, style) for text, style in runs)
        gap = self.size.width - left.cell_length - right.cell_length
        if gap < 1:  # what goes on is more important
            self.update(left if self._activity else right, layout=False)
        else:
            self.update(Content.assemble(left, " " * gap, right), layout=False)  # a line stays a line
