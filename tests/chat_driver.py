"""Drives the full-screen chat with a scripted engine: what a person types, what stands on the screen, what lies on the disk.

    async def talk(chat):
        await chat.send("Hello")
        await until(lambda: "You said: Hello" in chat.screen)

    drive(talk, tmp_path)

Nothing waits for a fixed time: `until` looks again and again, and fails after many seconds.
"""

import asyncio
import io
import os
import sqlite3
import threading
import time
from functools import partial

os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")  # read when textual is loaded

from rich.console import Console
from scripted_provider import ScriptedCatalogue, ScriptedProvider
from textual.css.query import NoMatches
from textual.events import Key
from textual.widgets import OptionList

from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.store import ChatStore
from edge_llm.tui.app import ChatApp
from edge_llm.tui.options import ChatOptions

SIZE = (100, 40)
CHARACTERS = {"space": " ", "enter": "\r"}
"""What keys write whose names are longer."""
MOST_SECONDS = 240.0
"""What a test waits at most; only one that fails does."""


async def until(condition, saying=lambda: ""):
    """Wait until ``condition`` holds; one that looks at a message or a widget that is not there yet does not."""
    end = time.monotonic() + MOST_SECONDS
    while not _holds(condition):
        assert time.monotonic() < end, f"it never came true; {saying()}"
        await asyncio.sleep(0.02)


def _holds(condition):
    try:
        return condition()
    except (IndexError, NoMatches):
        return False


async def taken(pilot):
    """Wait until every message that is under way has been taken; the pilot's own pause ends before that on a busy machine."""
    end = time.monotonic() + MOST_SECONDS
    while pilot.app._running and not pilot.app._exit:
        await pilot.pause()
        if not unread(pilot.app):
            return
        assert time.monotonic() < end, "messages come and come"


def unread(app):
    """Whether a message waits for a widget of ``app``."""
    widgets = (widget for screen in app.screen_stack for widget in (screen, *screen.walk_children()))
    return any(pump.message_queue_size for pump in (app, *widgets))


