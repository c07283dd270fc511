"""The chat on the screen and who answers it: models that come and go, prompts that are sent, answers that grow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.store import ChatStore
from edge_llm.chats.tree import CONTEXT_FULL, Attachment, Message
from edge_llm.config import REPETITION
from edge_llm.errors import EdgeLLMError, StorageError, Unavailable
from edge_llm.progress import StageProgress
from edge_llm.providers.base import Ask, Catalogue, Figures, Provider, Wanted
from edge_llm.tui.answering import LOOPED, NOTHING_ADDED, Answering, Turn, failure_of, repeats_itself
from edge_llm.tui.asking import ask_of, settings_of, wanted_of
from edge_llm.tui.fetching import Fetching
from edge_llm.tui.threads import in_thread
from edge_llm.tui.tools import CALLS_LOOPED, MOST_ROUNDS, SAME_CALLS, Calls, ChatTools, what_came_of
from edge_llm.tui.transcript import Transcript
from edge_llm.tui.wording import reason

OpenCatalogue = Callable[[], Catalogue]
Tell = Callable[[str, str], None]
"""Tells the person (text, severity: information, warning or error)."""
Switch = Callable[[OpenChat, OpenChat, bool], None]
"""Another chat comes on the screen (from, to, whether what is written in the prompt goes along)."""
Free = Callable[[OpenChat, bool], None]
"""A chat is not answered any more (chat, whether its answer came to its end)."""
END_SECONDS = 2.0
"""How long answers may take to stop when the person leaves."""


@dataclass(frozen=True)
class Loading:
    """How far a model is on its way into memory."""

    name: str
    stage: str = "loading"
    done: int = 0
    total: int = 0


class Superseded(EdgeLLMError):
    """Another model was chosen while this one was loading."""


class Session:
    """The chat on the screen, the model that answers, and all answers under way; used on the event loop.

    An answer goes on when another chat is shown.  ``tell`` speaks to the person, ``on_answer`` hears what an answer took,
    ``typing`` says whether the person writes just now.
    """

    def __init__(
        self,
        open_catalogue: OpenCatalogue,
        transcript: Transcript,
        tell: Tell,
        on_answer: Callable[[Figures], None],
        typing: Callable[[], bool],
    ) -> None:
        self.catalogue = cache(open_catalogue)
        """Gives the models to choose from; called in a thread, because its first call loads the engine."""
        self.store = ChatStore.in_memory()
        self.chat = OpenChat.new(self.store, {})
        self.provider: Provider | None = None
        self.loading: Loading | None = None
        self.last: Figures | None = None
        """What the last answer took."""
        self.fetching: Fetching | None = None
        """A model that is being brought here."""
        self.model_names: list[str] = []
        """As far as they have been looked up."""
        self.tools = ChatTools()
        """Of MCP servers."""
        self.at_work = ""
        """What else the model does now: no answer; empty for nothing."""
        self.typed_tokens: int | None = None
        """Tokens of what is written in the prompt, with its files; None when unknown."""
        self.on_switch: Switch = lambda old, new, carried: None
        self.on_free: Free = lambda chat, ended: None
        self._transcript = transcript
        self._tell = tell
        self._on_answer = on_answer
        self._typing = typing
        self._wanted: Wanted | None = None
        self._ready = asyncio.Event()
        self._load_number = 0
        self._turns: dict[int, Turn] = {}  # by chat
        self._unsaved: dict[int, OpenChat] = {}

    # -- the model ----------------------------------------------------------------------------------------------------

    async def load(self, wanted: Wanted) -> None:
        """Make the model ``wanted`` the one that answers.  What is wrong with it is told, and nobody answers then."""
        self._load_number += 1
        number = self._load_number
        old, self.provider = self.provider, None
        self._wanted, self.loading = wanted, Loading(wanted.model or "the model")
        self._ready.clear()
        try:
            if old is not None:
                await in_thread(old.close)
            provider = await in_thread(self._open, wanted, partial(self._see_load, number))
        except Exception as error:
            if number == self._load_number:
                self._wanted, self.loading = None, None
                self._ready.set()
                self._tell(f"{reason(error)}\nF4 chooses a model.", "error")
            return
        if number != self._load_number:
            await in_thread(provider.close)
            return
        self.provider, self.loading = provider, None
        self._ready.set()
        for note in provider.facts.notes:
            self._tell(note, "warning")

    def _open(self, wanted: Wanted, progress: StageProgress) -> Provider:
        return self.catalogue().open(wanted, progress)

    async def load_for(self, settings: ChatSettings) -> None:
        """Load what a chat with ``settings`` wants, unless it is there or on its way.

        Raises `Unavailable` while the model that would go is answering: what it says would break off.
        """
        wanted = wanted_of(settings)
        if wanted == self._wanted:
            return
        answered = next((turn.chat.chat for turn in self._turns.values() if turn.answering is not None), None)
        if answered is not None:
            raise Unavailable(f"another model is needed, and this one is answering in “{answered.title}”; stop that, or wait")
        await self.load(wanted)

    def _see_load(self, number: int, stage: str, done: int, total: int) -> None:
        """Called in the thread that loads."""
        if number != self._load_number:
            raise Superseded("another model was chosen")
        if self.loading is not None:
            self.loading = replace(self.loading, stage=stage, done=done, total=total)

    # -- chats --------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> ChatSettings:
        """Those of the chat on the screen."""
        return settings_of(self.chat)

    async def change_settings(self, settings: ChatSettings) -> None:
        """Give the chat other settings; the model is loaded again where they ask for it."""
        self.chat.set_settings(settings.as_json())
        await self.save(self.chat)
        await self.load_for(settings)

    async def show(self, chat: OpenChat, *, carry: bool = False) -> None:
        """Put ``chat`` on the screen; with ``carry`` what is written in the prompt goes along."""
        old = self.chat
        if old is not chat:
            self.on_switch(old, chat, carry or old.chat.id == chat.chat.id)
        self.chat = chat
        before = self.answering
        await self._transcript.show(chat.path, chat.messages)
        answering = self.answering or before  # it may have ended meanwhile
        if self.chat is chat and answering is not None:
            await answering.show_in(self._transcript.view_of(answering.message.id) or answering.view)
        if old is not chat and not old.saved:
            await self.save(old)

    async def open(self, chat_id: int) -> bool:
        """Put the stored chat on the screen; false when there is none any more."""
        if not self.chat.saved:  # what is read may be the same chat
            await self.save(self.chat)
        chat = await self.chat_of(chat_id)
        if chat is not None:
            await self.show(chat)
        return chat is not None

    async def chat_of(self, chat_id: int) -> OpenChat | None:
        """The chat ``chat_id`` as this terminal has it, or as it is stored; None when there is none any more."""
        running = self._turns.get(chat_id)
        here = running.chat if running is not None else self._unsaved.get(chat_id)
        return here or await in_thread(OpenChat.read, self.store, chat_id)

    async def delete(self, chat: OpenChat) -> None:
        """Delete ``chat`` for good; an answer that grows in it is stopped."""
        turn = self._turns.get(chat.chat.id)
        if turn is not None:
            turn.stop()
        await in_thread(chat.delete)
        self._unsaved.pop(chat.chat.id, None)

    async def save(self, chat: OpenChat) -> bool:
        """Write ``chat``; what cannot be written is told once, kept, and tried again with the next change."""
        try:
            await in_thread(chat.save)
        except StorageError as error:
            if chat.chat.id not in self._unsaved:
                self._tell(f"This chat is not saved: {error}\nIt stays here, and is saved when that is possible.", "error")
            self._unsaved[chat.chat.id] = chat
            return False
        if self._unsaved.pop(chat.chat.id, None) is not None:
            self._tell("The chat is saved now.", "information")
        return True

    async def save_all(self) -> None:
        """Try again to write what could not be written."""
        for chat in [*self._unsaved.values()]:
            await self.save(chat)

    async def end(self) -> None:
        """Stop all answers, and write all that is not written."""
        if not self.chat.saved:
            await self.save(self.chat)
        turns = [*self._turns.values()]
        answers = [turn.answering for turn in turns if turn.answering is not None]
        for turn in turns:
            turn.stop()
        self.tools.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(one.over.wait() for one in answers)), END_SECONDS)
        await self.save_all()

    @property
    def unsaved(self) -> bool:
        """Whether something could not be written."""
        return bool(self._unsaved)

    # -- answers ------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether the chat on the screen is being answered, or waits to be."""
        return self.is_busy(self.chat)

    def is_busy(self, chat: OpenChat) -> bool:
        """Whether ``chat`` is being answered, or waits to be."""
        return chat.chat.id in self._turns

    @property
    def answering(self) -> Answering | None:
        """The answer that grows in the chat on the screen."""
        turn = self._turns.get(self.chat.chat.id)
        return None if turn is None else turn.answering

    async def send(
        self,
        text: str,
        attachments: Sequence[Attachment] = (),
        *,
        instead_of: Message | None = None,
        chat: OpenChat | None = None,
        said: Callable[[], object] = lambda: None,
    ) -> None:
        """Send a prompt behind the path, or in the place of another one; it is shown when it is on disk, and answered.

        It belongs to ``chat``, or to the one on the screen.  ``said`` is called when the chat has it.
        """
        with self._turn(chat or self.chat) as turn:
            parent = instead_of.parent if instead_of is not None else turn.chat.chat.leaf
            message = turn.chat.add("user", text, parent=parent, attachments=tuple(attachments))
            said()
            try:
                await asyncio.shield(self.save(turn.chat))
            finally:  # also when it is stopped before it is written
                await self._show_new(turn.chat, message)
            await self._answer(turn, message)

    async def answer(self, prompt: Message, settings: ChatSettings | None = None) -> None:
        """Answer ``prompt`` of the chat on the screen, behind it; with other ``settings`` than the chat's for this once."""
        with self._turn(self.chat) as turn:
            turn.settings = settings
            await self._answer(turn, prompt)

    async def _answer(self, turn: Turn, prompt: Message) -> None:
        """Answer ``prompt``; tool calls are made, and what they gave is answered."""
        made: list[Calls] = []
        guarded = (turn.settings or settings_of(turn.chat)).sampling.get("loop_guard", True)
        for _ in range(MOST_ROUNDS):
            answered = await self._answer_once(turn, prompt)
            if answered is None or not answered.calls or answered.state != "whole" or repeats_itself(answered):
                return
            prompt = await self._call(turn, answered)
            made.append(what_came_of(prompt))
            if guarded and made[-SAME_CALLS:] == [made[-1]] * SAME_CALLS:
                self._tell(CALLS_LOOPED, "warning")
                return
        self._tell(f"Stopped after {MOST_ROUNDS} answers with tool calls; /continue goes on.", "warning")

    async def _call(self, turn: Turn, message: Message) -> Message:
        """Make the calls of ``message``, as far as the person allows them."""
        turn.answering = None  # what is stopped now is the wait
        context = None if self.provider is None else self.provider.facts.context
        return await self.tools.answer_calls(turn.chat, message, context, self._transcript.view_of, self.save)

    async def _answer_once(self, turn: Turn, prompt: Message) -> Message | None:
        settings = turn.settings or settings_of(turn.chat)
        provider = await self._provider_for(settings)
        tools = await self.tools.declarations(turn.chat) if settings.tools is not False else ()
        name, answers = provider.facts.name, [each for each in turn.chat.messages if each.parent == prompt.id and each.text]
        again = any(each.model == name for each in answers)  # another model's answer is another one anyway
        ask = replace(ask_of(turn.chat, prompt.id, settings), tools=tools, again=again)
        message = turn.chat.add("assistant", "", parent=prompt.id, model=provider.facts.name, state="growing")
        try:
            await self._show_new(turn.chat, message)
        except asyncio.CancelledError:  # stopped before it began
            turn.chat.put(replace(message, state="stopped"))
            await asyncio.shield(self.save(turn.chat))
            raise
        await self._run(turn, message, provider, ask)
        return turn.chat.message(message.id)

    @contextmanager
    def at_work_in(self, chat: OpenChat) -> Iterator[None]:
        """The model does something else for ``chat`` than to answer it; `stop` stops that too."""
        with self._turn(chat) as turn:
            try:
                yield
                turn.ended = True
            finally:
                self.at_work = ""

    def see_work(self, text: str) -> None:
        """``text`` says what the model does now that is no answer."""
        self.at_work = text

    async def go_on(self, message: Message) -> None:
        """Continue the answer ``message`` where it ends."""
        with self._turn(self.chat) as turn:
            settings = settings_of(turn.chat)
            if message.calls:
                await self._answer(turn, await self._call(turn, message))
                return
            provider = await self._provider_for(settings)
            ask = replace(ask_of(turn.chat, message.id, settings), continues=True)
            await self._run(turn, message, provider, ask)

    def stop(self) -> bool:
        """Stop the answer of the chat on the screen, or the wait for a model; false when there is nothing to stop any more."""
        turn = self._turns.get(self.chat.chat.id)
        return turn is not None and turn.stop()

    async def _show_new(self, chat: OpenChat, message: Message) -> None:
        if self.chat is not chat:
            return
        if any(other.parent == message.parent and other.id != message.id for other in chat.messages):
            await self._transcript.show(chat.path, chat.messages)  # it stands in the place of another one
        else:
            await self._transcript.add(message)

    @contextmanager
    def _turn(self, chat: OpenChat) -> Iterator[Turn]:
        """``chat`` is being answered."""
        task = asyncio.current_task()
        assert task is not None, "answers run on the event loop"
        turn = self._turns[chat.chat.id] = Turn(chat, task)
        try:
            yield turn
        finally:
            del self._turns[chat.chat.id]
            self.on_free(chat, turn.ended)

    async def _run(self, turn: Turn, message: Message, provider: Provider, ask: Ask) -> None:
        view = self._transcript.view_of(message.id) or self._transcript.unseen(message)
        view.grows = True
        limit = provider.facts.context
        turn.answering = answering = Answering(turn.chat, message, provider.ask(ask), view, self.save, self._typing, limit)
        view.redraw(answering.message)
        try:
            figures = await answering.run()
        except EdgeLLMError as error:
            why = failure_of(error)
            self._tell(why if why.startswith(CONTEXT_FULL) else reason(error), "error")
        else:
            message = answering.message
            turn.ended = message.state == "whole" and not message.reason.startswith(CONTEXT_FULL)
            if answering.added_nothing:
                self._tell(NOTHING_ADDED, "information")
                return
            self.last = Figures(**{name: message.figures.get(name) for name in vars(figures)})
            self._on_answer(figures)
            if answering.reason == REPETITION:
                self._tell(LOOPED, "warning")

    async def _provider_for(self, settings: ChatSettings) -> Provider:
        """Who answers a chat with ``settings``; raises `Unavailable` when nobody can."""
        loading = asyncio.ensure_future(self.load_for(settings))
        await asyncio.shield(loading)  # who stops an answer does not stop the model
        await self._ready.wait()
        if self.provider is None:
            raise Unavailable("no model is loaded; F4 chooses one, /regenerate answers then")
        return self.provider
