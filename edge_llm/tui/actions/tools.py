"""Tools of MCP servers: what there is, and whether this chat uses them."""

from __future__ import annotations

from edge_llm.tui.stage import Stage


class ToolActions:
    """What is done with tools."""

    def __init__(self, app: Stage) -> None:
        self._app = app

    async def do_tools(self, argument: str) -> None:
        """Say which servers and tools there are; `on` and `off` are for this chat."""
        session = self._app.session
        if argument:
            await session.change_settings(session.settings.changed("tools", argument))
        else:
            session.tools.begin()
        off = session.settings.tools is False
        self._app.tell(session.tools.overview() + ("\nThis chat uses none; /tools on uses them." if off else ""))
