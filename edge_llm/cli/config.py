"""`edge-llm config`: what the config file and the environment say, and where each value of a command comes from."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from edge_llm.cli.options import SHARED, option_name
from edge_llm.cli.settings import DEFAULTS, check_tables, file_values, source, unknown
from edge_llm.cli.terminal import say, say_json
from edge_llm.cli.verbs import NOT_CONFIGURED, Verbs, configured
from edge_llm.errors import UsageError
from edge_llm.tool_servers.settings import tool_servers
from edge_llm.user_config import UserConfig, read_user_config, toml

EXAMPLE = """\
# Settings of edge-llm.  A flag goes before the environment, the environment before this file.
# `edge-llm config` says where this file belongs and what is wrong with it; `edge-llm config run` where each value comes from.

# Options that several commands share, by their long names; EDGE_LLM_THREADS and its like set them too.
[defaults]
# threads = 2
# device = "host"
# memory = "50%"
# prefix-cache = "1GiB"

# Options of one command: [run], [serve], [import], [bench], [bench.lanes] ... go before [defaults].
[serve]
# port = 8080
# alias = ["gpt-4o", "local"]

[chat]
# model = "builtin"
# temperature = 0.7
# theme = "nord"
# sidebar = true

# Keys of the chat, by its actions.
[keys]
# stop = "escape"

