"""A chat that is being answered, from the prompt until nothing more comes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.tui.answering import Answering


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
