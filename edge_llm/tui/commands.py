"""The commands of the chat, said once: slash commands, keys, palette and help are read from this table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from textual.binding import Binding

from edge_llm.chats.drafts import command_in


@dataclass(frozen=True)
class Command:
    """What a person can ask of the chat.  The method ``do_NAME`` in `edge_llm.tui.actions` does it, given the argument."""

    name: str
    help: str
    argument: str = ""
    """What stands behind the name: `[NAME]` may be left out."""
    key: str = ""
    shown: bool = False
    """Its key is in the footer."""
    also: tuple[str, ...] = ()
    """Other names."""

    @property
    def takes_nothing(self) -> bool:
        return not self.argument

    @property
    def may_take_nothing(self) -> bool:
        return self.argument.startswith("[") or self.takes_nothing


COMMANDS: tuple[Command, ...] = (
    Command("help", "keys and commands", key="f1", shown=True, also=("?",)),
    Command("inside", "look inside the engine: lanes, pages of keys, speeds, memory", key="f2", shown=True),
    Command("chats", "list, search, rename and delete chats", key="f3", shown=True),
    Command("model", "choose the model", "[NAME]", key="f4", shown=True),
    Command("compare", "one prompt to two models: PROMPT, or the last one", "MODEL [PROMPT]"),
    Command("settings", "settings of this chat", key="f5", shown=True),
    Command("new", "begin a new chat", key="ctrl+n", also=("reset", "clear")),
    Command("stop", "stop the answer, or the download", key="escape"),
    Command("regenerate", "answer again, beside the answer that is there", key="ctrl+r"),
    Command("continue", "continue the last answer", key="ctrl+t"),
    Command("edit", "edit the last prompt and send it again", key="ctrl+l"),
    Command("branch", "a new chat that begins like this one"),
    Command("copy", "copy the last answer, its next block of code, or the whole chat", "[code|all]", key="ctrl+o"),
    Command("context", "what fills the context, and how to go on when it is full", key="f9"),
    Command("compact", "go on from a summary of what was said; `undo` takes it back", "[undo]"),
    Command("editor", "write the prompt in $EDITOR", key="ctrl+g"),
    Command("prompt", "write a stored prompt; save stores the last one", "[NAME|save NAME]"),
    Command("attach", "attach a text file, like @FILE in a prompt", "FILE"),
    Command("system", "what the model is told before the first message; `-` erases it", "[TEXT]"),
    Command("think", "whether the model thinks before it answers", "[on|off|low|medium|high|default]"),
    Command("tools", "tools of MCP servers: which there are; on or off for this chat", "[on|off]"),
    Command("set", "show or change a setting of this chat; `default` takes it back", "[NAME] [VALUE]"),
    Command("title", "rename this chat", "TEXT"),
    Command("search", "find chats by what was said", "[TEXT]"),
    Command("export", "write this chat to a file", "[md|json] [FILE]"),
    Command("import", "take in a chat that was exported as JSON", "FILE"),
    Command("pull", "download a model: a hub id, a short name or a folder", "SOURCE"),
    Command("stats", "what the last answer took"),
    Command("theme", "choose the colours", "[NAME]"),
    Command("screenshot", "write the screen to an SVG file", "[FILE]"),
    Command("delete", "delete this chat"),
    Command("suspend", "back to the shell; `fg` returns", key="ctrl+z"),
    Command("quit", "quit edge-llm", key="ctrl+q", also=("exit", "bye")),
)
BY_NAME: Mapping[str, Command] = {name: command for command in COMMANDS for name in (command.name, *command.also)}


def bindings() -> Iterator[Binding]:
    """The keys of commands; a config file may give other ones by the command's name."""
    for command in COMMANDS:
        if command.key:
            yield Binding(
                command.key, f"command('{command.name}')", command.name.capitalize(), id=command.name, show=command.shown,
                tooltip=command.help,
            )  # fmt: skip


def parse(text: str) -> tuple[Command | None, str] | None:
    """The command that ``text`` is, and what stands behind its name; None for a text that is no command."""
    found = command_in(text)
    return None if found is None else (BY_NAME.get(found[0]), found[1])
