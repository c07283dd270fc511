"""`edge-llm serve`: a model behind an OpenAI-compatible endpoint on this machine."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from edge_llm.cli import process
from edge_llm.cli.here import model_here, no_store_option, yes_option
from edge_llm.cli.keys import api_key_options, api_keys
from edge_llm.cli.options import lora_option, parallel_option, runtime_config, runtime_options, shared
from edge_llm.cli.served import Answering, answer_options
from edge_llm.cli.terminal import note
from edge_llm.cli.values import ANY_MODEL, Real, Whole
from edge_llm.config import RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.progress import StageProgress

if TYPE_CHECKING:
    from edge_llm.engine.contract import Service
    from edge_llm.engine.engine import Engine
    from edge_llm.server.host import LoadModel
    from edge_llm.server.pool import ModelPool

KEEP_ALIVE = "5m"
"""How long a model stays loaded behind its last request."""
MODELS_MEMORY = "80%"

_ORIGIN_HELP = "Origin of a web page that may use this server; * is every one, localhost any port of this machine."


@click.command("serve")
@click.argument("model", type=ANY_MODEL, required=False)
@yes_option
@no_store_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; a wide one needs a key.")
@click.option("--port", type=Whole(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@api_key_options("Key that clients must send")
@click.option("--alias", "aliases", multiple=True, help="Another name for the model; may be repeated.")
@lora_option
@click.option("--strict-models", is_flag=True, help="Refuse requests for a model of another name; default: MODEL answers them.")
@click.option("--keep-alive", metavar="TIME", help=f"Unload a model that nobody used for it; -1: never; default: {KEEP_ALIVE}.")
@click.option("--models-memory", metavar="SIZE", help=f"For all loaded models; default: {MODELS_MEMORY} of what is free.")
@click.option("--allow-host", "hosts", multiple=True, help="Another name of this server in the Host header.")
@click.option("--allow-origin", "origins", multiple=True, help=_ORIGIN_HELP)
@parallel_option
@click.option("--queue", type=Whole(1, 4096), default=256, show_default=True, help="Requests that may wait.")
@click.option("--drain", type=Real(0, 3600), default=30.0, show_default=True, help="Seconds to let answers end.")
@click.option("--batch-window", type=Real(0, 10_000), default=0.0, help="Milliseconds to wait for company.")
@click.option("--kv-memory", default="1GiB", show_default=True, help="For keys, values and states of all requests.")
@answer_options
@click.option("-q", "--quiet", is_flag=True, help="Do not print a line for each request.")
@shared("--prefix-cache", default="1GiB", show_default=True, help="Disk for keys and values of prompts; 0 keeps none.")
@runtime_options
def serve_command(
    model: str | None,
    yes: bool,
    no_store: bool,
    aliases: tuple[str, ...],
    queue: int,
    drain: float,
    batch_window: float,
    kv_memory: str,
    prefix_cache: str,
    quiet: bool,
    strict_models: bool,
    keep_alive: str | None,
    models_memory: str | None,
    **options: Any,
) -> None:
    """Serve MODEL, or every model that is here, to OpenAI, Anthropic and Ollama clients, with a chat page at /.

    Without MODEL a request's `model` says which is loaded; it is unloaded when nobody has asked for it for some time, or when
    another one needs the memory.  With MODEL it is loaded at once, and stays.  Listens while a model loads; GET /health says
    when it is ready.  SIGTERM and Ctrl-C let running answers end.  A line on stderr tells of each request: time, method, path,
    status, model, tokens, seconds; not of /health and /metrics.
    """
    # imported late, so that --help does not wait for the server
    from edge_llm.server.journal import Journal
    from edge_llm.server.run import ServeOptions, listen, serve
    from edge_llm.server.running import listed

    runtime = replace(runtime_config(options), kv_memory=kv_memory, prefix_cache=prefix_cache)
    answering = Answering.of(options)
    keys = api_keys(options)
    own = secrets.token_urlsafe(24) if keys else ""  # for `ps` and `stop` of this user, who can read it
    chosen = ServeOptions(keys=(*keys, own) if keys else (), drain_seconds=drain, **options)
    opener = partial(_opened, answering, queue, batch_window / 1e3)
    journal = Journal(note if not quiet else None)
    if model is None:
        given = {"--strict-models": strict_models, "--yes": yes, "--no-store": no_store}
        _say_unused(given, "every request says which model it wants, of those that are here")
        names, pool, load = _every_model(opener, runtime, aliases, keep_alive, models_memory, journal)
    else:
        given = {"--keep-alive": keep_alive is not None, "--models-memory": models_memory is not None}
        _say_unused(given, "the model that is named is loaded at once, and stays")
        model = model_here(model, runtime, yes=yes, store=not no_store)
        names, pool, load = _one_model(opener, runtime, model, aliases, strict_models, journal)
    listener = listen(chosen)
    place = listener.getsockname()
    with process.SignalsThatCameLate() as signals, listed(names, place[0], place[1], drain, own), contextlib.closing(journal):

        def begin() -> None:
            signals.command_has_them()
            what = f"`{names[0]}`" if model is not None else "every model that is here"
            note(f"Serving {what} at {_url(place)}/v1, chat page at {_url(place)}/. Press Ctrl-C to stop.")

        def say_what_is_awaited(requests: int) -> None:
            note(f"answers under way: {requests}; waiting up to {drain:g} s for their end, Ctrl-C again ends at once")

        serve(answering.show(pool), listener, chosen, load, begin, say_what_is_awaited)


def _one_model(
    opener: Callable[..., Any],
    runtime: RuntimeConfig,
    model: str | None,
    aliases: Sequence[str],
    strict: bool,
    journal: Callable[[str], None],
) -> tuple[list[str], ModelPool, LoadModel | None]:
    """Names, pool and loader of ``model`` and its adapters, which are refused here where they do not go with it."""
    from edge_llm.opening.adapters import check_names, named_wish
    from edge_llm.opening.load import plan_of
    from edge_llm.paths import BUILTIN_MODEL_NAME, builtin_bundle, find_bundle
    from edge_llm.server.host import ModelHost
    from edge_llm.server.pool import ModelPool

    folder = find_bundle(model)
    names = [BUILTIN_MODEL_NAME if folder == builtin_bundle() else folder.name, *aliases]
    adapters = [named_wish(text)[0] for text in runtime.lora]
    check_names(adapters, names)
    if adapters:
        plan_of(model, runtime)
    host = ModelHost(names, beside=[ModelHost([name]) for name in adapters])
    return names, ModelPool(host, strict=strict, journal=journal), partial(opener, runtime, model)


def _every_model(
    opener: Callable[..., Any],
    runtime: RuntimeConfig,
    aliases: Sequence[str],
    keep_alive: str | None,
    models_memory: str | None,
    journal: Callable[[str], None],
) -> tuple[list[str], ModelPool, LoadModel | None]:
    """Names, pool and loader of all models, none of which is loaded at first."""
    from edge_llm.opening.budgets import card_budget, models_budget
    from edge_llm.opening.defaults import check_options
    from edge_llm.opening.ledger import Ledger
    from edge_llm.opening.machine import this_machine
    from edge_llm.server.keep_alive import keep_alive_seconds
    from edge_llm.server.on_demand import OnDemandPool
    from edge_llm.server.running import EVERY_MODEL
    from edge_llm.server.shelf import ImportedModels

    if aliases:
        raise UsageError("--alias is another name for one model; give MODEL", param="aliases")
    if runtime.lora:
        raise UsageError("--lora adds to one model, and any may be asked for here; give MODEL", param="lora")
    check_options(runtime, this_machine())  # what no model can mend is said before one is asked for
    seconds = keep_alive_seconds(keep_alive or KEEP_ALIVE, "--keep-alive")
    ledger = Ledger(main=models_budget(models_memory or MODELS_MEMORY), card=card_budget(runtime))
    shelf = ImportedModels(opener, runtime)
    threading.Thread(target=shelf.learn_sizes, name="sizes", daemon=True).start()
    return [EVERY_MODEL], OnDemandPool(shelf, ledger, keep_alive=seconds, journal=journal), None


def _say_unused(given: Mapping[str, bool], why: str) -> None:
    """A notice for each option of ``given`` that was given, and does nothing because of ``why``."""
    for name in (name for name, is_given in given.items() if is_given):
        note(f"{name} has no effect: {why}")


def _opened(
    answering: Answering,
    queue: int,
    window_seconds: float,
    runtime: RuntimeConfig,
    model: str | None,
    progress: StageProgress,
) -> tuple[Engine, Service]:
    """The engine and the service of ``model``."""
    from edge_llm.engine.service import BatchingService
    from edge_llm.opening.load import load_engine

    engine = answering.told(load_engine(model, runtime, progress))
    engine.batcher.prepare(progress)
    return engine, BatchingService(engine, queue_limit=queue, window_seconds=window_seconds)


def _url(place: tuple[Any, ...]) -> str:
    """The address of a socket that listens at ``place``."""
    return f"http://[{place[0]}]:{place[1]}" if ":" in place[0] else f"http://{place[0]}:{place[1]}"
