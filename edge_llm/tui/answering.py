"""One answer on its way: from the provider's reply into the chat, onto the screen and to disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace

from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.tree import Message, State
from edge_llm.errors import EdgeLLMError
from edge_llm.providers.base import Ended, Figures, Piece, Reply
from edge_llm.talk.pieces import Said, Thought
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.pace import Pace
from edge_llm.tui.tools import with_pieces
from edge_llm.tui.units import THOUGHT_SECONDS

SAVE_SECONDS = 1.0
"""How much of an answer a killed process may lose."""


class Answering:
    """Puts ``reply`` into ``message`` of ``chat``; ``view`` shows it while it is on the screen, slowly while ``typing``."""

    def __init__(
        self,
        chat: OpenChat,
        message: Message,
        reply: Reply,
        view: MessageView,
        save: Callable[[OpenChat], Awaitable[object]],
        typing: Callable[[], bool],
    ) -> None:
        self.chat = chat
        self.reply = reply
        self.view = view
        self.message = message
        self._save = save
        self._typing = typing
        self.begun: float | None = None
        """When the first piece came, by the monotonic clock."""
        self._thinking_since: float | None = None
        self._taken = 0.0
        """When the last ones were taken: while somebody types they wait, and the model goes on."""
        self.reason = ""
        """How the answer ended, as `Ended.reason` has it."""
        self.over = asyncio.Event()
        """The answer has ended, and is written if that is possible."""

    async def run(self) -> Figures:
        """Show the answer until it ends, is stopped or fails: what came by then stays in the chat.

        Returns what it took.  Raises the `EdgeLLMError` that it failed with.
        """
        ended: Ended | None = None
        state: State = "failed"
        saving = asyncio.create_task(self._save_as_it_grows())
        pace = Pace(self._typing)
        try:
            async for pieces in self.reply:
                ended = await self._take(pieces) or ended
                if ended is None:
                    await pace.wait()
            if ended is not None:
                self.reason = ended.reason
                state = "stopped" if ended.reason == "cancelled" else "whole"
        except asyncio.CancelledError:
            state = "stopped"
            raise
        finally:
            saving.cancel()
            self.reply.cancel()
            await asyncio.shield(self._finish(state, ended.figures if ended else Figures()))
        if ended is None:
            raise EdgeLLMError("the answer broke off without an end; ask again")
        return ended.figures

    @property
    def rate(self) -> float | None:
        """Tokens per second from the first piece to the last one; None before there are any."""
        if self.begun is None or (seconds := self._taken - self.begun) < 0.2:
            return None
        return self.reply.tokens / seconds

    async def show_in(self, view: MessageView) -> None:
        """The answer is on the screen again, in ``view``."""
        self.view = view
        if self.message.state == "growing":
            view.grows = True
            view.redraw(self.message)
        else:
            await view.finish(self.message)

    async def _take(self, pieces: Sequence[Piece]) -> Ended | None:
        ended = None
        thought, said, calls = "", "", self.message.calls
        for piece in pieces:
            if isinstance(piece, Thought):
                thought += piece.text
            elif isinstance(piece, Said):
                said += piece.text
            elif isinstance(piece, Ended):
                ended = piece
            else:
                calls = with_pieces(calls, (piece,))
        if thought or said or calls is not self.message.calls:
            self._taken = time.monotonic()
            self.begun = self.begun or self._taken
            self._change(thought=self.message.thought + thought, text=self.message.text + said, calls=calls)
        if thought:
            self._thinking_since = self._thinking_since or self._taken
            self._change(figures={**self.message.figures, THOUGHT_SECONDS: self._taken - self._thinking_since})
        if self.view.is_attached:
            await self.view.grow(self.message)
        return ended

    async def _save_as_it_grows(self) -> None:
        """A disk that waits does not hold up what is shown."""
        saved = self.message
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            if self.message is not saved:
                saved = self.message
                await self._save(self.chat)

    async def _finish(self, state: State, figures: Figures) -> None:
        known = {name: value for name, value in self.message.figures.items() if name == THOUGHT_SECONDS}
        known |= {name: value for name, value in asdict(figures).items() if value is not None}
        self._change(state=state, figures=known)
        if self.view.is_attached:
            await self.view.finish(self.message)
        await self._save(self.chat)
        self.over.set()

    def _change(self, **fields: object) -> None:
        self.message = replace(self.message, **fields)  # type: ignore[arg-type]
        self.chat.put(self.message)
