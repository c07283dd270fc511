"""Room in a full context: which turns are no longer sent, and a summary that stands for what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.tree import CONTEXT_FULL, Cut, Message, visible
from edge_llm.errors import EdgeLLMError
from edge_llm.providers.base import Ask, Provider
from edge_llm.talk.pieces import Said
from edge_llm.talk.spelled_out import spelled_out
from edge_llm.tui.asking import messages_of
from edge_llm.tui.threads import in_thread

SUMMARIZE = (
    "Summarize our conversation so far in a few short paragraphs, so that somebody who has only the summary can go on with it: "
    "the facts, names, numbers and code that matter, what was decided, and what is open. Write the summary only."
)
MOST_SUMMARY = 512
"""Tokens of a summary."""
UNKNOWN_CONTEXT = 4096
"""Tokens that a server is taken to have room for when it does not say."""
_CHARACTERS = 3
"""Of a token, where nobody counts them; few, so that the guess is on the safe side."""
_OF_A_TURN = 8
"""Tokens around a message, where nobody counts them."""

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    """``last`` is the last message that is no longer sent."""

    last: Message
    messages: int
    """That are no longer sent."""
    tokens: int
    """That are left."""


@dataclass(frozen=True)
class Summary:
    """``tokens`` are what the conversation has with it, in place of ``instead_of``; guesses unless they are ``counted``."""

    text: str
    tokens: int
    instead_of: int
    counted: bool

    @property
    def saves(self) -> str:
        """`: 40 tokens in place of 300`; empty where nobody counts them."""
        return f": {self.tokens} tokens in place of {self.instead_of}" if self.counted else ""


def unanswered(path: Sequence[Message]) -> tuple[Message | None, Message | None]:
    """The prompt at the end of ``path`` that found no room, and the empty answer that says so."""
    if path and path[-1].role == "user":
        return path[-1], None
    failed = len(path) > 1 and not path[-1].text and path[-1].reason.startswith(CONTEXT_FULL)
    return (path[-2], path[-1]) if failed and path[-2].role == "user" else (None, None)


def count(provider: Provider, messages: Messages) -> int:
    """Tokens of the prompt that ``messages`` become: a guess where nobody counts them.  Called in a thread."""
    if not messages:
        return 0
    found = provider.count(Ask(tuple(messages)))
    return _guess(messages) if found is None else found


def compare(provider: Provider, summary: str, said: Messages, begun: Messages) -> Summary:
    """``summary`` with what it saves: a conversation has ``begun`` with it, where ``said`` was.  Called in a thread."""
    after, before = (provider.count(Ask(tuple(messages))) for messages in (begun, said))
    if after is None or before is None:
        return Summary(summary, _guess(begun), _guess(said), counted=False)
    return Summary(summary, after, before, counted=True)


def _guess(messages: Messages) -> int:
    plain = spelled_out([dict(each) for each in messages])
    return sum(len(each["content"]) // _CHARACTERS + _OF_A_TURN for each in plain)


def plan(provider: Provider, path: Sequence[Message], settings: ChatSettings) -> Plan | None:
    """What is no longer sent so that at least half of the context is free; None where the last turn alone is all there is.

    Half of it at once: what is left then stays the beginning of all prompts that follow, and its keys and values are kept.
    Called in a thread.
    """
    summary, said = visible(path)
    starts = [at for at, message in enumerate(said) if at and message.role == "user"]
    room = (provider.facts.context or count(provider, messages_of(path, settings))) // 2

    def left(start: int) -> int:
        shown = [Message(0, 0, None, "user", "", cut=Cut(summary)), *said[start:]]
        return count(provider, messages_of(shown, settings))

    first, last = 0, len(starts) - 1
    if last < 0:
        return None
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if left(starts[middle]) <= room else (middle + 1, last)
    return Plan(said[starts[first] - 1], starts[first], left(starts[first]))


async def summarize(
    provider: Provider, messages: Messages, sampling: Mapping[str, object], see: Callable[[str], None]
) -> str:
    """What ``provider`` says that ``messages`` were about; in several steps where they do not fit at once.

    ``see`` is told how far it is.  Raises `EdgeLLMError` when no summary comes.
    """
    context = provider.facts.context or UNKNOWN_CONTEXT
    most = max(16, min(MOST_SUMMARY, context // 4))
    chosen = {name: value for name, value in sampling.items() if name != "stop"} | {"max_tokens": most}
    left, summary, step = spelled_out([dict(each) for each in messages]), "", 0
    while left:
        step += 1
        many = await in_thread(_fitting, provider, summary, left, context - most)
        see(f"summarizing  part {step}" if step > 1 or many < len(left) else "summarizing")
        if many == 0:  # one message is too long for all of the context: its end goes
            left[0]["content"] = left[0]["content"][: len(left[0]["content"]) // 2]
            if not left[0]["content"]:
                raise EdgeLLMError("the context is too small for a summary; choose a larger one (F5)")
            continue
        summary = await _said(provider, Ask(_asked(summary, left[:many]), chosen))
        left = left[many:]
    return summary


def _fitting(provider: Provider, summary: str, messages: Messages, room: int) -> int:
    """How many of ``messages`` can be asked about at a time."""
    low, high = 0, len(messages)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(provider, _asked(summary, messages[:middle])) <= room else (low, middle - 1)
    return low


def _asked(summary: str, messages: Messages) -> tuple[Mapping[str, str], ...]:
    """``messages`` and the request for a summary, in turns."""
    begun = [{"role": "user", "content": f"What was said before: {summary}"}] if summary else []
    turns: list[dict[str, str]] = []
    for each in (*begun, *messages, {"role": "user", "content": SUMMARIZE}):
        if not turns and each["role"] == "assistant":
            turns.append({"role": "user", "content": "…"})
        if turns and turns[-1]["role"] == each["role"]:
            turns[-1]["content"] += "\n\n" + each["content"]
        else:
            turns.append(dict(each))
    return tuple(turns)


async def _said(provider: Provider, ask: Ask) -> str:
    reply, text = provider.ask(ask), ""
    try:
        async for pieces in reply:
            text += "".join(piece.text for piece in pieces if isinstance(piece, Said))
            await asyncio.sleep(0)
    finally:
        reply.cancel()
    if not text.strip():
        raise EdgeLLMError("the model gave no summary; nothing is changed")
    return text.strip()
