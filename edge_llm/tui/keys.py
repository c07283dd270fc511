"""The keys of the chat by their actions, and other ones that a person wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.binding import Binding

from edge_llm.errors import UsageError
from edge_llm.tui.chat_list import ChatList
from edge_llm.tui.commands import COMMANDS
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.prompt import PromptArea


def actions() -> dict[str, str]:
    """Every action that may have another key, and its own key; empty for a command without one."""
    inside = (binding for one in (MessageView, PromptArea, ChatList) for binding in one.BINDINGS)
    named = {binding.id: binding.key for binding in inside if isinstance(binding, Binding) and binding.id}
    return {command.name: command.key for command in COMMANDS} | named


def check_keys(keys: Mapping[str, str]) -> None:
    """Raise `UsageError` for an action that does not exist."""
    known = actions()
    for name in keys:
        if name not in known:
            raise UsageError(f"[keys] has no action `{name[:80]}`; there are: {', '.join(known)}", param=name)


def bindings_of(keys: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(key, action, description) of commands that have a key only because ``keys`` gives them one."""
    for command in COMMANDS:
        if not command.key and command.name in keys:
            yield keys[command.name], f"command('{command.name}')", command.name.capitalize()
