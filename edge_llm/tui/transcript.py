"""The messages of a chat, newest at the bottom.  Only the last ones are widgets; earlier ones come when one scrolls to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from textual import on
from textual.containers import VerticalScroll
from textual.widgets import Button

from edge_llm.chats.tree import Message
from edge_llm.tui.message_view import MessageView

LINES = 48
"""Lines of messages that are widgets when a chat is opened, and that come at a time when one scrolls up.

Every paragraph, item and cell is a widget, and every widget costs time in every frame of a stream.
"""
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

    async def show(self, path: Sequence[Message], tree: Iterable[Message]) -> None:
        """Show ``path`` out of ``tree`` from its end."""
        self._path = list(path)
        self._versions = _versions(path, tree)
        self._first = _first_of(self._path, LINES)
        async with self.batch():
            await self.remove_children()
            await self.mount_all([*self._earlier_button(), *(self._view(message) for message in self._path[self._first :])])
        self.anchor()

    async def add(self, message: Message) -> MessageView:
        """A message behind the others."""
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
        end = self._first
        self._first = _first_of(self._path[:end], LINES)
        button = self.query_one("#earlier", Button)
        below = self.max_scroll_y - self.scroll_y
        self.release_anchor()
        async with self.batch():
            await self.mount_all([self._view(message) for message in self._path[self._first : end]], after=button)
            if self._first == 0:
                await button.remove()
            else:
                button.label = _earlier(self._first)
        self.call_after_refresh(lambda: self.scroll_to(y=self.max_scroll_y - below, animate=False))

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
        return [Button(_earlier(self._first), id="earlier", compact=True)] if self._first else []

    def _view(self, message: Message) -> MessageView:
        return MessageView(message, self._versions.get(message.id, (1, 1)))


def _earlier(count: int) -> str:
    return f"{count} earlier messages"


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
