"""Values of options that no flag gives: from the environment, then from the person's config file, then the default.

An option that several commands share can be set for all of them: in the table [defaults], or as `EDGE_LLM_` and its name
(`EDGE_LLM_PREFIX_CACHE`).  A command's own table sets each of its options, and goes before [defaults].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from edge_llm.cli.bench.words import WORDS
from edge_llm.cli.options import SHARED_NAMES, SharedOption, option_name
from edge_llm.errors import UsageError
from edge_llm.user_config import Table, UserConfig, Value, place, read_user_config, wrong

DEFAULTS = "defaults"


def unknown(name: str, known: Iterable[str]) -> str:
    """What to write instead of ``name``."""
    import difflib

    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"


def file_values(ctx: click.Context, configured: Iterable[str], config: UserConfig | None = None) -> dict[str, Any]:
    """What the file says about the options of the command of ``ctx``, as flags would say it, by parameter.

    ``configured`` are the commands that may have a table.

    Raises `UsageError` for a table that no command has, and for an option that is unknown where it stands.
    """
    config = config or read_user_config()
    check_tables(config, configured)
    values: dict[str, Any] = {}
    for table, params in _tables_of(ctx):
        for name, value in config.tables.get(table, {}).items():
            if name in params:
                values[params[name].name or ""] = _as_flags(config, table, name, value, params[name])
            elif table != DEFAULTS:
                raise _no_option(config, table, name, params)
    return values


def check_tables(config: UserConfig, configured: Iterable[str]) -> None:
    """Raise `UsageError` for a table of ``config`` that no command has, or an unknown option in [defaults]."""
    known = [DEFAULTS, "keys", *configured, *(f"bench {word}" for word in WORDS)]
    for name in config.tables:
        if name not in known:
            way_out = unknown(name.replace(" ", "."), [each.replace(" ", ".") for each in known])
            raise UsageError(f"`{config.path}`: there is no table [{name.replace(' ', '.')[:80]}]; {way_out}")
    for name in config.tables.get(DEFAULTS, {}):
        if name not in SHARED_NAMES:
            raise _no_option(config, DEFAULTS, name, SHARED_NAMES)


def _no_option(config: UserConfig, table: str, name: str, known: Iterable[str]) -> UsageError:
    standing = place(config.path, table, name, config.tables[table][name])
    return UsageError(f"{standing}: there is no option `{name[:80]}` here; {unknown(name, known)}")


def _tables_of(ctx: click.Context) -> list[tuple[str, Mapping[str, click.Parameter]]]:
    """The tables that concern the command of ``ctx`` and the parameters that each may set, the strongest last."""
    own = {option_name(param): param for param in ctx.command.params if _is_settable(ctx, param)}
    shared = {name: param for name, param in own.items() if isinstance(param, SharedOption)}
    return [(DEFAULTS, shared), (ctx.info_name or "", own)]


def _is_settable(ctx: click.Context, param: click.Parameter) -> bool:
    """Whether the file may set it: of the arguments, only the model of a chat, which needs no other."""
    return isinstance(param, click.Option) or (ctx.info_name == "chat" and param.name == "model")


def _as_flags(config: UserConfig, table: str, name: str, value: Value, param: click.Parameter) -> Any:
    """``value`` as click gets it from flags, so that the same checks see it."""
    is_flag = isinstance(param, click.Option) and param.is_flag
    if is_flag != isinstance(value, bool):
        raise wrong(config.path, table, name, value, "give true or false" if is_flag else f"give what --{name} takes")
    if is_flag:
        return value
    if isinstance(value, tuple) and not param.multiple:
        raise wrong(config.path, table, name, value, "give one value, not a list")
    each = value if isinstance(value, tuple) else (value,)
    if any(isinstance(one, bool) for one in each):
        raise wrong(config.path, table, name, value, f"give what --{name} takes")
    texts = tuple(str(one) for one in each)
    return texts if param.multiple else texts[0]


# -- where a value came from ------------------------------------------------------------------------------------------


def source(ctx: click.Context, param: click.Parameter) -> tuple[str, str]:
    """Where the value of ``param`` came from: flag, environment, file or default, and its place there."""
    found = ctx.get_parameter_source(param.name or "")
    if found is ParameterSource.ENVIRONMENT:
        return "environment", str(param.envvar)
    if found is ParameterSource.DEFAULT_MAP:
        config = read_user_config()
        table = _table_with(ctx, config.tables, param)
        return "file", place(config.path, table, option_name(param), config.tables[table][option_name(param)])
    return ("flag" if found is ParameterSource.COMMANDLINE else "default"), ""


def _table_with(ctx: click.Context, tables: Mapping[str, Table], param: click.Parameter) -> str:
    name = ctx.info_name or ""
    return name if option_name(param) in tables.get(name, {}) else DEFAULTS


def origin(ctx: click.Context, param: click.Parameter) -> str | None:
    """Words about a value that no flag gave, behind a message that refuses it; None for a flag's and a default."""
    kind, where = source(ctx, param)
    if kind not in ("file", "environment"):
        return None
    flag = f"--{option_name(param)}" if isinstance(param, click.Option) else param.human_readable_name
    said = f"set by {where}" if kind == "environment" else f"from {where}"
    return f"{said}; change it there, or give {flag}"
