"""The full-screen chat: the first frame at once, the model behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from textual import events, on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.selection import Selection
from textual.widget import Widget
from textual.widgets import Footer, Markdown

from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.store import ChatStore
from edge_llm.chats.titles import UNTITLED
from edge_llm.chats.tree import Attachment, Chat
from edge_llm.errors import ModelNotFound, StorageError, UsageError
from edge_llm.files import one_line
from edge_llm.providers.base import Provider
from edge_llm.tui.actions import Actions
from edge_llm.tui.activity import activity, situation
from edge_llm.tui.asking import settings_of
from edge_llm.tui.blocks import CodeBlock
from edge_llm.tui.chat_list import ChatList
from edge_llm.tui.clipboard import copy
from edge_llm.tui.commands import COMMANDS, bindings, parse
from edge_llm.tui.driver import BackgroundSeen
from edge_llm.tui.keys import bindings_of
from edge_llm.tui.looks import Looks
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.notices import Notices
from edge_llm.tui.options import ChatOptions
from edge_llm.tui.prompt import PromptArea, writable
from edge_llm.tui.session import OpenCatalogue
from edge_llm.tui.stage import NOTICE_SECONDS, Stage
from edge_llm.tui.status import Estimate
from edge_llm.tui.threads import in_thread
from edge_llm.tui.welcome import PROMPTS, Welcome
from edge_llm.tui.wording import reason

OpenStore = Callable[[], tuple[ChatStore, str]]
"""Opens the chats; gives them, and what the person should know about them."""
TICK_SECONDS = 0.1
SAVE_AGAIN_SECONDS = 5.0
OTHERS_SECONDS = 2.0
MOST_LOOKED_AT = 1000
"""Chats among which the last one of a server is looked for."""
HISTORY = 500
"""Earlier prompts that Up reaches."""
NARROW = 90
"""Columns below which the look inside and the list of chats take the place of the chat."""

SHORT = 20
"""Lines below which what opens above the chat has no margins."""


class ChatApp(Stage):
    """Chats with the models of a catalogue; it and the stored chats are opened behind the first frame."""

    CSS_PATH = "style.tcss"
    TITLE = "edge-llm"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SHORT, "-tall")]
    BINDINGS = [*bindings(), *(Binding(f"alt+{at + 1}", f"try({at})", show=False) for at in range(len(PROMPTS)))]

    def __init__(self, open_catalogue: OpenCatalogue, open_store: OpenStore, options: ChatOptions) -> None:
        super().__init__(open_catalogue, options)
        self._open_store = open_store
        self.actions = Actions(self)
        self._estimate = Estimate()
        self._told_how_to_leave = -NOTICE_SECONDS
        self.failure: Exception | None = None
        """A mistake of ours that ended it."""
        self.looks = Looks(self, options, self.tell)
        self._title = ""
        self._selections: dict[Widget, Selection] = {}
        """What was selected when the mouse button was released last."""
        self.session.on_switch = self.drafts.switch
        self.session.on_free = self.actions.prompts.after_answer

    # -- layout -------------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield self.heading
        with Horizontal(id="body"):
            yield self.chat_list
            with Vertical(id="chat"):
                yield self.welcome
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
        self.looks.begin()
        self.show_chats(self.options.sidebar)
        self.show_inside(False)
        self.prompt.area.focus()
        self.prompt.area.take_back = self.actions.prompts.take_back
        self._notices = Notices(self._tell_from_anywhere)
        logging.getLogger("edge_llm").addHandler(self._notices)
        self.set_interval(TICK_SECONDS, self._tick)
        self.set_interval(SAVE_AGAIN_SECONDS, lambda: self._do_one("save", self.session.save_all))
        self.set_interval(OTHERS_SECONDS, lambda: self._do_one("others", self._see_others))
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # `fg` finds an empty terminal
        self.call_after_refresh(lambda: self.run_worker(self._begin(), exit_on_error=False))

    def on_unmount(self) -> None:
        logging.getLogger("edge_llm").removeHandler(self._notices)

    async def on_event(self, event: events.Event) -> None:
        """What is pasted is text: no character of it talks to the terminal."""
        if isinstance(event, events.InputEvent) and not self.screen_stack:
            return  # a key that comes while the chat is left
        if isinstance(event, events.Paste):
            event.text = writable(event.text)
        await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        """A narrow terminal has room for one thing at a time."""
        self.screen_stack[0].set_class(event.size.width < NARROW, "narrow")
        self.call_after_refresh(self.focus_what_is_seen)

    async def _begin(self) -> None:
        """Behind the first frame: the chats, and then the model.  What the person does waits for the chats."""
        try:
            await self._open_chats()
        except Exception as error:
            self.tell(reason(error), "error")
        self.begun.set()
        for problem in self.options.problems:
            self.tell(problem, "warning")
        self.session.tools.begin()
        await self._leave_a_model_that_is_gone()
        await self.session.load_for(self.session.settings)

    async def _leave_a_model_that_is_gone(self) -> None:
        """A new chat in the place of the last one, whose model is not here, unless the person goes on with that already."""
        session, chat = self.session, self.session.chat
        if not (model := session.settings.model) or model == self.options.settings.model:
            return
        try:
            await in_thread(lambda: session.catalogue().check(model))
        except ModelNotFound as error:
            if session.chat is chat and not session.busy:
                await session.show(OpenChat.new(session.store, self.options.settings.as_json()), carry=True)
                self.refresh_chats()
                self.tell(f"{error}\nThis is a new chat; F3 has the last one.", "warning")
        except Exception:  # loading comes to the same, and tells it
            return

    async def _open_chats(self) -> None:
        session = self.session
        try:
            session.store, notice = await in_thread(self._open_store)
            if notice:
                self.tell(notice, "warning")
        except StorageError as error:
            self.tell(f"Chats of this session are not saved: {error}", "error")
        if self.options.settings.model is None:
            model = await in_thread(self.options.first_model, session.store)
            self.options = replace(self.options, settings=replace(self.options.settings, model=model))
        await session.show(OpenChat.new(session.store, self.options.settings.as_json()), carry=True)  # whatever is read
        self.prompt.area.earlier = await in_thread(session.store.prompts, HISTORY)
        last = await in_thread(self._last_chat) if self.options.resume else None
        chat = await in_thread(OpenChat.read, session.store, last.id) if last is not None else None
        if chat is not None:
            if settings_of(chat).model is None and self.options.settings.model is not None:
                chat.set_settings(replace(settings_of(chat), model=self.options.settings.model).as_json())
            await session.show(chat, carry=True)  # what was typed before the chats were open stays in the prompt
        self.refresh_chats()

    def _last_chat(self) -> Chat | None:
        """The chat that changed last of those with this machine, or with the server that the person names."""
        found = self.session.store.chats(limit=MOST_LOOKED_AT, unlisted=True)
        server = self.options.settings.server
        return next((one.chat for one in found if ChatSettings.from_json(one.chat.settings).server == server), None)

    # -- work behind the screen ---------------------------------------------------------------------------------------

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

    def _fill_terminal(self) -> None:
        """Lay out again every screen that has another size than the terminal.

        After a layout Textual sends the screen the size of that layout (`Screen._refresh_layout`). If the terminal has changed
        meanwhile, this message replaces the newer one.
        """
        for screen in self.screen_stack:
            if screen.outer_size != self.size:
                screen.post_message(events.Resize(self.size, self.size))

    def _tick(self) -> None:
        """Ten times a second: what goes on, and what is known of the model and the context."""
        self._fill_terminal()
        self.status.show(activity(self.session, self._estimate), situation(self.session))
        if (answering := self.session.answering) is not None and answering.rate:
            self.inside.see_rate(answering.rate)
        self.actions.prompts.show_what_is_attached()  # another chat knows nothing of a prompt that is edited
        self._show_welcome()
        if (provider := self.session.provider) is not None:
            text, attached = self.prompt.area.text, self.drafts.attached
            if self.typed_tokens.is_due(provider, text, attached, self.prompt.area.typed_at):
                self.do(self._count(provider, text, attached))
        if self.begun.is_set() and (chat := self.drafts.to_keep()) is not None:
            self.do(self.session.save(chat))
        title = one_line(self.session.chat.chat.title) or UNTITLED
        if title != self._title:
            self._title = title
            self.heading.update(title, layout=False)

    def _show_welcome(self) -> None:
        """An empty chat says what this is; the first prompt takes its place."""
        session = self.session
        empty = not session.chat.messages
        if empty:
            name = session.loading.name if session.loading is not None else ""
            self.welcome.show(session.provider.facts if session.provider is not None else None, name)
        if (self.welcome.display, self.transcript.display) != (empty, not empty):
            self.welcome.display, self.transcript.display = empty, not empty

    async def _count(self, provider: Provider, text: str, attached: Sequence[Attachment]) -> None:
        """Count what is written, off the event loop."""
        if (text.strip() and parse(text) is None) or attached:
            found = await in_thread(self.typed_tokens.count, provider, text, attached)
        else:
            found = None
        if self.typed_tokens.is_last(provider, text, attached):
            self.session.typed_tokens = found

    def _do_one(self, group: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do ``work``, unless one of its ``group`` is under way: what waits for the disk does not pile up."""
        if all(worker.group != group or worker.is_finished for worker in self.workers):
            self.run_worker(self._told(work()), group=group, exit_on_error=False)

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
        command = parse(event.text)
        if command is None:
            try:
                self.actions.prompts.take(event.text)
            except UsageError as error:
                self.tell(str(error), "error")
            else:
                self.do(self.actions.prompts.send_next())
        elif command[0] is None:
            self.tell(f"There is no command `{event.text.split()[0]}`; F1 lists them.", "warning")
            self.prompt.area.give_back(event.text)
        else:
            self.do(self.actions.run(command[0].name, command[1]))

    @on(Welcome.Tried)
    def tried(self, event: Welcome.Tried) -> None:
        self.prompt.area.take(event.text)
        self.prompt.area.focus()

    def action_try(self, at: int) -> None:
        """Put a prompt of the welcome into the prompt, while it is shown."""
        if self.welcome.display:
            self.tried(Welcome.Tried(self.welcome.prompts[at]))

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
        copy(self, event.href)
        self.tell(f"Copied: {event.href}")

    @on(CodeBlock.Copied)
    def code_copied(self, event: CodeBlock.Copied) -> None:
        copy(self, event.code)
        self.tell("Copied a block of code.")

    @on(BackgroundSeen)
    def background_seen(self, event: BackgroundSeen) -> None:
        self.looks.see_background(event.is_light)

    def action_page(self, step: int) -> None:
        """Scroll what was said by a page."""
        page = max(1, self.transcript.size.height - 1)
        self.transcript.scroll_relative(y=step * page, animate=False, immediate=True)  # else keys in a row would count once

    def action_focus_next(self) -> None:
        if not self.transcript.focus_beside(self.focused, 1):
            super().action_focus_next()

    def action_focus_previous(self) -> None:
        if not self.transcript.focus_beside(self.focused, -1):
            super().action_focus_previous()

    @on(events.TextSelected)
    def selected(self) -> None:
        """The mouse button is released: what it has selected is copied, once."""
        selections = dict(self.screen.selections)
        if selections != self._selections and (text := self.screen.get_selected_text()) and text.strip():
            self.copy_to_clipboard(text)
        self._selections = selections

    def copy_to_clipboard(self, text: str) -> None:
        """What is selected with the mouse, or in a field."""
        copy(self, text)
        self.tell(f"Copied {len(text):,} characters.")

    def action_help_quit(self) -> None:
        """Ctrl+C stops an answer; without one it leaves, while the notice stands that says so."""
        now = time.monotonic()
        if self.session.stop():
            self._told_how_to_leave = -NOTICE_SECONDS  # the next one may be meant for the same answer
        elif now - self._told_how_to_leave < NOTICE_SECONDS:
            self.do(self.actions.run("quit", ""))
        else:
            self._told_how_to_leave = now
            self.tell("Press Ctrl+C again to quit.")

    def clear_notifications(self) -> None:
        """Put the notices away, and what they promise."""
        self._told_how_to_leave = -NOTICE_SECONDS
        super().clear_notifications()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for command in COMMANDS:
            if command.may_take_nothing:
                yield SystemCommand(command.name.capitalize(), command.help, partial(self.action_command, command.name))

