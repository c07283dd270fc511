"""The model of a chat; models that are brought here."""

from __future__ import annotations

from dataclasses import replace

from edge_llm.errors import UsageError
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.actions.settings import SettingsActions
from edge_llm.tui.fetching import Fetching
from edge_llm.tui.screens.models import ModelPicker
from edge_llm.tui.screens.questions import Confirm
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread


class ModelActions:
    """What is done with models."""

    def __init__(self, app: Stage, prompts: PromptActions, settings: SettingsActions) -> None:
        self._app = app
        self._prompts = prompts
        self._settings = settings

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
            await self._settings.change(replace(session.settings, model=name, server=self._app.options.settings.server))

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
            await self._settings.change(replace(session.settings, model=name))
