"""The panel that shows what goes on inside.  It looks only while it is seen, and draws only what has changed.

    panel = InsidePanel(provider.look)
    panel.add_answer(figures)        # after each answer
    panel.see_rate(21.5)             # while one is on its way
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer

from edge_llm.files import printable
from edge_llm.tui.inside.drawing import KINDS, PARTS, STATES, Palette, words
from edge_llm.tui.inside.figures import draw_counters, draw_memory, draw_speeds
from edge_llm.tui.inside.lanes import draw_lanes
from edge_llm.tui.inside.pages import draw_pages
from edge_llm.tui.inside.work import draw_step

if TYPE_CHECKING:
    from edge_llm.engine.inside import Inside
    from edge_llm.providers.base import Figures

LOOKS_PER_SECOND = 2
NUMBERS = ("speeds", "step", "counters", "memory")
"""Sections that nearly always change: they are drawn at every second look, because a frame takes the app longer than a look."""
REMEMBERED = 200
"""Answers, and speeds of the one on its way."""
NOT_HERE = "There is nothing to look into: the model answers on another machine, or has not been loaded yet."

Draw = Callable[[int, Palette], list[Strip]]
NAMES = ("title", "quiet", *STATES, *PARTS, *(f"kind-{place}" for place in range(KINDS)))


class InsidePanel(ScrollView, can_focus=True):
    """Shows what ``look`` says, None being that it cannot be seen."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"inside--{name}" for name in NAMES}
    DEFAULT_CSS = """
    InsidePanel {
        padding: 0 1;
        scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;
        .inside--title { color: $text-accent; text-style: bold; }
        .inside--quiet { color: $text-muted; }
        .inside--free { color: $foreground 15%; }
        .inside--used { color: $success; }
        .inside--shared { color: $warning; }
        .inside--cached { color: $primary; }
        .inside--weights { color: $primary; }
        .inside--keys { color: $success; }
        .inside--rest { color: $warning; }
        .inside--others { color: $foreground 40%; }
        .inside--kind-0 { color: $primary; }
        .inside--kind-1 { color: $success; }
        .inside--kind-2 { color: $warning; }
        .inside--kind-3 { color: $accent; }
        .inside--kind-4 { color: $error; }
        .inside--kind-5 { color: $secondary; }
    }
    """

    def __init__(self, look: Callable[[], Inside | None]) -> None:
        super().__init__()
        self._look = look
        self._rates: deque[float] = deque(maxlen=REMEMBERED)
        self._answers: deque[float] = deque(maxlen=REMEMBERED)
        self._firsts: deque[float] = deque(maxlen=REMEMBERED)
        self._answered = False
        self._speeds = 0  # changes of the three
        self._drawn: dict[str, tuple[tuple[int, object], list[Strip]]] = {}
        self._strips: list[Strip] = []
        self._palette: Palette | None = None
        self._timer: Timer | None = None
        self._ticks = 0

    def add_answer(self, figures: Figures) -> None:
        """An answer has ended."""
        for values, value in ((self._answers, figures.tokens_per_second), (self._firsts, figures.first_token_seconds)):
            if value is not None:
                values.append(value)
        self._answered = True
        self._speeds += 1

    def see_rate(self, tokens_per_second: float) -> None:
        """How fast the answer is that is on its way."""
        if self._answered:
            self._answered = False
            self._rates.clear()
        self._rates.append(tokens_per_second)
        self._speeds += 1

    # -- when it looks ------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self._timer = self.set_interval(1 / LOOKS_PER_SECOND, self._tick, pause=True)

    def on_show(self, event: events.Show) -> None:
        self.poll()
        if self._timer is not None:
            self._timer.resume()

    def on_hide(self, event: events.Hide) -> None:
        if self._timer is not None:
            self._timer.pause()

    def on_resize(self, event: events.Resize) -> None:
        self.poll()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._palette = None
        self._drawn.clear()
        if self.is_mounted:
            self.call_after_refresh(self.poll)

    def _tick(self) -> None:
        self._ticks += 1
        self.poll(numbers=self._ticks % 2 == 0)

    def poll(self, *, numbers: bool = True) -> None:
        """Look, and draw what has changed, ``numbers`` too if asked for; nothing while the panel is not seen."""
        width = self.scrollable_content_region.width
        if not self.display or width < 1 or not self._uncovered:
            return
        try:
            sections = self._sections(self._look())
        except Exception as error:  # a face does not end because a number is odd
            said = printable(f"It cannot be looked into: {error!r}"[:200])
            sections = [("problem", "", said, _sentence(said))]
        self._show(sections, width, () if numbers else NUMBERS)

    @property
    def _uncovered(self) -> bool:
        """Whether its screen is seen: on top, or behind a dialog."""
        top = self.app.screen
        return top is self.screen or top.is_modal

    # -- what it shows ------------------------------------------------------------------------------------------------

    def _sections(self, inside: Inside | None) -> list[tuple[str, str, object, Draw]]:
        """(name, title, what it depends on, how it is drawn) of all that is shown."""
        speed = ("speeds", "Speed", self._speeds, self._draw_speeds)
        if inside is None:
            return [("nothing", "", "", _sentence(NOT_HERE)), speed]
        flash = (inside.streamed_bytes, inside.read_bytes, inside.experts)
        counted = (inside.counters, inside.facts, inside.overflow, inside.clipped, flash)
        there = (inside.running, inside.waiting, inside.preemptions, tuple(inside.prefix_disk.items()))
        held = tuple(size >> 20 if size else 0 for size in (*inside.memory, inside.weight_bytes, inside.kv_bytes))
        return [
            ("lanes", "Last prompt", inside.prompt, lambda width, palette: draw_lanes(inside.prompt, width, palette)),
            *self._step(inside),
            speed,
            ("pages", "Keys and values", inside.pages, lambda width, palette: draw_pages(inside.pages, width, palette)),
            ("counters", "Counted", (counted, there), lambda width, palette: draw_counters(inside, width, palette)),
            ("memory", "Memory", held, lambda width, palette: draw_memory(inside, width, palette)),
        ]

    def _step(self, inside: Inside) -> list[tuple[str, str, object, Draw]]:
        """What a token takes, where the host does all of it."""
        if inside.step is None:
            return []
        rates = self._answers if self._answered or not self._rates else self._rates
        rate = rates[-1] if rates else None
        state = (inside.step, inside.memory_rate, self._speeds)
        return [("step", "Last answer", state, lambda width, palette: draw_step(inside, rate, width, palette))]

    def _draw_speeds(self, width: int, palette: Palette) -> list[Strip]:
        return draw_speeds(list(self._rates), list(self._answers), list(self._firsts), width, palette)

    def _show(self, sections: list[tuple[str, str, object, Draw]], width: int, later: Sequence[str]) -> None:
        """Draw the sections that changed, but those named in ``later`` as they were; have the lines refreshed that differ."""
        if self._palette is None:
            self._palette = Palette({name: self.get_component_rich_style(f"inside--{name}") for name in NAMES})
        palette, strips = self._palette, []
        for name, title, state, draw in sections:
            key = (width, state)
            known = self._drawn.get(name)
            if known is None or (known[0] != key and not (name in later and known[0][0] == width)):
                heading = [palette.line(width, [(title, "title")])] if title else []
                self._drawn[name] = key, [*heading, *draw(width, palette), Strip.blank(width)]
            strips += self._drawn[name][1]
        before, self._strips = self._strips, strips
        if len(before) != len(strips) or self.virtual_size.width != width:
            self.virtual_size = Size(width, len(strips))
            self.refresh()
            return
        top = self.scroll_offset.y
        seen = range(top, min(len(strips), top + self.size.height))
        changed = [y for y in seen if before[y] is not strips[y] and before[y] != strips[y]]
        if changed:
            self.refresh(*[Region(0, y - top, width, 1) for y in changed])

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        strip = self._strips[line] if line < len(self._strips) else Strip.blank(self.size.width)
        return strip.apply_style(self.rich_style)


def _sentence(text: str) -> Draw:
    return lambda width, palette: [palette.line(width, pieces) for pieces in words(text, width)]
