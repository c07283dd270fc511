"""What is done to the screen as a whole, and how one leaves."""

from __future__ import annotations

import os
from datetime import datetime

from edge_llm.errors import UsageError
from edge_llm.tui.actions.files import new_file
from edge_llm.tui.screens.help import Help
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread


class ScreenActions:
    """What is done to the screen."""

    def __init__(self, app: Stage) -> None:
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
        if (fetching := self._app.session.fetching) is not None:
            fetching.cancel()
        self._app.drafts.note()
        await self._app.session.end()
        self._app.exit(return_code=self._app.exit_code)

    async def do_suspend(self, argument: str) -> None:
        """Go to the background of the shell that the chat was started from."""
        parent = os.getppid()
        if os.getsid(parent) != os.getsid(0) or os.getpgid(parent) == os.getpgrp():
            raise UsageError("there is no shell to go back to")
        self._app.action_suspend_process()
