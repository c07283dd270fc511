"""The model and the settings of a chat; models that are brought here."""

from __future__ import annotations

from dataclasses import replace

from edge_llm.chats.settings import ChatSettings
from edge_llm.errors import UsageError
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.fetching import Fetching
from edge_llm.tui.screens.models import ModelPicker
from edge_llm.tui.screens.questions import Confirm
from edge_llm.tui.screens.settings import SettingsForm
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread


class ModelActions:
    """What is done with models and settings."""

    def __init__(self, app: Stage, prompts: PromptActions) -> None:
        self._app = app
        self._prompts = prompts

    async def do_model(self, argument: str) -> None:
        """Another model for this chat."""
        session = self._app.session
        self._prompts.check_idle()
        name: str | None = argument
        if not argument:
            rows = await in_thread(lambda: session.catalogue().rows())
            self._app.session.model_names = [row.name for row in rows if not row.source]
            loaded = session.provider.facts.name if session.provider else None
            name = await self._app.push_screen_wait(ModelPicker(rows, loaded, can_fetch=session.catalogue().can_fetch))
        if name and name.startswith("pull "):
            await self.do_pull(name.removeprefix("pull "))
        elif name:
            await in_thread(lambda: session.catalogue().check(name))
            await self._change(replace(session.settings, model=name))

    async def do_pull(self, argument: str) -> None:
        """Bring a model here, and chat with it."""
        if self._app.session.fetching is not None:
            raise UsageError(f"`{self._app.session.fetching.source}` is on its way; Esc stops it")
        session = self._app.session
        self._app.session.fetching = Fetching(argument)
        try:
            name = await self._app.session.fetching.run(session.catalogue)
        finally:
            self._app.session.fetching = None
        if name is None:
            self._app.tell("Stopped; the next pull goes on with what has come.")
        elif not session.busy and await self._app.push_screen_wait(Confirm(f"{name} is here. Chat with it now?", "Chat")):
            await self._change(replace(session.settings, model=name))

    async def do_settings(self, argument: str) -> None:
        session = self._app.session
        facts = session.provider.facts if session.provider else None
        defaults = {**facts.sampling, "context": facts.context} if facts else {}
        changed = await self._app.push_screen_wait(SettingsForm(session.settings, defaults))
        if changed is not None:
            await self._set(changed)

    async def do_set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        await self._set(self._app.session.settings.changed(name, value))

    async def do_system(self, argument: str) -> None:
        await self._set(self._app.session.settings.changed("system", argument))

    async def do_think(self, argument: str) -> None:
        await self._set(self._app.session.settings.changed("thinking", argument))

    async def _set(self, settings: ChatSettings) -> None:
        if settings.runtime != self._app.session.settings.runtime:
            self._prompts.check_idle()
        session = self._app.session
        thinking_changes = settings.thinking != session.settings.thinking
        if not await self._change(settings):
            return
        if thinking_changes and session.provider is not None and not session.provider.facts.can_switch_thinking:
            self._app.tell("This model's chat template has no switch for thoughts: the setting changes nothing.", "warning")
        self._app.tell("The settings of this chat are changed.")

    async def _change(self, settings: ChatSettings) -> bool:
        """Give the chat ``settings``; false where no model can be loaded with them, and those of before hold again."""
        session = self._app.session
        chat, before, answered = session.chat, session.settings, session.provider is not None
        await session.change_settings(settings)
        if not answered or session.provider is not None or session.loading is not None or session.chat is not chat:
            return True
        self._app.tell("The settings of before hold again, and their model is loaded.")
        await session.change_settings(before)
        return False
