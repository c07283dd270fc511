"""What stands on the screen, and what everybody may do with it: the ground on which the app's keys and actions work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from textual.app import App
from textual.widgets import Static

from edge_llm.chats.open_chat import OpenChat
from edge_llm.errors import StorageError
from edge_llm.files import printable
from edge_llm.providers.base import Figures
from edge_llm.tool_servers.process import ServerProcess
from edge_llm.tui.chat_list import ChatList
from edge_llm.tui.commands import BY_NAME
from edge_llm.tui.complete import Completer
from edge_llm.tui.counting import TypedTokens
from edge_llm.tui.drafts import DraftKeeper
from edge_llm.tui.driver import TerminalDriver
from edge_llm.tui.inside import InsidePanel
from edge_llm.tui.options import ChatOptions
from edge_llm.tui.prompt import Prompt
from edge_llm.tui.screens.approve import Approve
from edge_llm.tui.session import OpenCatalogue, Session
from edge_llm.tui.status import StatusLine
from edge_llm.tui.threads import in_thread
from edge_llm.tui.tools import Approval, ChatTools
from edge_llm.tui.transcript import Transcript
from edge_llm.tui.welcome import Welcome
from edge_llm.tui.wording import reason

if TYPE_CHECKING:
    from edge_llm.engine.inside import Inside

TYPING_SECONDS = 0.5
"""How long after a key the person counts as typing."""

NOTICE_SECONDS = 6.0
"""How long a notice stands; an error stands twice as long."""

NOTICE_LINES = 6
"""Lines of the screen for each notice that may stand on it."""


class Stage(App[None]):
    """The widgets of the chat, and the session that fills them."""

    def __init__(self, open_catalogue: OpenCatalogue, options: ChatOptions) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.options = options
        self.heading = Static("edge-llm", id="title", markup=False)
        self.transcript, self.status, self.chat_list = Transcript(), StatusLine(), ChatList()
        self.inside = InsidePanel(self._look)
        self.session = Session(open_catalogue, self.transcript, self.tell, self._see_answer, self._typing)
        self.session.tools = ChatTools([*map(ServerProcess, options.servers)], self.tell, self._approve, self._may_ask)
        completer = Completer(options.folder, lambda: self.session.model_names, lambda: sorted(self.available_themes))
        self.prompt = Prompt(completer.complete)
        self.welcome = Welcome(self.key_of("model"), options.settings.server)
        self.typed_tokens = TypedTokens(options.folder)
        self.drafts = DraftKeeper(lambda: self.session.chat, lambda: self.prompt.area)
        self.begun = asyncio.Event()
        """The chats are open."""
        self.exit_code = 0
        """That of the process when it is left."""

    def tell(self, text: str, severity: str = "information") -> None:
        """A notice for the person."""
        level = severity if severity in ("warning", "error") else "information"
        seconds = 2 * NOTICE_SECONDS if level == "error" else NOTICE_SECONDS
        self.notify(printable(text), severity=level, timeout=seconds, markup=False)  # type: ignore[arg-type]
        self.call_later(self._make_room)

    def _make_room(self) -> None:
        """The newest notices are seen: the oldest go where there are too many."""
        for old in [*self._notifications][: -max(1, self.size.height // NOTICE_LINES)]:
            self._unnotify(old)

    def do(self, work: Awaitable[object]) -> None:
        """Run ``work`` behind the screen, when the chats are open; its errors are told."""
        self.run_worker(self._told(work), exit_on_error=False)

    async def _told(self, work: Awaitable[object]) -> None:
        await self.begun.wait()
        try:
            await work
        except Exception as error:
            self.tell(reason(error), "error")

    def key_of(self, command: str) -> str:
        """The key of ``command`` as a person reads it; its name where it has none."""
        key = self.options.keys.get(command, BY_NAME[command].key)
        return key.split(",")[0].title() if key else f"/{command}"

    def show_inside(self, shown: bool) -> None:
        """Open or close the look inside."""
        self.inside.display = shown
        self.screen_stack[0].set_class(shown, "inside")
        self.call_after_refresh(self.focus_what_is_seen)

    def focus_what_is_seen(self) -> None:
        """Keys go somewhere: a narrow terminal hides the prompt behind the look inside, and it comes back without focus."""
        if len(self.screen_stack) > 1 or (self.focused is not None and self.focused.is_on_screen):
            return
        seen = next((one for one in (self.prompt.area, self.inside) if one.is_on_screen), None)
        if seen is not None:
            seen.focus()

    def show_chats(self, shown: bool) -> None:
        """Open or close the list of chats."""
        self.chat_list.display = shown
        self.screen_stack[0].set_class(shown, "listing")

    def refresh_chats(self) -> None:
        """List the chats as they are now, if they are listed."""
        if self.chat_list.display:
            self.run_worker(self._list_chats, group="chats", exclusive=True, exit_on_error=False)  # type: ignore[arg-type]

    async def _list_chats(self) -> None:
        await self.begun.wait()
        wanted = self.chat_list.search_text
        try:
            found = await in_thread(self.session.store.chats, wanted)
        except StorageError as error:
            self.tell(str(error), "error")
        else:
            self.chat_list.fill(found, self.session.chat.chat.id, wanted)

    async def _approve(self, approval: Approval) -> str:
        if not self.app_focus:
            self.bell()
        return await self.push_screen_wait(Approve(approval))

    def _may_ask(self, chat: OpenChat) -> bool:
        """Whether a question about ``chat`` can be put now: it is on the screen, and nobody is typing."""
        return self.session.chat is chat and len(self.screen_stack) == 1 and not self._typing()

    def _typing(self) -> bool:
        return time.monotonic() - self.prompt.area.typed_at < TYPING_SECONDS

    def _look(self) -> Inside | None:
        return None if self.session.provider is None else self.session.provider.look()

    def _see_answer(self, figures: Figures) -> None:
        self.inside.add_answer(figures)
        self.refresh_chats()
        if not self.app_focus:
            self.bell()  # somebody who looks elsewhere hears that it is done
