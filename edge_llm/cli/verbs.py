"""Groups of commands that are imported one by one, so that `--help` stays instant."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from edge_llm.errors import DeviceError, EdgeLLMError, ModelNotFound, UsageError
from edge_llm.files import shown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NOT_CONFIGURED = ("cache", "completion", "config", "doctor", "ps", "stop", "version")
"""Verbs that the person's config file says nothing about: they work whatever is wrong with it."""
ELSEWHERE = {"remove": "rm", "delete": "rm", "download": "pull", "ls": "list", "kill": "stop", "start": "serve", "info": "show"}
"""What other programs call our verbs, where the words are not alike."""


class VerbContext(click.Context):
    """The context of a verb: what no flag says, the config file may, and an error tells where a value came from."""

    def __init__(self, command: click.Command, **settings: Any) -> None:
        super().__init__(command, **settings)
        if self.info_name not in NOT_CONFIGURED:
            self.default_map = _FileDefaults(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if isinstance(error, EdgeLLMError) and not getattr(error, "__notes__", None):  # a context is left twice
            self._tell_origin(error)
        return super().__exit__(kind, error, trace)

    def _tell_origin(self, error: EdgeLLMError) -> None:
        about = {DeviceError: "device", ModelNotFound: "model"}
        name = getattr(error, "param", None) or next((name for kind, name in about.items() if isinstance(error, kind)), None)
        for param in self.command.params:
            if param.name == name and self.get_parameter_source(name) is not None:
                from edge_llm.cli.settings import origin

                if said := origin(self, param):
                    error.add_note(said)


def configured(ctx: click.Context) -> list[str]:
    """The verbs that may have a table in the config file."""
    root = ctx.find_root().command
    return [verb for verb, _, _ in root.verbs if verb not in NOT_CONFIGURED] if isinstance(root, Verbs) else []


class _FileDefaults(UserDict[str, Any]):
    """click's default map of a verb, read when it is first asked for a value: `--help` does without."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx

    @property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        return {} if self._ctx.resilient_parsing else self._read

    @cached_property
    def _read(self) -> dict[str, Any]:
        from edge_llm.cli.settings import file_values

        return file_values(self._ctx, configured(self._ctx))


class Verbs(click.Group):
    """A group of (verb, module in edge_llm.cli, one line of help); the module is imported when the verb is called.

    The command of a verb is called `VERB_command` in its module.
    """

    def __init__(self, *names: Any, verbs: Sequence[tuple[str, str, str]], **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb, _, _ in self.verbs]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self.command_of(name)

    def command_of(self, word: str) -> click.Command | None:
        """The command of the verb ``word``, None if there is no such verb."""
        for verb, module, _ in self.verbs:
            if verb == word:
                command: click.Command = getattr(import_module(f"edge_llm.cli.{module}"), f"{verb}_command")
                command.context_class = VerbContext
                return command
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As in any group; `help` shows the help, and that of the verb behind it.

        Raises `UsageError` with the verb that was meant for a word that is none.
        """
        if ctx.resilient_parsing:  # a shell completes
            return super().resolve_command(ctx, args)
        if args[0] == "help":
            args = [*(word for word in args if word != "help"), "--help"]
        if args[0] == "--help":
            click.echo(ctx.get_help())
            ctx.exit()
        if not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise self._no_verb(args[0])
        return super().resolve_command(ctx, args)

    def _no_verb(self, word: str) -> UsageError:
        from edge_llm.cli.settings import unknown  # which --help does without

        meant = ELSEWHERE.get(word)
        way_out = f"did you mean `{meant}`?" if meant else unknown(word, [verb for verb, _, _ in self.verbs])
        return UsageError(f"no command `{shown(word, 80)}`; {way_out}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs, without importing any; then what any command completes."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(verb, help=text) for verb, _, text in self.verbs if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, _, text in self.verbs])
