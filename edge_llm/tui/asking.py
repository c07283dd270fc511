"""What a chat wants of a model, and what it tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_llm.chats.calls import messages_of as messages_of_calls
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.tree import Message, path_to, visible
from edge_llm.providers.base import Ask, Wanted

SUMMARY_SO_FAR = "Summary of our conversation so far:"
"""What a model is told before a summary."""


def settings_of(chat: OpenChat) -> ChatSettings:
    """What ``chat`` has otherwise than the command line."""
    return ChatSettings.from_json(chat.chat.settings)


def wanted_of(settings: ChatSettings) -> Wanted:
    """The model that a chat with ``settings`` wants."""
    return Wanted(settings.model, dict(settings.runtime))


def ask_of(chat: OpenChat, last: int, settings: ChatSettings) -> Ask:
    """The conversation of ``chat`` up to the message ``last``.

    Answers that are empty are left out, and prompts that then follow each other become one: templates want turns.
    Of what was said before a cut only its summary is told.
    """
    return Ask(tuple(messages_of(path_to(chat.messages, last), settings)), settings.sampling, settings.thinking)


def messages_of(path: Sequence[Message], settings: ChatSettings) -> list[dict[str, Any]]:
    """What of ``path`` a model is told.  A summary stands before the first prompt: not every template has a system's turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": settings.system}] if settings.system else []
    summary, said = visible(path)
    for message in said:
        if message.calls:
            messages += messages_of_calls(message.text, message.calls)
            continue
        if message.role == "assistant" and not message.text:
            continue
        content = message.content
        if summary and message.role == "user":
            content, summary = f"{SUMMARY_SO_FAR}\n{summary}\n\n{content}", ""
        if messages and messages[-1]["role"] == message.role:
            messages[-1]["content"] += "\n\n" + content
        else:
            messages.append({"role": message.role, "content": content})
    return messages