# Servers of tools (MCP) for the full-screen chat: a program, or a url.  The chat asks before it calls one.
[mcp.files]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/notes"]
# env = { LOG = "off" }
[mcp.search]
# url = "http://127.0.0.1:8931/mcp"
"""

SECRET = "EDGE_LLM_API_KEY"
PLACES = ("EDGE_LLM_CONFIG", "EDGE_LLM_DEBUG", "EDGE_LLM_HOME", "EDGE_LLM_NPU_OPS", SECRET)
"""What the environment may say beside the options that commands share."""


def _verbs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [] if ctx.args or ctx.params.get("command") else ctx.find_root().command.shell_complete(ctx, incomplete)


@click.command("config", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; before VERB, which may have such an option too.")
@click.option("--example", is_flag=True, help="Print a file to begin with, all of it commented out.")
@click.argument("command", metavar="[VERB [OPTIONS]...]", nargs=-1, type=click.UNPROCESSED, shell_complete=_verbs)
@click.pass_context
def config_command(ctx: click.Context, as_json: bool, example: bool, command: tuple[str, ...]) -> None:
    """Show what the config file and the environment set; with VERB, each of its options and where its value comes from.

    A flag goes before the environment, that before the file, that before the default.  The file is config.toml in the user's
    folder for settings, in EDGE_LLM_HOME if that is set, or what EDGE_LLM_CONFIG names.  EDGE_LLM_ and its name
    (EDGE_LLM_PREFIX_CACHE) sets an option that several commands share, as the file's table [defaults] does.
    """
    if example:
        say(EXAMPLE.rstrip("\n"))
    elif command:
        _show_command(_context_of(ctx, list(command)), as_json)
    else:
        _show_file(ctx, as_json)


# -- the file and the environment -------------------------------------------------------------------------------------


def _show_file(ctx: click.Context, as_json: bool) -> None:
    facts = _file_facts(ctx)
    if as_json:
        say_json(facts)
        return
    note = "" if facts["exists"] else " (not there; `edge-llm config --example` prints one)"
    rows = [("file", f"{facts['file']}{note}")]
    for table, options in facts["tables"].items():
        rows += [(f"[{table.replace(' ', '.')}]", f"{name} = {toml(value)}") for name, value in options.items()]
    for name, value in facts["environment"].items():
        known = name in PLACES or name in _VARIABLES
        rows.append(("environment", f"{name}={value}" + ("" if known else f" (means nothing; {unknown(name, _VARIABLES)})")))
    rows += [("problem", problem) for problem in facts["problems"]]
    width = max(len(kind) for kind, _ in rows)
    before = None
    for kind, text in rows:
        say(f"{('' if kind == before else kind).ljust(width)}  {text}")
        before = kind


_VARIABLES = frozenset(str(param.envvar) for param in SHARED.params)


def _file_facts(ctx: click.Context) -> dict[str, Any]:
    try:
        config = read_user_config()
    except UsageError as error:
        from edge_llm.paths import config_file

        config, problems = UserConfig(config_file(), True), [str(error)]
    else:
        problems = _problems(ctx, config)
    tables: dict[str, Mapping[str, Any]] = {name: dict(table) for name, table in config.tables.items()}
    looks = {"theme": config.theme, "sidebar": config.sidebar}
    if said := {name: value for name, value in looks.items() if value is not None}:
        tables["chat"] = {**tables.get("chat", {}), **said}
    if config.keys:
        tables["keys"] = dict(config.keys)
    for name, server in config.servers.items():
        tables[f"mcp {name}"] = {key: "(hidden)" if key in ("env", "headers") else value for key, value in server.items()}
    if "serve" in tables and "api-key" in tables["serve"]:
        tables["serve"] = {**tables["serve"], "api-key": "(hidden)"}
    return {
        "file": str(config.path),
        "exists": config.exists,
        "tables": tables,
        "environment": {
            name: "(hidden)" if name == SECRET else value
            for name, value in sorted(os.environ.items())
            if name.startswith("EDGE_LLM_") and value
        },
        "problems": problems,
    }


def _problems(ctx: click.Context, config: UserConfig) -> list[str]:
    """What each command would refuse of the file."""
    try:
        check_tables(config, configured(ctx))
    except UsageError as error:
        return [str(error)]
    problems = [*_wrong_keys(config), *tool_servers(config.servers, config.path)[1]]
    for table in config.tables:
        try:
            _check(ctx, table)
        except (UsageError, click.ClickException) as error:
            text = error.format_message() if isinstance(error, click.ClickException) else str(error)
            problems.append(text if str(config.path) in text else f"`{config.path}`: [{table.replace(' ', '.')}]: {text}")
    return problems


def _wrong_keys(config: UserConfig) -> Iterator[str]:
    if not config.keys:
        return
    from edge_llm.tui.keys import check_keys  # loads textual

    try:
        check_keys(config.keys)
    except UsageError as error:
        yield f"`{config.path}`: {error}"


def _check(ctx: click.Context, table: str) -> None:
    if table == DEFAULTS:
        values = file_values(_named(SHARED, ctx, DEFAULTS), configured(ctx))
        with SHARED.make_context(DEFAULTS, [], parent=ctx.parent, default_map=values):
            return
    with _context_of(ctx, table.split()):
        pass


def _named(command: click.Command, ctx: click.Context, name: str) -> click.Context:
    return click.Context(command, parent=ctx.parent, info_name=name)


# -- one command ------------------------------------------------------------------------------------------------------


def _context_of(ctx: click.Context, words: list[str]) -> click.Context:
    """The context of the command that ``words`` begin with, as if they had been typed, only that no argument is needed."""
    root = ctx.find_root().command
    assert isinstance(root, Verbs)
    command: click.Command = root
    names: list[str] = []
    while isinstance(command, click.Group) and words and (inner := command.get_command(ctx, words[0])) is not None:
        command = inner
        names.append(words.pop(0))
    if not names or names[0] in NOT_CONFIGURED:
        wanted, verbs = (names or words)[0], [verb for verb, _, _ in root.verbs if verb not in NOT_CONFIGURED]
        raise UsageError(f"`{wanted[:80]}` is no command with settings; {unknown(wanted, verbs)}", param="command")
    lenient = copy.copy(command)
    lenient.params = [_not_required(param) for param in command.params]
    return lenient.make_context(" ".join(names), words, parent=ctx.find_root())


def _not_required(param: click.Parameter) -> click.Parameter:
    param = copy.copy(param)
    param.required = False
    return param


def _show_command(ctx: click.Context, as_json: bool) -> None:
    rows = [_row(ctx, param) for param in ctx.command.params if param.expose_value]
    if as_json:
        say_json({"command": ctx.info_name, "options": {row.pop("name"): row for row in rows}})
        return
    name_width = max((len(row["name"]) for row in rows), default=0)
    value_width = min(30, max((len(_shown(row["value"])) for row in rows), default=0))
    for row in rows:
        where = f" ({row['where']})" if row["where"] else ""
        say(f"{row['name'].ljust(name_width)}  {_shown(row['value']).ljust(value_width)}  {row['source']}{where}")


def _row(ctx: click.Context, param: click.Parameter) -> dict[str, Any]:
    value = ctx.params.get(param.name or "")
    if isinstance(value, Path):
        value = str(value)
    kind, where = source(ctx, param)
    if param.name == "api_key" and value is not None:
        value, where = "(hidden)", where if kind == "environment" else ""
    return {"name": option_name(param), "value": value, "source": kind, "where": where}


def _shown(value: Any) -> str:
    return "-" if value is None or value == () else toml(value)
