"""One prompt to two models: one after the other, for they would share the cores and the memory; then both answers are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge_llm.chats.tree import Message, path_to
from edge_llm.errors import UsageError
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.screens.compare import Compare, Shown
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread
from edge_llm.tui.units import answer_figures


class CompareActions:
    """What is done with two models at a time."""

    def __init__(self, app: Stage, prompts: PromptActions) -> None:
        self._app = app
        self._prompts = prompts

    async def do_compare(self, argument: str) -> None:
        """Have the last prompt, or the one behind the model's name, answered by this chat's model and by another one."""
        session = self._app.session
        self._prompts.check_idle()
        model, _, text = argument.partition(" ")
        await in_thread(lambda: session.catalogue().check(model))
        chat, here = session.chat, session.settings
        if text.strip():
            await session.send(text.strip())
        elif not chat.path:
            raise UsageError(f"there is no prompt yet; /compare {model} PROMPT sends one")
        first, prompt = chat.chat.leaf, self._prompts.last("user")
        if session.chat is not chat or first is None or first == prompt.id:  # nothing was answered, or somebody went elsewhere
            return
        try:
            await session.answer(prompt, replace(here, model=model))
        finally:
            self._app.run_worker(session.load_for(here), exit_on_error=False)
        second = chat.chat.leaf
        if session.chat is chat and second is not None and second != first:
            await self._choose(prompt, (first, second), model)

    async def _choose(self, prompt: Message, leaves: tuple[int, int], model: str) -> None:
        session, chat = self._app.session, self._app.session.chat
        shown = tuple(_shown(path_to(chat.messages, leaf), prompt) for leaf in leaves)
        choice = await self._app.push_screen_wait(Compare(prompt.text, (shown[0], shown[1])))
        if choice is None or session.chat is not chat or chat.message(leaves[choice.which]) is None:
            return
        chat.select(leaves[choice.which])
        await session.save(chat)
        await session.show(chat)
        if choice.with_model and choice.which == 1:
            await session.change_settings(replace(session.settings, model=model))


def _shown(path: Sequence[Message], prompt: Message) -> Shown:
    """The answer at the end of ``path``, behind ``prompt``."""
    said = [message for message in path if message.role == "assistant" and message.id > prompt.id]
    text = "\n\n".join(message.text for message in said if message.text)
    return Shown(said[-1].model, text, answer_figures(said[-1].figures)) if said else Shown("", "")
