"""The full-screen chat: the first frame at once, the model behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from textual import events, on
from textual.app import App, ComposeResult, SystemCommand
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Footer, Markdown, Static

from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.store import ChatStore
from edge_llm.errors import StorageError
from edge_llm.files import printable
from edge_llm.providers.base import Figures
from edge_llm.tui.actions import Actions
from edge_llm.tui.activity import activity, situation
from edge_llm.tui.chat_list import ChatList
from edge_llm.tui.clipboard import copy
from edge_llm.tui.commands import COMMANDS, bindings, parse
from edge_llm.tui.complete import Completer
from edge_llm.tui.driver import TerminalDriver
from edge_llm.tui.inside import InsidePanel
from edge_llm.tui.keys import bindings_of
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.notices import Notices
from edge_llm.tui.options import ChatOptions
from edge_llm.tui.prompt import Prompt, PromptArea, writable
from edge_llm.tui.session import OpenCatalogue, Session, reason
from edge_llm.tui.status import Estimate, StatusLine
from edge_llm.tui.threads import in_thread
from edge_llm.tui.transcript import Transcript

if TYPE_CHECKING:
    from edge_llm.engine.inside import Inside

OpenStore = Callable[[], tuple[ChatStore, str]]
"""Opens the chats; gives them, and what the person should know about them."""
TICK_SECONDS = 0.1
SAVE_AGAIN_SECONDS = 5.0
OTHERS_SECONDS = 2.0
TWICE_SECONDS = 1.5
TYPES_SECONDS = 0.5
"""Behind a key in which the person counts as typing."""
NARROW = 90
"""Columns below which the look inside and the list of chats take the place of the chat."""
HISTORY = 500
"""Earlier prompts that Up reaches."""


class ChatApp(App[None]):
    """Chats with the models of a catalogue; it and the stored chats are opened behind the first frame."""

    CSS_PATH = "style.tcss"
    TITLE = "edge-llm"
    BINDINGS = [*bindings()]

    def __init__(self, open_catalogue: OpenCatalogue, open_store: OpenStore, options: ChatOptions) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.options = options
        self._open_store = open_store
        self.heading = Static("edge-llm", id="title", markup=False)
        self.transcript, self.status, self.chat_list = Transcript(), StatusLine(), ChatList()
        self.inside = InsidePanel(self._look)
        self.session = Session(open_catalogue, self.transcript, self.tell, self._see_answer, self._typing)
        self.actions = Actions(self)
        self.prompt = Prompt(Completer(self.actions).complete)
        self._estimate = Estimate()
        self._asked_to_leave = -TWICE_SECONDS
        self.exit_code = 0
        """That of the process when it is left."""
        self.failure: Exception | None = None
        """A mistake of ours that ended it."""
        self._title = ""
        self._begun = asyncio.Event()

    # -- layout -------------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield self.heading
        with Horizontal(id="body"):
            yield self.chat_list
            with Vertical(id="chat"):
                yield self.transcript
                yield self.status
                yield self.prompt
            yield self.inside
        yield Footer(compact=True, show_command_palette=False)

    def on_load(self) -> None:
        """Who ends the program from outside, or closes its terminal, loses nothing."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
                asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)

    def _end_by(self, number: int) -> None:
        self.exit_code = 128 + number
        self.do(self.actions.run("quit", ""))

    def on_mount(self) -> None:
        self.set_keymap(dict(self.options.keys))
        for key, action, description in bindings_of(self.options.keys):
            self.bind(key, action, description=description, show=False)
        if self.options.theme in self.available_themes:
            self.theme = self.options.theme
        elif self.options.theme:
            self.tell(f"There is no theme `{self.options.theme}`; /theme lists them.", "warning")
        self.show_chats(self.options.sidebar)
        self.show_inside(False)
        self.prompt.area.focus()
        self._notices = Notices(self._tell_from_anywhere)
        logging.getLogger("edge_llm").addHandler(self._notices)
        self.set_interval(TICK_SECONDS, self._tick)
        self.set_interval(SAVE_AGAIN_SECONDS, lambda: self.do(self.session.save_all()))
        self.set_interval(OTHERS_SECONDS, lambda: self.do(self._see_others()))
        self.call_after_refresh(lambda: self.run_worker(self._begin(), exit_on_error=False))

    def on_unmount(self) -> None:
        logging.getLogger("edge_llm").removeHandler(self._notices)

    async def on_event(self, event: events.Event) -> None:
        """What is pasted is text: no character of it talks to the terminal."""
        if isinstance(event, events.Paste):
            event.text = writable(event.text)
        await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        """A narrow terminal has room for one thing at a time."""
        self.screen_stack[0].set_class(event.size.width < NARROW, "narrow")

    def show_inside(self, shown: bool) -> None:
        """Open or close the look inside."""
        self.inside.display = shown
        self.screen_stack[0].set_class(shown, "inside")

    def show_chats(self, shown: bool) -> None:
        """Open or close the list of chats."""
        self.chat_list.display = shown
        self.screen_stack[0].set_class(shown, "listing")

    async def _begin(self) -> None:
        """Behind the first frame: the chats, and then the model.  What the person does waits for the chats."""
        try:
            await self._open_chats()
        except Exception as error:
            self.tell(reason(error), "error")
        self._begun.set()
        await self.session.load_for(self.session.settings)

    async def _open_chats(self) -> None:
        session = self.session
        try:
            session.store, notice = await in_thread(self._open_store)
            if notice:
                self.tell(notice, "warning")
        except StorageError as error:
            self.tell(f"Chats of this session are not saved: {error}", "error")
        session.chat = OpenChat.new(session.store, self.options.settings.as_json())  # whatever becomes of what is read
        self.prompt.area.earlier = await in_thread(session.store.prompts, HISTORY)
        found = await in_thread(session.store.chats, limit=1) if self.options.resume else []
        chat = await in_thread(OpenChat.read, session.store, found[0].chat.id) if found else None
        await session.show(chat or session.chat)
        self.refresh_chats()

    # -- work behind the screen ---------------------------------------------------------------------------------------

    def do(self, work: Awaitable[object]) -> None:
        """Run ``work`` behind the screen, when the chats are open; its errors are told."""
        self.run_worker(self._told(work), exit_on_error=False)

    async def _told(self, work: Awaitable[object]) -> None:
        await self._begun.wait()
        try:
            await work
        except Exception as error:
            self.tell(reason(error), "error")

    def _tell_from_anywhere(self, text: str, severity: str) -> None:
        """A notice out of any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.tell, text, severity)

    def _handle_exception(self, error: Exception) -> None:
        """A mistake of ours: what was said is written, and whoever runs the app tells it in a line."""
        if self.is_headless or os.environ.get("EDGE_LLM_DEBUG") or self.failure is not None:
            super()._handle_exception(error)
            return
        self.failure = error
        self.run_worker(self._leave_after_failure(), exit_on_error=False)

    async def _leave_after_failure(self) -> None:
        with contextlib.suppress(Exception):
            await self.session.end()
        self.exit(return_code=1)

    def tell(self, text: str, severity: str = "information") -> None:
        """A notice for the person."""
        level = severity if severity in ("warning", "error") else "information"
        self.notify(printable(text), severity=level, timeout=12 if level == "error" else 6, markup=False)  # type: ignore[arg-type]

    def _look(self) -> Inside | None:
        return None if self.session.provider is None else self.session.provider.look()

    def _see_answer(self, figures: Figures) -> None:
        self.inside.add_answer(figures)
        self.refresh_chats()
        if not self.app_focus:
            self.bell()  # somebody who looks elsewhere hears that it is done

    def _tick(self) -> None:
        """Ten times a second: what goes on, and what is known of the model and the context."""
        self.status.show(activity(self.session, self.actions.models.fetching, self._estimate), situation(self.session))
        if (answering := self.session.answering) is not None and answering.rate:
            self.inside.see_rate(answering.rate)
        self.actions.prompts.show_what_is_attached()  # another chat knows nothing of a prompt that is edited
        title = printable(self.session.chat.chat.title) or "New chat"
        if title != self._title:
            self._title = title
            self.heading.update(_plain(title), layout=False)

    def _typing(self) -> bool:
        return time.monotonic() - self.prompt.area.typed_at < TYPES_SECONDS

    def refresh_chats(self) -> None:
        """List the chats as they are now, if they are listed."""
        if self.chat_list.display:
            self.run_worker(self._list_chats, group="chats", exclusive=True, exit_on_error=False)  # type: ignore[arg-type]

    async def _list_chats(self) -> None:
        await self._begun.wait()
        try:
            found = await in_thread(self.session.store.chats, self.chat_list.search_text)
        except StorageError as error:
            self.tell(str(error), "error")
        else:
            self.chat_list.fill(found, self.session.chat.chat.id)

    async def _see_others(self) -> None:
        """List the chats anew when another terminal has written."""
        if self.chat_list.display and await in_thread(self.session.store.changed_elsewhere):
            self.refresh_chats()

    # -- what the person does -----------------------------------------------------------------------------------------

    async def action_command(self, name: str, argument: str = "") -> None:
        """Do what the command ``name`` says."""
        self.do(self.actions.run(name, argument))

    @on(PromptArea.Sent)
    def sent(self, event: PromptArea.Sent) -> None:
        """A prompt, or a command."""
        command = parse(event.text.strip())
        if command is None:
            self.do(self.actions.prompts.send(event.text))
        elif command[0] is None:
            self.tell(f"There is no command `{event.text.split()[0]}`; F1 lists them.", "warning")
            self.prompt.area.take(event.text)
        else:
            self.do(self.actions.run(command[0].name, command[1]))

    @on(MessageView.Act)
    def acted(self, event: MessageView.Act) -> None:
        self.do(self.actions.messages.act_on(event.view, event.action))

    @on(ChatList.Search)
    def searched(self) -> None:
        self.refresh_chats()

    @on(ChatList.Chosen)
    def chosen(self, event: ChatList.Chosen) -> None:
        self.do(self.actions.chats.act_on_chat(event.chat_id, event.action))

    @on(ChatList.Left)
    def left(self) -> None:
        self.show_chats(self.options.sidebar)
        self.prompt.area.focus()

    @on(Markdown.LinkClicked)
    def link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A link of a model is not followed: it is copied, for the person to look at first."""
        copy(self, printable(event.href))
        self.tell(f"Copied: {event.href}")

    def action_page(self, step: int) -> None:
        """Scroll what was said by a page."""
        page = max(1, self.transcript.size.height - 1)
        self.transcript.scroll_relative(y=step * page, animate=False, immediate=True)  # else keys in a row would count once

    def action_help_quit(self) -> None:
        """Ctrl+C stops an answer; twice in a row leaves."""
        now = time.monotonic()
        if self.session.stop():
            return
        if now - self._asked_to_leave < TWICE_SECONDS:
            self.do(self.actions.run("quit", ""))
            return
        self._asked_to_leave = now
        self.tell("Ctrl+C once more leaves.")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for command in COMMANDS:
            if command.may_take_nothing:
                yield SystemCommand(command.name.capitalize(), command.help, partial(self.action_command, command.name))


def _plain(text: str) -> str:
    return text.replace("\n", " ")

