"""`edge-llm chat`: full screen on a terminal, line by line in a pipe and with --plain."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_llm.chats.settings import ChatSettings
from edge_llm.cli.here import model_here, no_store_option, yes_option
from edge_llm.cli.keys import api_key_options, api_keys
from edge_llm.cli.options import generation_options, one_lora_option, prefix_cache_option, runtime_config, runtime_options
from edge_llm.cli.terminal import has_person
from edge_llm.cli.values import ANY_MODEL, TEXT
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.paths import chats_file, imported_models
from edge_llm.tool_servers.settings import tool_servers
from edge_llm.user_config import read_user_config

if TYPE_CHECKING:
    from edge_llm.chats.store import ChatStore
    from edge_llm.providers.base import Catalogue


_TYPED = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)


FULL_LOOKS = 200
"""Looks at younger garbage before one at everything: one in half a minute of an answer, not several a second."""


@click.command("chat")
@click.argument("model", type=ANY_MODEL, required=False)
@generation_options
@runtime_options
@prefix_cache_option
@one_lora_option
@yes_option
@no_store_option
@click.option("--system", type=TEXT, help="System message.")
@click.option("--url", help="Chat with a server instead: any that speaks OpenAI's chat completions.")
@api_key_options("Key for the server of --url")
@click.option("--new", is_flag=True, help="Begin a new chat; else the last one goes on, unless you name a model or settings.")
@click.option("--plain", is_flag=True, help="Line by line, without a full screen; so it is in a pipe.")
@click.pass_context
def chat_command(
    ctx: click.Context,
    model: str | None,
    yes: bool,
    no_store: bool,
    system: str | None,
    url: str | None,
    new: bool,
    plain: bool,
    **options: Any,
) -> None:
    """Chat with MODEL (default: that of the last chat, else the one that was imported last; the built-in one if none was).

    On a terminal the chat takes the whole screen and keeps what was said; F1 there lists its keys and commands.  What the
    model thinks before it answers is shown apart, and not shown to it again.
    """
    keys = api_keys(options)
    runtime = runtime_config(options)
    if url is not None:
        _check_for_url(ctx, runtime)
    key = next(iter(keys), None)
    sampling = {name: value for name, value in options.items() if value is not None and value != ()}
    GenerationParams(**sampling)  # refuses early what makes no sense
    if url is None:
        if runtime.lora and model is None:
            raise UsageError("--lora adds to one model; give MODEL", param="lora")
        model = model_here(model, runtime, yes=yes, store=not no_store)
    if not plain and has_person() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        settings = ChatSettings(model, system or "", None, sampling, server="" if url is None else _server_of(url))
        chosen = [name for name in ("model", "system", *sampling) if ctx.get_parameter_source(name) in _TYPED]
        _full_screen(_opener(runtime, url, key, model), settings, here=url is None, new=new or bool(chosen))
        return
    from edge_llm.cli import plain_chat  # the engine, which a full screen loads behind its first frame

    if url is not None:
        plain_chat.chat_elsewhere(model, _opener(runtime, url, key)(), system, sampling)
    else:
        plain_chat.chat_here(model or _first_model(), runtime, system, options)


def _first_model() -> str | None:
    """The model that a plain chat opens with where nobody names one."""
    from edge_llm.chats.first_model import first_model
    from edge_llm.chats.store import ChatStore

    if not imported_models():
        return None
    with contextlib.closing(_open_chats()[0] if chats_file().exists() else ChatStore.in_memory()) as store:
        return first_model(store)


def _full_screen(open_catalogue: Callable[[], Catalogue], settings: ChatSettings, *, here: bool, new: bool) -> None:
    gc.disable()  # until the first frame is there: what is loaded stays
    from edge_llm.chats.first_model import first_model
    from edge_llm.tui.app import ChatApp
    from edge_llm.tui.keys import check_keys
    from edge_llm.tui.options import ChatOptions, no_model

    config = read_user_config()
    check_keys(config.keys)
    servers, problems = tool_servers(config.servers, config.path)
    options = ChatOptions(
        settings,
        first_model if here else no_model,
        resume=not new,
        theme=config.theme or "",
        config=config.path,
        keys=config.keys,
        sidebar=bool(config.sidebar),
        folder=Path.cwd(),
        servers=servers,
        problems=problems,
    )
    app = ChatApp(open_catalogue, _behind_the_first_frame, options)
    app.run()
    if app.failure is not None:
        raise app.failure
    raise click.exceptions.Exit(app.exit_code or app.return_code or 0)


def _behind_the_first_frame() -> tuple[ChatStore, str]:
    """The chats; from here on garbage is looked for, and what is loaded is left out.

    A look at everything takes a tenth of a second and more, in which no key is seen.
    """
    gc.freeze()
    gc.enable()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_LOOKS)
    return _open_chats()


def _open_chats() -> tuple[ChatStore, str]:
    from edge_llm.chats.store import ChatStore

    return ChatStore.open(chats_file())


def _opener(runtime: RuntimeConfig, url: str | None, key: str | None, model: str | None = None) -> Callable[[], Catalogue]:
    """What opens the models to choose from; called in a thread, because it loads the engine.

    An adapter in ``runtime`` is for ``model``.
    """

    def here() -> Catalogue:
        from edge_llm.providers.local import LocalCatalogue

        gc.freeze()  # what is loaded stays
        return LocalCatalogue(runtime, model)

    def elsewhere() -> Catalogue:
        from edge_llm.providers.remote import RemoteCatalogue

        return RemoteCatalogue(url or "", key)

    return here if url is None else elsewhere


def _server_of(url: str) -> str:
    """The address by which chats with the server at ``url`` are known; what is wrong with it is told when it is opened."""
    from edge_llm.providers.endpoint import Endpoint

    try:
        return Endpoint(url).base
    except UsageError:
        return url


def _check_for_url(ctx: click.Context, runtime: RuntimeConfig) -> None:
    """Refuse options that say how a model is run here."""
    default = RuntimeConfig()
    for name in vars(runtime):
        given = ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
        if given and getattr(runtime, name) != getattr(default, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} says how a model is run here; the server of --url decides that", param=name)
