"""What the command line and the config file say of the chat, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.store import ChatStore
from edge_llm.tool_servers.settings import ToolServer


def no_model(store: ChatStore) -> str | None:
    """Leaves the choice to whoever opens models."""
    return None


@dataclass(frozen=True)
class ChatOptions:
    """How the chat opens."""

    settings: ChatSettings = field(default_factory=ChatSettings)
    """Of every new chat."""
    first_model: Callable[[ChatStore], str | None] = no_model
    """The model of the chats whose settings name none; None: whoever opens models knows."""
    resume: bool = True
    """Open the chat of the same server (or of this machine) that changed last, not a new one."""
    theme: str = ""
    config: Path | None = None
    """The file that keeps the theme that is chosen."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Other keys, by the name of the command or of the message's action."""
    sidebar: bool = False
    """Show the list of chats from the beginning."""
    folder: Path = Path()
    """Where `@FILE` looks and exports are written."""
    servers: Sequence[ToolServer] = ()
    """Of tools."""
    problems: Sequence[str] = ()
    """What the person is told when the chat opens: what is wrong with the config file and keeps nobody from chatting."""
