"""The settings of a chat: shown, changed, taken back."""

from __future__ import annotations

from edge_llm.chats.settings import BY_NAME, SETTINGS, ChatSettings
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.holding import default, holds
from edge_llm.tui.screens.settings import SettingsForm
from edge_llm.tui.stage import Stage

ERASE = "-"
"""What `/system` takes for none."""
DEFAULT = "default"
"""What `/set NAME` takes for no value of the chat's own."""


class SettingsActions:
    """What is done with the settings of the chat on the screen."""

    def __init__(self, app: Stage, prompts: PromptActions) -> None:
        self._app = app
        self._prompts = prompts

    async def do_settings(self, argument: str) -> None:
        """F5: a form of what holds."""
        session = self._app.session
        facts = session.provider.facts if session.provider else None
        defaults = {setting.name: str(default(setting.name, facts, session.settings)) for setting in SETTINGS}
        changed = await self._app.push_screen_wait(SettingsForm(session.settings, defaults))
        if changed is not None:
            await self._set(changed)

    async def do_set(self, argument: str) -> None:
        """Change a setting; without a value, say what holds."""
        name, _, value = argument.partition(" ")
        settings = self._app.session.settings
        if not name:
            await self.do_settings("")
        elif value.strip():
            await self._set(settings.changed(name, "" if value.strip() == DEFAULT else value))
        else:
            self._show(name, f"/set {name} VALUE changes it, /set {name} {DEFAULT} takes it back")

    async def do_system(self, argument: str) -> None:
        """Change the system message; without a text, say what it is."""
        if argument:
            await self._set(self._app.session.settings.changed("system", "" if argument == ERASE else argument))
        else:
            self._show("system", f"/system TEXT changes it, /system {ERASE} erases it")

    async def do_think(self, argument: str) -> None:
        """Whether the model thinks; without a word, say what holds."""
        if argument:
            await self._set(self._app.session.settings.changed("thinking", "" if argument == DEFAULT else argument))
        else:
            self._show("thinking", f"/think on, off, low, medium or high changes it, /think {DEFAULT} takes it back")

    def _show(self, name: str, how: str) -> None:
        settings = self._app.session.settings
        settings.changed(name, "")  # refuses a name that there is not
        self._app.tell(f"{_called(name)}: {self._holds(_known(name), settings)}\n{how}")

    def _holds(self, name: str, settings: ChatSettings) -> str:
        provider = self._app.session.provider
        return str(holds(name, settings, self._app.options.settings, provider.facts if provider else None))

    async def _set(self, settings: ChatSettings) -> None:
        session = self._app.session
        before = session.settings
        changed = [one.name for one in SETTINGS if settings.value(one.name) != before.value(one.name)]
        if not changed:
            self._app.tell("Nothing has changed.")
            return
        if settings.runtime != before.runtime:
            self._prompts.check_idle()
        was = {name: self._holds(name, before) for name in changed}
        if not await self.change(settings):
            return
        if "thinking" in changed and session.provider is not None and not session.provider.facts.can_switch_thinking:
            self._app.tell("This model's chat template has no switch for thoughts: the setting changes nothing.", "warning")
        lines = [f"{_called(name)} is now: {self._holds(name, settings)}\nIt was: {was[name]}" for name in changed]
        self._app.tell("\n".join(lines))

    async def change(self, settings: ChatSettings) -> bool:
        """Give the chat ``settings``; false where no model can be loaded with them, and those of before hold again."""
        session = self._app.session
        chat, before, answered = session.chat, session.settings, session.provider is not None
        await session.change_settings(settings)
        if not answered or session.provider is not None or session.loading is not None or session.chat is not chat:
            return True
        self._app.tell("The settings of before hold again, and their model is loaded.")
        await session.change_settings(before)
        return False


def _known(name: str) -> str:
    return name.replace("-", "_")


def _called(name: str) -> str:
    return "The system message" if name == "system" else BY_NAME[_known(name)].name
