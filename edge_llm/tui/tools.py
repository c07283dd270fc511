"""Tools of MCP servers in the chat: what is offered to the model, what the person allows, and the calls that are made."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_llm.chats.calls import ToolCall
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.tree import Message
from edge_llm.errors import EdgeLLMError
from edge_llm.files import one_line, shown
from edge_llm.strict_json import MAX_DEPTH, is_deeper
from edge_llm.talk.pieces import TOOL_NAME
from edge_llm.tool_servers.process import ServerProcess, ToolOffer
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.threads import in_thread
from edge_llm.tui.units import time_so_far

WAIT_SECONDS = 10.0
"""Most that a prompt waits for servers that are starting; it goes on without their tools."""
MOST_ROUNDS = 10
"""Answers with calls behind one prompt."""
SAME_CALLS = 3
"""Answers in a row with the same calls, of which the same came: another one would be the same, too."""
CALLS_LOOPED = "The model makes the same calls over and over, and was stopped.\n/continue goes on, /regenerate answers again."
MOST_OFFERED = 64
"""Tools; more would fill a small model's context with what they are."""
MOST_RESULT, UNKNOWN_RESULT = 50_000, 20_000
"""Characters of a result that go to the model, whatever its context, and where the context is not known."""
CHARACTERS_PER_TOKEN = 2
"""Of a result to a token of the context: some half of the context at most."""
REFUSED = "The person did not allow this call. Do not ask for it again; say what you can without it."

Calls = list[tuple[str, str, str]]
"""Names, arguments and results."""
Answer = str
"""What a person says to a call: once, always (for this tool in this chat) or no."""


@dataclass(frozen=True)
class Approval:
    """A call that a person is asked about."""

    server: str
    tool: str
    description: str
    arguments: str
    """Indented JSON."""


@dataclass(frozen=True)
class _Tool:
    process: ServerProcess
    offer: ToolOffer


