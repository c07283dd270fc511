"""How a chat goes on when its context is full: without the oldest turns, from a summary, in a new chat, in a larger context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.titles import UNTITLED
from edge_llm.chats.tree import Cut, Message, new_id
from edge_llm.errors import Unavailable, UsageError
from edge_llm.providers.base import Provider
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.activity import context_used
from edge_llm.tui.asking import SUMMARY_SO_FAR, messages_of, settings_of
from edge_llm.tui.room import Plan, Summary, compare, plan, summarize, unanswered
from edge_llm.tui.screens.context import ContextWays, Way
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread

Change = Callable[[ChatSettings], Awaitable[bool]]
"""Gives the chat on the screen other settings; false where those of before hold again."""


class ContextActions:
    """Makes room in the context of the chat on the screen."""

    def __init__(self, app: Stage, prompts: PromptActions, change: Change) -> None:
        self._app = app
        self._prompts = prompts
        self._change = change

    async def do_context(self, argument: str) -> None:
        """Say how full the context is, and go on as the person chooses."""
        self._prompts.check_idle()
        session = self._app.session
        chat, provider = session.chat, self._provider()
        found = await in_thread(plan, provider, chat.path, session.settings)
        used, context = context_used(session), provider.facts.context
        heading = f"{used} of {context} tokens of the context are used" if context and used else "The context of this chat"
        way = await self._app.push_screen_wait(ContextWays(heading, self._ways(provider, found)))
        if way is None or session.chat is not chat:
            return
        self._prompts.check_idle()
        if way == "drop":
            assert found is not None, "it was not possible"
            await self._cut(chat, found.last, Cut(_summary_of(chat.path), new_id(), found.tokens))
            self._app.tell(f"{found.messages} messages are not sent any more; about {found.tokens} tokens are.")
            await self._go_on(chat)
        elif way == "compact":
            await self.do_compact("")
        elif way == "new":
            await self._new_chat(chat)
        elif await self._change(session.settings.changed("context", str(_larger(provider)))):
            await self._go_on(chat)

    async def do_compact(self, argument: str) -> None:
        """Go on from a summary in the same chat."""
        self._prompts.check_idle()
        chat = self._app.session.chat
        if argument == "undo":
            await self._undo(chat)
        elif argument:
            raise UsageError(f"/compact takes nothing or `undo`, got `{argument[:40]}`", param="compact")
        else:
            last = self._said(chat)[-1]
            made = await self._summary(chat)
            await self._cut(chat, last, Cut(made.text, new_id(), made.tokens))
            self._app.tell(f"The chat goes on from the summary{made.saves}. /compact undo takes it back.")
            await self._go_on(chat)

    def _ways(self, provider: Provider, found: Plan | None) -> list[Way]:
        facts = provider.facts
        larger = _larger(provider)
        said = len(_before(self._app.session.chat.path)) > 1
        nothing = "there is nothing to summarize yet"
        return [
            Way(
                "drop",
                "Go on without the oldest turns",
                "the last turn alone is all there is" if found is None
                else f"{found.messages} messages are not sent any more; about {found.tokens} tokens are",
                found is not None,
            ),
            Way("compact", "Go on from a summary", "the model writes it; all messages stay here" if said else nothing, said),
            Way("new", "A new chat with a summary", "the model writes it" if said else nothing, said),
            Way(
                "larger",
                f"A larger context: {larger} tokens" if larger else "A larger context",
                "loads the model again" if larger
                else "the server decides" if facts.most_context is None
                else f"this model was made for {facts.most_context} tokens",
                bool(larger),
            ),
        ]  # fmt: skip

    def _said(self, chat: OpenChat) -> list[Message]:
        """What is summarized; raises `UsageError` where there is nothing."""
        said = _before(chat.path)
        if len(said) < 2 or said[-1].cut is not None:
            raise UsageError("nothing was said that could be summarized")
        return said

    async def _summary(self, chat: OpenChat) -> Summary:
        """A summary of what was said in ``chat`` before its last unanswered prompt.

        Raises `UsageError` for one that is as long as what it stands for.
        """
        session, provider, settings = self._app.session, self._provider(), settings_of(chat)
        said = messages_of(self._said(chat), settings)
        with session.at_work_in(chat):
            told = [each for each in said if each["role"] != "system"]
            text = await summarize(provider, told, settings.sampling, session.see_work)
            begun = [*messages_of([], settings), {"role": "user", "content": f"{SUMMARY_SO_FAR}\n{text}"}]
            made = await in_thread(compare, provider, text, said, begun)
        if made.tokens >= made.instead_of:
            counted = f" ({made.tokens} tokens in place of {made.instead_of})" if made.counted else ""
            raise UsageError(f"a summary would not be shorter than what was said{counted}; nothing is changed")
        return made

    async def _new_chat(self, old: OpenChat) -> None:
        """A new chat that begins with a summary of ``old``, and with its prompt that found no room."""
        session = self._app.session
        summary = (await self._summary(old)).text
        chat = OpenChat.new(session.store, old.chat.settings)
        chat.add("user", f"{SUMMARY_SO_FAR}\n{summary}", parent=None)
        chat.rename(f"{old.chat.title or UNTITLED} (2)")
        await session.save(chat)
        await session.show(chat)
        self._app.refresh_chats()
        prompt, _ = unanswered(old.path)
        if prompt is not None:
            await session.send(prompt.text, prompt.attachments)

    async def _undo(self, chat: OpenChat) -> None:
        cut = next((message for message in reversed(chat.path) if message.cut is not None), None)
        if cut is None:
            raise UsageError("the model is shown all of this chat; there is nothing to undo")
        chat.put(replace(cut, cut=None))
        await self._app.session.save(chat)
        await self._app.session.show(chat)

    async def _cut(self, chat: OpenChat, last: Message, cut: Cut) -> None:
        chat.put(replace(last, cut=cut))
        await self._app.session.save(chat)
        await self._app.session.show(chat)

    async def _go_on(self, chat: OpenChat) -> None:
        """There is room: answer the prompt that had found none."""
        session = self._app.session
        prompt, failed = unanswered(chat.path)
        if prompt is None:
            if chat.path and chat.path[-1].reason:
                self._app.tell(f"There is room again. {self._app.key_of('continue')} goes on with the answer that was cut.")
            return
        if failed is not None:
            chat.remove(failed.id)
            await session.save(chat)
            await session.show(chat)
        if session.chat is chat:
            await session.answer(prompt)

    def _provider(self) -> Provider:
        if (provider := self._app.session.provider) is None:
            raise Unavailable("no model is loaded; F4 chooses one")
        return provider


def _before(path: list[Message]) -> list[Message]:
    """``path`` without the prompt at its end that found no room."""
    prompt, failed = unanswered(path)
    return path[: len(path) - (prompt is not None) - (failed is not None)]


def _summary_of(path: list[Message]) -> str:
    """The summary that the visible part of ``path`` begins with."""
    return next((message.cut.summary for message in reversed(path) if message.cut is not None), "")


def _larger(provider: Provider) -> int:
    """A larger context than it has; 0 where there is none."""
    most, context = provider.facts.most_context or 0, provider.facts.context or 0
    return min(most, 2 * context) if most > context else 0
