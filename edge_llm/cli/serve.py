"""`edge-llm serve`: a model behind an OpenAI-compatible endpoint on this machine."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import click

from edge_llm.cli import process
from edge_llm.cli.here import model_here, no_store_option, yes_option
from edge_llm.cli.keys import api_key_options, api_keys
from edge_llm.cli.options import parallel_option, runtime_config, runtime_options, shared
from edge_llm.cli.served import Answering, answer_options
from edge_llm.cli.terminal import note
from edge_llm.cli.values import ANY_MODEL, Real, Whole

_ORIGIN_HELP = "Origin of a web page that may use this server; * is every one, localhost any port of this machine."


@click.command("serve")
@click.argument("model", type=ANY_MODEL, required=False)
@yes_option
@no_store_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; a wide one needs a key.")
@click.option("--port", type=Whole(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@api_key_options("Key that clients must send")
@click.option("--alias", "aliases", multiple=True, help="Another name for the model; may be repeated.")
@click.option("--strict-models", is_flag=True, help="Refuse requests for a model of another name; default: MODEL answers them.")
@click.option("--allow-host", "hosts", multiple=True, help="Another name of this server in the Host header.")
@click.option("--allow-origin", "origins", multiple=True, help=_ORIGIN_HELP)
@parallel_option
@click.option("--queue", type=Whole(1, 4096), default=256, show_default=True, help="Requests that may wait.")
@click.option("--drain", type=Real(0, 3600), default=30.0, show_default=True, help="Seconds to let answers end.")
@click.option("--batch-window", type=Real(0, 10_000), default=0.0, help="Milliseconds to wait for company.")
@click.option("--kv-memory", default="1GiB", show_default=True, help="For keys and values of all requests.")
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
    **options: Any,
) -> None:
    """Serve MODEL (default: the built-in model) to OpenAI, Anthropic and Ollama clients, with a chat page at /.

    Listens while the model loads; GET /health says when it is ready.  SIGTERM and Ctrl-C let running answers end.  A line on
    stderr tells of each request: time, method, path, status, model, tokens, seconds; not of /health and /metrics.
    """
    # imported late, so that --help does not wait for the server
    from edge_llm.engine.contract import Service
    from edge_llm.engine.engine import Engine
    from edge_llm.engine.service import BatchingService
    from edge_llm.opening.load import load_engine
    from edge_llm.paths import BUILTIN_MODEL_NAME, builtin_bundle, find_bundle
    from edge_llm.progress import StageProgress
    from edge_llm.server.host import ModelHost
    from edge_llm.server.journal import Journal
    from edge_llm.server.pool import ModelPool
    from edge_llm.server.run import ServeOptions, listen, serve
    from edge_llm.server.running import listed

    runtime = replace(runtime_config(options), kv_memory=kv_memory, prefix_cache=prefix_cache)
    answering = Answering.of(options)
    chosen = ServeOptions(keys=api_keys(options), drain_seconds=drain, **options)
    model = model_here(model, yes=yes, store=not no_store)
    folder = find_bundle(model)
    name = BUILTIN_MODEL_NAME if folder == builtin_bundle() else folder.name
    listener = listen(chosen)
    place = listener.getsockname()

    def load(progress: StageProgress) -> tuple[Engine, Service]:
        engine = answering.told(load_engine(model, runtime, progress))
        engine.batcher.prepare(progress)
        return engine, BatchingService(engine, queue_limit=queue, window_seconds=batch_window / 1e3)

    journal = Journal(note if not quiet else None)
    names = [name, *aliases]
    with process.SignalsThatCameLate() as signals, listed(names, place[0], place[1], drain), contextlib.closing(journal):

        def begin() -> None:
            signals.command_has_them()
            note(f"Serving `{name}` at {_url(place)}/v1, chat page at {_url(place)}/. Press Ctrl-C to stop.")

        def say_what_is_awaited(requests: int) -> None:
            note(f"answers under way: {requests}; waiting up to {drain:g} s for their end, Ctrl-C again ends at once")

        pool = ModelPool(ModelHost(names), strict=strict_models, journal=journal)
        serve(answering.show(pool), listener, chosen, load, begin, say_what_is_awaited)


def _url(place: tuple[Any, ...]) -> str:
    """The address of a socket that listens at ``place``."""
    return f"http://[{place[0]}]:{place[1]}" if ":" in place[0] else f"http://{place[0]}:{place[1]}"