class ChatTools:
    """The tools of ``processes``; used on the event loop.

    ``tell`` speaks to the person, ``approve`` asks about a call (without it none is made), ``may_ask`` says whether a chat's
    question can be put now.
    """

    def __init__(
        self,
        processes: Sequence[ServerProcess] = (),
        tell: Callable[[str, str], None] = lambda text, severity: None,
        approve: Callable[[Approval], Awaitable[Answer]] | None = None,
        may_ask: Callable[[OpenChat], bool] = lambda chat: True,
    ) -> None:
        self._processes = processes
        self._tell = tell
        self._approve = approve
        self._may_ask = may_ask
        self._offers: dict[str, Sequence[ToolOffer]] = {}
        self._failures: dict[str, str] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._allowed: set[tuple[int, str]] = set()  # (chat, digest of the tool as it was offered)
        self._doing: dict[int, tuple[str, float]] = {}  # by chat: what goes on, and since when

    def begin(self) -> None:
        """Start or reach the servers that are not there yet, behind the screen."""
        for process in self._processes:
            name = process.server.name
            if name not in self._offers and name not in self._connecting:
                self._connecting[name] = asyncio.create_task(self._connect(process))

    def close(self) -> None:
        """End all servers; called when the chat is left."""
        for task in self._connecting.values():
            task.cancel()
        for process in self._processes:
            process.stop()

    # -- what there is ------------------------------------------------------------------------------------------------

    async def declarations(self, chat: OpenChat) -> tuple[dict[str, Any], ...]:
        """What the model of ``chat`` is offered, as OpenAI declares functions; waits a while for servers that start."""
        if not self._processes:
            return ()
        if self._connecting:
            self._doing[chat.chat.id] = f"waiting for the tools of {', '.join(self._connecting)}", time.monotonic()
            try:
                await asyncio.wait([*self._connecting.values()], timeout=WAIT_SECONDS)
            finally:
                self._doing.pop(chat.chat.id, None)
        return tuple(
            {
                "type": "function",
                "function": {"name": name, "description": tool.offer.description, "parameters": dict(tool.offer.schema)},
            }
            for name, tool in self._tools().items()
        )

    def overview(self) -> str:
        """The servers and their tools, for the person."""
        if not self._processes:
            return "No tool servers: the config file names them below [mcp.NAME] (`edge-llm config --example`)."
        lines = []
        for process in self._processes:
            name = process.server.name
            if name in self._offers:
                names = ", ".join(one_line(offer.name)[:60] for offer in self._offers[name]) or "no tools"
                lines.append(f"{name}: {names}")
            else:
                lines.append(f"{name}: {self._failures.get(name, 'starting')}")
        return "\n".join(lines)

    def doing(self, chat: OpenChat) -> str:
        """What goes on with tools in ``chat``, in a line; mostly nothing."""
        found = self._doing.get(chat.chat.id)
        return "" if found is None else f"{found[0]}  {time_so_far(time.monotonic() - found[1])}  Esc stops"

    def _tools(self) -> dict[str, _Tool]:
        """By the names that they are offered under: their own, behind their server's where two have the same."""
        every = [_Tool(process, offer) for process in self._processes for offer in self._offers.get(process.server.name, ())]
        names = [tool.offer.name for tool in every]
        found: dict[str, _Tool] = {}
        for tool in every:
            name = tool.offer.name if names.count(tool.offer.name) == 1 else f"{tool.offer.server}_{tool.offer.name}"
            if TOOL_NAME.fullmatch(name) and len(found) < MOST_OFFERED:
                found.setdefault(name, tool)
        return found

    async def _connect(self, process: ServerProcess) -> None:
        name = process.server.name
        try:
            self._offers[name] = await in_thread(process.tools)
            self._failures.pop(name, None)
        except EdgeLLMError as error:
            self._failures[name] = str(error)
            self._tell(f"{error}\nThe chat goes on without its tools; /tools tries again.", "warning")
        finally:
            self._connecting.pop(name, None)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def answer_calls(
        self,
        chat: OpenChat,
        message: Message,
        context: int | None,
        view_of: Callable[[int], MessageView | None],
        save: Callable[[OpenChat], Awaitable[object]],
    ) -> Message:
        """Make the calls of ``message`` that nothing has come of yet, each when the person allows it.

        Whenever the message has changed it is shown, where ``view_of`` has a view of it, and saved.  A call that is cut short
        stays open, so that it can be made later; its server is ended then, for nobody knows what it does.
        """
        for at, call in enumerate(message.calls):
            if call.open:
                made = await self._answered(chat, call, context)
                message = replace(message, calls=(*message.calls[:at], made, *message.calls[at + 1 :]))
                chat.put(message)
                if (view := view_of(message.id)) is not None:
                    view.redraw(message)
                await asyncio.shield(asyncio.ensure_future(save(chat)))
        return message

    async def _answered(self, chat: OpenChat, call: ToolCall, context: int | None) -> ToolCall:
        tool = self._tools().get(call.name)
        if tool is None:
            names = ", ".join(self._tools()) or "none"
            return replace(call, state="failed", result=f"There is no tool `{shown(call.name, 60)}`; there are: {names}.")
        arguments = _arguments(call.arguments)
        if arguments is None:
            return replace(call, state="failed", result="The arguments are not a JSON object.")
        call = replace(call, server=tool.offer.server)
        try:
            if not await self._is_allowed(chat, tool, arguments):
                return replace(call, state="refused", result=REFUSED)
            self._doing[chat.chat.id] = f"calling {one_line(call.name)[:40]}", time.monotonic()
            result = await in_thread(tool.process.call, tool.offer.name, arguments)
        except EdgeLLMError as error:
            self._tell(str(error), "warning")
            return replace(call, state="failed", result=f"The call failed: {error}")
        except asyncio.CancelledError:
            tool.process.stop()
            raise
        finally:
            self._doing.pop(chat.chat.id, None)
        most = UNKNOWN_RESULT if context is None else min(MOST_RESULT, CHARACTERS_PER_TOKEN * context)
        text = result.text
        if len(text) > most or result.length > len(text):
            text = f"{text[:most]}\n[cut off: {max(result.length, len(text)):,} characters in all]"
        return replace(call, state="failed" if result.failed else "done", result=text)

    async def _is_allowed(self, chat: OpenChat, tool: _Tool, arguments: dict[str, Any]) -> bool:
        key = chat.chat.id, tool.offer.digest
        if key in self._allowed:
            return True
        self._doing[chat.chat.id] = f"asks whether it may call {one_line(tool.offer.name)[:40]}", time.monotonic()
        while not self._may_ask(chat):
            await asyncio.sleep(0.1)
        about = json.dumps(arguments, ensure_ascii=False, indent=2)
        if self._approve is None:
            return False
        said = await self._approve(Approval(tool.offer.server, tool.offer.name, tool.offer.description, about))
        if said == "always":
            self._allowed.add(key)
        return said in ("once", "always")


def what_came_of(message: Message) -> Calls:
    """The calls of ``message`` with their results."""
    return [(call.name, call.arguments, call.result) for call in message.calls]


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_deeper(value, MAX_DEPTH) else None
