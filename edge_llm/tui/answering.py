"""One answer on its way: from the provider's reply into the chat, onto the screen and to disk; and the turn it is in."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge_llm.chats.calls import ToolCall
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.tree import CONTEXT_FULL, Message, State
from edge_llm.config import REPETITION
from edge_llm.errors import ContextOverflow, EdgeLLMError
from edge_llm.files import one_line
from edge_llm.providers.base import Ended, Figures, Piece, Reply
from edge_llm.talk.pieces import CallArguments, CallBegun, Said, Thought
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.pace import Pace
from edge_llm.tui.units import THOUGHT_SECONDS
from edge_llm.tui.wording import in_chat

SAVE_SECONDS = 1.0
"""How much of an answer a killed process may lose."""
NOTHING_ADDED = "The model adds nothing: its answer ends here.\n/regenerate answers again."
LOOPED = "The answer repeated itself and was ended.\n/continue goes on, /regenerate answers again."
REPEATED = "repeated itself"
"""The reason of such an answer."""
MOST_ARGUMENTS = 64 << 10
"""Characters of a call's arguments."""
NO_END = "the answer ended without its last part"
_FULL = re.compile("maximum context length|context_length_exceeded|available context size|context window", re.IGNORECASE)
"""What servers say of a prompt that is too long."""


def failure_of(error: Exception) -> str:
    """Why an answer failed, in one line."""
    if isinstance(error, ContextOverflow):
        least = "at least " if error.at_least else ""
        return f"{CONTEXT_FULL}: the prompt has {least}{error.prompt_tokens} tokens, the context holds {error.context}"
    known = isinstance(error, EdgeLLMError)
    text = one_line(in_chat(str(error)) if known else f"{type(error).__name__}: {error}")
    return f"{CONTEXT_FULL}: {text}" if _FULL.search(text) else text


def repeats_itself(message: Message) -> bool:
    """Whether the answer was ended because it was in a loop."""
    return message.reason == REPEATED


class Answering:
    """Puts ``reply`` into ``message`` of ``chat``; ``view`` shows it while it is on the screen, slowly while ``typing``.

    A message that says something already is continued.
    """

    def __init__(
        self,
        chat: OpenChat,
        message: Message,
        reply: Reply,
        view: MessageView,
        save: Callable[[OpenChat], Awaitable[object]],
        typing: Callable[[], bool],
        context: int | None = None,
    ) -> None:
        """``context``: tokens that have room, as far as known."""
        self.chat = chat
        self.reply = reply
        self.view = view
        self._before = message
        self.message = replace(message, state="growing", reason="")
        self._save = save
        self._typing = typing
        self._context = context
        self.begun: float | None = None
        """When the first piece came, by the monotonic clock."""
        self._thinking_since: float | None = None
        self._taken = 0.0
        """When the last ones were taken: while somebody types they wait, and the model goes on."""
        self.reason = ""
        """How the answer ended, as `Ended.reason` has it."""
        self.added_nothing = False
        """The answer was to be continued, and the model came to its end without a word."""
        self.over = asyncio.Event()
        """The answer has ended, and is written if that is possible."""

    async def run(self) -> Figures:
        """Show the answer until it ends, is stopped or fails: what came by then stays in the chat.

        Returns what it took.  Raises the `EdgeLLMError` that it failed with.
        """
        ended: Ended | None = None
        state: State = "failed"
        why = ""
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
                why = self._why(ended)
            else:
                why = NO_END
        except Exception as error:
            why = failure_of(error)
            raise
        except asyncio.CancelledError:
            state = "stopped"
            raise
        finally:
            saving.cancel()
            self.reply.cancel()
            await asyncio.shield(self._finish(state, why, ended.figures if ended else Figures()))
        if ended is None:
            raise EdgeLLMError(f"{NO_END}; ask again")
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

    def _why(self, ended: Ended) -> str:
        """Why an answer ended that the model had not ended itself; empty for one that it had."""
        if ended.reason == REPETITION:
            return REPEATED
        if ended.reason != "length":
            return ""
        prompt, said = ended.figures.prompt_tokens, ended.figures.completion_tokens
        if prompt is None or said is None or self._context is None:
            return "cut by a limit of tokens"
        return CONTEXT_FULL if prompt + said >= self._context else f"cut after {said} tokens (max_tokens)"

    async def _finish(self, state: State, why: str, figures: Figures) -> None:
        before = self._before
        known = {name: value for name, value in self.message.figures.items() if name == THOUGHT_SECONDS}
        if not _says_something(before):
            known |= {name: value for name, value in asdict(figures).items() if value is not None}
        elif _said(self.message) != _said(before):
            known |= in_all(before.figures, figures)
        else:  # nothing came: what it took stands, and so does how it ended, unless it ended now
            known = dict(before.figures)
            state, why = (state, why) if state == "whole" else (before.state, before.reason)
            self.added_nothing = self.reason == "stop"
        self._change(state=state, reason=why, figures=known)
        try:
            if self.view.is_attached:
                await self.view.finish(self.message)
        finally:  # what was said is kept, whatever becomes of how it is shown
            await self._save(self.chat)
            self.over.set()

    def _change(self, **fields: object) -> None:
        self.message = replace(self.message, **fields)  # type: ignore[arg-type]
        self.chat.put(self.message)


def _said(message: Message) -> tuple[object, ...]:
    return message.thought, message.text, message.calls


def _says_something(message: Message) -> bool:
    return any(_said(message))


def in_all(before: Mapping[str, Any], more: Figures) -> dict[str, Any]:
    """The figures of an answer that took ``before`` and was then continued, which took ``more``."""
    new = {name: value for name, value in asdict(more).items() if value is not None}
    found = {**new, **before}
    for name in ("completion_tokens", "drafted_tokens", "accepted_tokens"):
        if name in before and name in new:
            found[name] = before[name] + new[name]
    parts = [(each.get("completion_tokens"), each.get("tokens_per_second")) for each in (before, new)]
    known = [(tokens, tokens / rate) for tokens, rate in parts if tokens and rate]
    if len(known) == 2:
        found["tokens_per_second"] = sum(tokens for tokens, _ in known) / sum(seconds for _, seconds in known)
    return found


@dataclass
class Turn:
    """A chat that is being answered."""

    chat: OpenChat
    task: asyncio.Task[object]
    answering: Answering | None = None
    """None while it waits: for the disk, or for its model."""
    stopped: bool = False
    settings: ChatSettings | None = None
    """Others than the chat's, for this once."""
    ended: bool = False
    """The answer came to its end, and there is room for another one."""

    def stop(self) -> bool:
        """Stop the answer, or the wait; false when that was done before."""
        if self.stopped:
            return False
        self.stopped = True
        if self.answering is not None:
            self.answering.reply.cancel()
        else:
            self.task.cancel()
        return True


def with_pieces(calls: Sequence[ToolCall], pieces: Iterable[CallBegun | CallArguments]) -> tuple[ToolCall, ...]:
    """``calls`` as they are when ``pieces`` of an answer have come."""
    found = [*calls]
    for piece in pieces:
        if isinstance(piece, CallBegun):
            found.append(ToolCall(piece.id, piece.name[:200]))
        elif found and len(found[-1].arguments) < MOST_ARGUMENTS:
            place = min(piece.index, len(found) - 1)
            found[place] = replace(found[place], arguments=found[place].arguments + piece.text)
    return tuple(found)
