"""What is done to the screen as a whole, and how one leaves."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from edge_llm.errors import UsageError
from edge_llm.tui.actions.files import new_file
from edge_llm.tui.screens.help import Help
from edge_llm.tui.threads import in_thread

if TYPE_CHECKING:
    from edge_llm.tui.app import ChatApp


class ScreenActions:
    """What is done to the screen."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    async def do_help(self, argument: str) -> None:
        self._app.push_screen(Help(self._app.options.keys))

    async def do_inside(self, argument: str) -> None:
        self._app.show_inside(not self._app.inside.display)

    async def do_theme(self, argument: str) -> None:
        if not argument:
            self._app.search_themes()
        elif argument in self._app.available_themes:
            self._app.theme = argument
        else:
            raise UsageError(f"there is no theme `{argument}`; there are: {', '.join(sorted(self._app.available_themes))}")

    async def do_screenshot(self, argument: str) -> None:
        svg = self._app.export_screenshot(title="edge-llm")
        name = argument or f"edge-llm-{datetime.now():%Y%m%d-%H%M%S}.svg"
        path = await in_thread(new_file, self._app.options.folder, name, svg)
        self._app.tell(f"Written: {path}")

    async def do_quit(self, argument: str) -> None:
        """Leave, with everything written that can be written."""
        session = self._app.session
        session.stop()
        if (fetching := self._app.actions.models.fetching) is not None:
            fetching.cancel()
        await session.save_all()
        self._app.exit()
