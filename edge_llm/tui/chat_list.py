"""The list of chats, newest first, searched by title and by what was said."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from edge_llm.chats.titles import UNTITLED
from edge_llm.chats.tree import FoundChat
from edge_llm.files import printable
from edge_llm.tui.field import Field
from edge_llm.tui.units import age


class ChatList(Vertical):
    """Lists chats beside the transcript; what the person does with one is told as an event."""

    BINDINGS = [
        Binding("escape", "leave", "Back", id="chats_leave"),
        Binding("ctrl+n", "new", "New", show=False),
        Binding("f6", "act('rename')", "Rename", id="chats_rename"),
        Binding("delete", "act('delete')", "Delete", id="chats_delete"),
        Binding("down", "down", show=False),
    ]

    class Search(Event):
        """The person looks for other chats than before."""

    class Chosen(Event):
        """The person wants ``action`` (open, rename, delete) done with a chat."""

        def __init__(self, chat_id: int, action: str) -> None:
            super().__init__()
            self.chat_id = chat_id
            self.action = action

    class Left(Event):
        """The person is through with the list."""

    def __init__(self) -> None:
        super().__init__(id="chats")
        self._found: Sequence[FoundChat] = ()
        self._current: int | None = None
        self._searched: str | None = None  # what the list answers
        self._opens: str | None = None  # what was searched when Enter came before the list that it means

    def compose(self) -> ComposeResult:
        yield Field(placeholder="search chats", compact=True)
        yield OptionList(markup=False, compact=True)

    @property
    def search_text(self) -> str:
        """What is searched for; empty for nothing."""
        return self.query_one(Input).value.strip()

    def look_for(self, text: str) -> None:
        """Search for ``text``, as if it were typed."""
        field = self.query_one(Input)
        field.value = text
        self._opens = None
        field.focus()

    def fill(self, found: Sequence[FoundChat], current: int | None, searched: str) -> None:
        """List ``found``, which answers ``searched``; the chat ``current`` is on the screen."""
        self._list(found, current)
        self._searched = searched
        if searched == self._opens:
            self._opens = None
            self.action_act("open")

    def _list(self, found: Sequence[FoundChat], current: int | None) -> None:
        if (list(found), current) == (list(self._found), self._current) and self.query_one(OptionList).option_count:
            return
        self._found, self._current = found, current
        choices = self.query_one(OptionList)
        before = choices.highlighted
        choices.clear_options()
        now = time.time()
        choices.add_options([Option(_line(one, now, one.chat.id == current), id=str(one.chat.id)) for one in found])
        if found:
            choices.highlighted = min(before or 0, len(found) - 1)

    @on(Input.Changed)
    def changed(self, event: Input.Changed) -> None:
        event.stop()
        self._opens = None
        self.post_message(self.Search())

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        event.stop()
        wanted = event.value.strip()
        if self._searched == wanted:
            self.action_act("open")
        else:
            self._opens = wanted

    @on(OptionList.OptionSelected)
    def selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_act("open")

    def action_act(self, action: str) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self._found):
            self.post_message(self.Chosen(self._found[at].chat.id, action))

    def action_down(self) -> None:
        self.query_one(OptionList).focus()

    def action_leave(self) -> None:
        self.post_message(self.Left())

    async def action_new(self) -> None:
        await self.app.run_action("command('new')")


def _line(found: FoundChat, now: float, current: bool) -> Content:
    title = printable(found.chat.title or UNTITLED)
    parts = [(f"{'›' if current else ' '} {title}", "bold" if current else ""), (f"  {age(now - found.chat.changed)}", "dim")]
    if found.excerpt:
        parts.append((f"\n    {printable(found.excerpt)}", "dim"))
    return Content.assemble(*parts)
