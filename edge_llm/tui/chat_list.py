"""The list of chats, newest first, searched by title and by what was said."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

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
        self._found: dict[str, FoundChat] = {}
        self._shown: tuple[tuple[FoundChat, ...], int | None, int] = ((), None, 0)
        """What is listed, the chat on the screen, and the columns of a line."""
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
        choices = self.query_one(OptionList)
        width = choices.scrollable_content_region.width
        shown = (tuple(found), current, width)
        if shown == self._shown and choices.option_count:
            return
        self._shown, self._found = shown, {str(one.chat.id): one for one in found}
        before = self._chosen
        choices.clear_options()
        now = datetime.now()
        for day, chats in groupby(found, lambda one: _day(one, now)):
            choices.add_option(Option(Content.styled(day, "$foreground-muted"), disabled=True))
            choices.add_options([Option(_line(one, now, width, one.chat.id == current), id=str(one.chat.id)) for one in chats])
        if found:
            chosen = before if before in self._found else str(found[0].chat.id)
            choices.highlighted = choices.get_option_index(chosen)

    def on_resize(self) -> None:
        """Titles are cut where the list ends."""
        self.call_after_refresh(lambda: self._list([*self._found.values()], self._shown[1]))

    @property
    def _chosen(self) -> str | None:
        """The id of the chat that keys mean."""
        at = self.query_one(OptionList).highlighted
        return None if at is None else self.query_one(OptionList).get_option_at_index(at).id

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
        if (chosen := self._chosen) is not None and chosen in self._found:
            self.post_message(self.Chosen(self._found[chosen].chat.id, action))

    def action_down(self) -> None:
        self.query_one(OptionList).focus()

    def action_leave(self) -> None:
        self.post_message(self.Left())

    async def action_new(self) -> None:
        await self.app.run_action("command('new')")


def _day(found: FoundChat, now: datetime) -> str:
    days = (now.date() - datetime.fromtimestamp(found.chat.changed).date()).days
    return "Today" if days < 1 else "Yesterday" if days == 1 else "Earlier"


def _line(found: FoundChat, now: datetime, width: int, current: bool) -> Content:
    """The title, cut to a line, and when the chat changed; below it the model, or where it says what is looked for."""
    changed = datetime.fromtimestamp(found.chat.changed)
    when = Content.styled(_when(changed, now), "$foreground-muted")
    room = max(1, width - when.cell_length - 3)
    title = Content(f"{'›' if current else ' '} {printable(found.chat.title or UNTITLED)}").truncate(room + 2, ellipsis=True)
    model = found.chat.settings.get("model")
    below = f"  {model}" if isinstance(model, str) and model else ""
    if found.excerpt:
        below = f"    {found.excerpt}"
    return Content.assemble(
        title.stylize("bold") if current else title,
        " " * max(1, width - title.cell_length - when.cell_length),
        when,
        (f"\n{printable(below)}" if below else "", "$foreground-muted"),
    )


def _when(changed: datetime, now: datetime) -> str:
    """`14:05` of today and yesterday, `3 Nov` of this year, `3 Nov 2025`."""
    if (now.date() - changed.date()).days <= 1:
        return f"{changed:%H:%M}"
    return f"{changed.day} {changed:%b}" if changed.year == now.year else f"{changed.day} {changed:%b %Y}"
