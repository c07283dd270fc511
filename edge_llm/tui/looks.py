"""Which colours the chat has: the person's choice, or those of our own that fit the terminal's background."""

from __future__ import annotations

import os
from collections.abc import Mapping

from textual.app import App
from textual.theme import Theme

from edge_llm.errors import EdgeLLMError
from edge_llm.tui.options import ChatOptions
from edge_llm.tui.session import Tell
from edge_llm.tui.themes import DARK, LIGHT, own_themes, themes
from edge_llm.tui.threads import in_thread
from edge_llm.user_config import set_in_file


class Looks:
    """The theme of an app.  One that the person chooses is kept in the config file."""

    def __init__(self, app: App[None], options: ChatOptions, tell: Tell) -> None:
        self._app = app
        self._options = options
        self._tell = tell
        self._ours = ""
        """The theme that was set here, not by the person."""
        self._follows = not options.theme
        """The terminal's background decides."""

    def begin(self) -> None:
        """Have the colours of the first frame; other themes come behind it, unless one of them is wanted."""
        app, wanted = self._app, self._options.theme
        for theme in own_themes():
            app.register_theme(theme)
        app.theme_changed_signal.subscribe(app, self._changed)
        self._set(LIGHT if has_light_background(os.environ) else DARK)
        if wanted and wanted not in (DARK, LIGHT):
            self._offer_all()
        else:
            app.call_after_refresh(self._offer_all)
        if wanted in app.available_themes:
            self._set(wanted)
        elif wanted:
            self._tell(f"There is no theme `{wanted}`; /theme lists them.", "warning")

    def _offer_all(self) -> None:
        for theme in themes():
            self._app.register_theme(theme)

    def see_background(self, is_light: bool) -> None:
        """The terminal has told its background."""
        if self._follows:
            self._set(LIGHT if is_light else DARK)

    def _set(self, name: str) -> None:
        self._ours = self._app.theme = name

    def _changed(self, theme: Theme) -> None:
        if theme.name != self._ours:
            self._ours, self._follows = theme.name, False
            self._app.run_worker(self._keep(theme.name), exit_on_error=False)

    async def _keep(self, name: str) -> None:
        path = self._options.config
        if path is None:
            return
        try:
            await in_thread(set_in_file, path, "chat", "theme", name)
        except EdgeLLMError as error:
            self._tell(f"The theme {name} holds until you leave: {error}", "warning")
        else:
            self._tell(f"The theme {name} is kept in {path}", "information")


def has_light_background(environment: Mapping[str, str]) -> bool:
    """Whether the terminal says so in the way that needs no question: `COLORFGBG=0;15`."""
    return environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