class Chat:
    """A chat that runs, as a test sees it."""

    def __init__(self, app, pilot, path, notices):
        self.app = app
        self.pilot = pilot
        self.path = path
        self.notices = notices
        """What was told, the oldest first; here it stays when it has left the screen."""
        self.session = app.session
        self.transcript = app.transcript

    # ---- what a person does

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.taken()

    def burst(self, *keys):
        """Press ``keys`` at once: none waits for what the one before it does."""
        for key in keys:
            self.app.post_message(Key(key, CHARACTERS.get(key, key if len(key) == 1 else None)))

    async def write(self, text):
        """Put ``text`` into the prompt, as a paste does."""
        area = self.app.prompt.area
        area.focus()
        area.take(text)
        await self.taken()

    async def send(self, text):
        """Send ``text``, a prompt or a command."""
        await self.write(text)
        self.app.prompt.area.send()
        await self.taken()

    async def ask(self, text):
        """Send ``text`` and wait for the end of its answer."""
        before = len(self.session.chat.messages)
        await self.send(text)
        await self.until(lambda: len(self.session.chat.messages) >= before + 2 and not self.session.busy)
        await self.settle()

    async def focus_message(self, at):
        view = self.transcript.views()[at]
        view.focus()
        await self.until(lambda: view.has_focus)
        return view

    async def wheel(self, event, times=1):
        """Turn the mouse wheel over the transcript: ``event`` is `MouseScrollUp` or `MouseScrollDown`."""
        for _ in range(times):
            await self.pilot._post_mouse_events([event], widget=self.transcript)
        await self.taken()

    async def resize(self, width, height):
        await self.pilot.resize_terminal(width, height)
        await self.until(lambda: self.app.size == (width, height))

    def forget_notices(self):
        """Clear the notices, which lie above the status."""
        self.notices.clear()
        self.app.clear_notifications()

    async def until(self, condition):
        await until(condition, lambda: "\n".join([self.screen, "", *self.notices]))

    async def taken(self):
        await taken(self.pilot)

    async def opened(self, kind):
        """Wait until a screen of ``kind`` is on top, and drawn."""
        await self.until(lambda: isinstance(self.app.screen, kind) and self.screen.strip())
        await self.taken()

    async def settle(self):
        """Wait until what is under way has been done and drawn, and what the app's clock would show next."""
        await self.until(lambda: not self.works)
        self.app._tick()
        quiet, end = 0, time.monotonic() + MOST_SECONDS
        while quiet < 2:  # what is drawn asks for more: a size that is new lets a widget scroll
            assert time.monotonic() < end, f"it never came to rest; {self.screen}"
            await self.pilot._wait_for_screen()
            screen = self.app.screen
            drawn = not (screen._layout_required or screen._scroll_required or screen._callbacks)
            quiet = quiet + 1 if drawn and not (self.works or unread(self.app)) else 0
            await self.pilot.pause()

    @property
    def works(self):
        """What is under way; also what waits for a choice on a screen of its own."""
        return [each for each in self.app.workers if each.is_running]

    # ---- what there is to see

    @property
    def screen(self):
        """The text of all cells."""
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in self.strips)

    @property
    def strips(self):
        return self.app.screen._compositor.render_strips()

    @property
    def written(self):
        """What a terminal is sent for the screen as it is: cells and their styling."""
        console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=self.app.size.width)
        return "\n".join(strip.render(console) for strip in self.strips)

    @property
    def said(self):
        """(role, text) of the messages that are widgets."""
        return [(view.message.role, view.message.text) for view in self.transcript.views()]

    def told(self, text):
        """Whether ``text`` was told since the start, or since `forget_notices`."""
        return any(text in notice for notice in self.notices)

    @property
    def typed(self):
        return self.app.prompt.area.text

    @property
    def listed(self):
        """The lines of the list of chats."""
        options = self.app.chat_list.query_one(OptionList)
        return [str(option.prompt) for option in options.options if not option.disabled]

    @property
    def completions(self):
        options = self.app.query_one("#completions", OptionList)
        if not options.display:
            return []
        return [str(options.get_option_at_index(at).prompt).split()[0] for at in range(options.option_count)]

    # ---- what lies on the disk

    @property
    def stored(self):
        """(role, text, state) of all messages on the disk, oldest first."""
        return rows(self.path, "SELECT role, text, state FROM messages ORDER BY id")

    @property
    def titles(self):
        return [title for (title,) in rows(self.path, "SELECT title FROM chats ORDER BY id")]


def rows(path, query):
    """What another program reads from the file of chats; nothing before its tables are made."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        begun = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchone()
        return db.execute(query).fetchall() if begun else []
    finally:
        db.close()


def drive(talk, folder, provider=None, *, catalogue=None, size=SIZE, open_store=None, ready=True, **options):
    """Run the chat with its chats in ``folder``, and ``talk`` with it; gives what that returns."""
    catalogue = catalogue or ScriptedCatalogue({"scripted": provider or ScriptedProvider()})
    return asyncio.run(_drive(talk, folder, catalogue, size, open_store, ready, options))


async def _drive(talk, folder, catalogue, size, open_store, ready, options):
    async with running(folder, catalogue, size=size, open_store=open_store, ready=ready, **options) as chat:
        return await talk(chat)


class running:  # noqa: N801  # it is used like a function
    """The chat as a context, when its model is there if it is to be ``ready``: several may run at once."""

    def __init__(self, folder, catalogue, *, size=SIZE, open_store=None, ready=True, **options):
        self._path = folder / "chats.db"
        options.setdefault("settings", ChatSettings())
        self._app = ChatApp(
            lambda: catalogue, open_store or (lambda: ChatStore.open(self._path)), ChatOptions(folder=folder, **options)
        )
        self._size = size
        self._ready = ready
        self._notices = []
        self._app.notify = partial(self._notify, self._app.notify)

    async def __aenter__(self):
        self._context = self._app.run_test(size=self._size, notifications=True)
        pilot = await self._context.__aenter__()
        chat = Chat(self._app, pilot, self._path, self._notices)
        if self._ready:
            await chat.until(lambda: chat.session.provider is not None)
            await chat.settle()
        return chat

    def _notify(self, notify, message, **options):
        self._notices.append(message)
        notify(message, **options)

    async def __aexit__(self, *error):
        await self._context.__aexit__(*error)
        await until(lambda: all(thread.name != "close" for thread in threading.enumerate()), threading.enumerate)
        self._app.session.store.close()
