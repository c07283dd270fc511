"""Stands in for the `llama-server` that llama.cpp's own server tests start: its flags become those of `edge-llm serve`.

The tests start what `LLAMA_SERVER_BIN_PATH` names; `run.py` makes that a script which calls this file.  Every model that they
name is `LLAMA_STAND_IN_MODEL`.  Flags without a counterpart are told on stderr and left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

MODEL = "LLAMA_STAND_IN_MODEL"


def arguments(given: list[str]) -> list[str]:
    """The arguments of `edge-llm` for those of `llama-server`."""
    asked, without = _parser().parse_known_args(given)
    if without:
        print(f"no counterpart here: {' '.join(without)}", file=sys.stderr)
    found = ["serve", os.environ[MODEL], "--port", str(asked.port), "--host", asked.host, "--prefix-cache", "0"]
    template = asked.chat_template_file or asked.chat_template or "chatml"  # which llama-server has for a model without one
    found += ["--chat-template", template, "--reasoning", {"auto": "on"}.get(asked.reasoning, asked.reasoning or "auto")]
    for alias in sorted((asked.alias or "").split(",")):
        found += ["--alias", alias] if alias else []
    for tag in (asked.tags or "").split(","):
        found += ["--tag", tag] if tag else []
    found += _sizes(asked)
    found += ["--api-key", asked.api_key] if asked.api_key else []
    found += ["--allow-origin", asked.cors_origins] if asked.cors_origins else []
    found += ["--temperature", str(asked.temp)] if asked.temp is not None else []
    found += ["--seed", str(asked.seed)] if asked.seed is not None else []
    found += ["--verbose"] if asked.verbose else []
    for left_out, route in ((asked.no_ui, "page"), (asked.no_slots, "slots"), (not asked.metrics, "metrics")):
        found += ["--without", route] if left_out else []
    return found


def _sizes(asked: argparse.Namespace) -> list[str]:
    """llama.cpp shares its context among its slots; here each request has one."""
    found = ["--parallel", str(asked.parallel)] if asked.parallel else []
    if asked.ctx_size:
        shared = 1 if asked.kv_unified else asked.parallel or 1
        found += ["--ctx", str(asked.ctx_size // shared)]
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    for name, kind in (
        ("--host", str), ("--alias", str), ("--api-key", str), ("--cors-origins", str), ("--tags", str),
        ("--hf-repo", str), ("--hf-file", str), ("--model", str), ("--model-url", str), ("--model-draft", str),
        ("--chat-template", str), ("--chat-template-file", str), ("--reasoning", str), ("--reasoning-format", str),
        ("--temp", float), ("--seed", int), ("--n-predict", int), ("--port", int), ("--ctx-size", int), ("--parallel", int),
    ):  # fmt: skip
        parser.add_argument(name, type=kind)
    for name in ("--jinja", "--no-jinja", "--offline", "--metrics", "--slots", "--no-slots", "--embedding", "--reranking"):
        parser.add_argument(name, action="store_true")
    for name in ("--cont-batching", "--kv-unified", "--verbose", "--no-ui"):
        parser.add_argument(name, action="store_true")
    return parser


def imported() -> None:
    """Import all that a server needs."""
    for name in ("__main__", "cli.main", "cli.serve", "opening.load", "engine.service", "server.run", "talk.served_template"):
        import_module(f"edge_llm.{name}")
    import_module("uvicorn.lifespan.off")


if __name__ == "__main__":
    from edge_llm.__main__ import main

    sys.argv = ["edge-llm", *arguments(sys.argv[1:])]
    print("edge-llm", *sys.argv[1:], file=sys.stderr)
    sys.exit(main())
