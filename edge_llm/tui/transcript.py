"""The messages of a chat, newest at the bottom.  Only the last ones are widgets; earlier ones come when one scrolls to them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from textual import events, on
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Button

from edge_llm.chats.tree import Message
from edge_llm.tui.message_view import MessageView

LINES = 48
"""Lines of messages that are widgets when a chat is opened, and that come at a time when one scrolls up.

Every paragraph, item and cell is a widget, and every widget costs time in every frame of a stream.
"""
WIDE = 140
"""Columns from which messages, which have at most 100, stand in the middle."""
_AROUND = 3
"""Lines around the text of a message."""
_FEWEST = 2
"""Messages that are shown however long they are: the last prompt and its answer."""


class Transcript(VerticalScroll, can_focus=False):
    """Shows a path of messages; sticks to the bottom until one scrolls away from it."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._path: list[Message] = []
        self._versions: dict[int, tuple[int, int]] = {}
        self._first = 0
        self._changing = asyncio.Lock()
        """Held while messages come or go: a chat may be shown while earlier messages of another one are on their way."""

    async def show(self, path: Sequence[Message], tree: Iterable[Message]) -> None:
        """Show ``path`` out of ``tree`` from its end."""
        async with self._changing:
            self._path = list(path)
            self._versions = _versions(path, tree)
            self._first = _first_of(self._path, LINES)
            async with self.batch():
                await self.remove_children()
                shown = [self._view(message) for message in self._path[self._first :]]
                await self.mount_all([*self._earlier_button(), *shown])
        self.anchor()
        self.call_after_refresh(self._bring)

    async def add(self, message: Message) -> MessageView:
        """A message behind the others."""
        async with self._changing:
            self._path.append(message)
            await self._forget_earliest()
            view = self._view(message)
            await self.mount(view)
        self.anchor()
        return view

    def unseen(self, message: Message) -> MessageView:
        """A widget for a message of a chat that is not on the screen."""
        return MessageView(message)

    def views(self) -> list[MessageView]:
        """The messages that are widgets, in order."""
        return list(self.query_children(MessageView))

    def view_of(self, message_id: int) -> MessageView | None:
        """The widget of a message."""
        return next((view for view in self.views() if view.message.id == message_id), None)

    @on(Button.Pressed, "#earlier")
    async def show_earlier(self) -> None:
        """Bring earlier messages, and keep what is seen where it is."""
        async with self._changing:
            end = self._first
            self._first = _first_of(self._path[:end], LINES)
            if not end:
                return
            button = self.query_one("#earlier", Button)
            below = self.max_scroll_y - max(0, self.scroll_y)  # it is below 0 where there is room above the first message
            if below >= 1:  # else the end is seen, and stays to be seen
                self.release_anchor()
            async with self.batch():
                await self.mount_all([self._view(message) for message in self._path[self._first : end]], after=button)
                if self._first == 0:
                    await button.remove()
                else:
                    button.label = _earlier(self._first)
        if below >= 1:
            self.call_after_refresh(lambda: self.scroll_to(y=self.max_scroll_y - below, animate=False))

    # -- walking ------------------------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Messages of a wide window stand in its middle."""
        self.set_class(event.size.width >= WIDE, "-wide")
        self.call_after_refresh(self._bring)

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if new < 1 <= old and self._first:
            self.call_after_refresh(self._bring)

    async def _bring(self) -> None:
        """Bring earlier messages when the first one is seen: one has come to the top, or there is room for more."""
        if self._first and self.scroll_y < 1 and not self._changing.locked() and self.is_attached and self.size.height:
            await self.show_earlier()
            if self.max_scroll_y < 1:
                self.call_after_refresh(self._bring)

    @on(MessageView.Walk)
    async def walk(self, event: MessageView.Walk) -> None:
        """Go through a message that is longer than the screen, and from its edge on to the next one."""
        event.stop()
        view, step = event.view, event.step
        left = self._hidden(view, step)
        if left > 0:
            self.scroll_relative(y=step * min(left, max(1, self.size.height // 2)), animate=False, immediate=True)
            return
        views = self.views()
        at = views.index(view) + step
        if at < 0 and self._first:
            await self.show_earlier()
            views = self.views()
            at = views.index(view) + step
        if at >= len(views):
            self.screen.query_one("#prompt").focus()
        elif at >= 0:
            self._enter(views[at], step)

    def _hidden(self, view: MessageView, step: int) -> int:
        """Lines of ``view`` above or below what is seen."""
        top = view.virtual_region.y - round(self.scroll_y)
        return -top if step < 0 else top + view.virtual_region.height - self.size.height

    def _enter(self, view: MessageView, step: int) -> None:
        """Focus ``view`` and show the end of it that one comes from."""
        view.focus(scroll_visible=False)
        if (hidden := self._hidden(view, -step)) > 0:
            self.scroll_relative(y=-step * hidden, animate=False, immediate=True)
        fits = view.virtual_region.height <= self.size.height
        if fits and (hidden := self._hidden(view, step)) > 0:
            self.scroll_relative(y=step * hidden, animate=False, immediate=True)

    def focus_beside(self, focused: Widget | None, step: int) -> bool:
        """Tab and Shift+Tab: from the prompt to the last message, and from message to message; false for other places."""
        views = self.views()
        if isinstance(focused, MessageView) and focused in views:
            at = views.index(focused) + step
        elif focused is not None and focused.id == "prompt":
            at = len(views) - 1
        else:
            return False
        if not 0 <= at < len(views):
            self.screen.query_one("#prompt").focus()
        else:
            self._enter(views[at], step if isinstance(focused, MessageView) else -1)
        return True

    # -- what is mounted ----------------------------------------------------------------------------------------------

    async def _forget_earliest(self) -> None:
        shown = self._path[self._first :]
        if sum(_lines(message) for message in shown) < 2 * LINES or len(shown) <= 2 * _FEWEST:
            return
        count = _first_of(shown, LINES)
        leaving = self.views()[:count]
        self._first += count
        await self.remove_children(leaving)
        for button in self.query("#earlier").results(Button):
            button.label = _earlier(self._first)
        if not self.query("#earlier"):
            await self.mount_all(self._earlier_button(), before=0)

    def _earlier_button(self) -> list[Button]:
        if not self._first:
            return []
        button = Button(_earlier(self._first), id="earlier", compact=True)
        button.can_focus = False  # it is no message
        return [button]

    def _view(self, message: Message) -> MessageView:
        return MessageView(message, self._versions.get(message.id, (1, 1)))


def _earlier(count: int) -> str:
    return f"↑ {count} earlier message{'s' * (count > 1)}"


def _lines(message: Message) -> int:
    return _AROUND + sum(1 for line in f"{message.thought}\n{message.text}".splitlines() if line.strip())


def _first_of(path: Sequence[Message], lines: int) -> int:
    """Where the last messages of ``path`` begin that have together at most so many lines."""
    left = lines
    for at in range(len(path) - 1, -1, -1):
        left -= _lines(path[at])
        if left < 0 and len(path) - at > _FEWEST:
            return at + 1
    return 0


def _versions(path: Sequence[Message], tree: Iterable[Message]) -> dict[int, tuple[int, int]]:
    """Which of how many at its place every message of ``path`` is."""
    families = defaultdict(list)
    for message in tree:
        families[message.parent, message.role].append(message.id)
    found = {}
    for message in path:
        ids = sorted(families[message.parent, message.role])
        found[message.id] = (ids.index(message.id) + 1, len(ids)) if message.id in ids else (1, 1)
    return found
