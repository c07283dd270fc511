"""`edge-llm cache`: the keys and values that are kept on disk for the next start."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from edge_llm.cli.terminal import has_person, note, say, say_json
from edge_llm.cli.values import MODEL
from edge_llm.errors import ModelNotFound
from edge_llm.files import shown
from edge_llm.kv.prefix_folder import ModelPages, prune, remove_model, stored_models, stored_pages
from edge_llm.opening.prefix_cache import is_usable
from edge_llm.paths import prefix_cache_folder
from edge_llm.weights.budget import parse_disk

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("cache")
def cache_command() -> None:
    """Show and remove the beginnings of texts that are kept on disk, so that they need not be computed again."""


@cache_command.command("list")
@_JSON
def list_cache(as_json: bool) -> None:
    """List what is kept, by model."""
    rows = [_row(model) for model in stored_models(prefix_cache_folder())]
    if as_json:
        say_json(rows)
        return
    if not rows:
        note("nothing is kept")
        return
    width = max(5, *(len(row["model"]) for row in rows))
    say(f"{'MODEL'.ljust(width)}  {'PAGES':>7} {'TOKENS':>9} {'SIZE':>12}  {'LAST USE':16}  STATE")
    for row in rows:
        size = f"{row['bytes'] / 2**20:.1f} MiB"
        say(
            f"{row['model'].ljust(width)}  {row['pages']:>7} {row['tokens']:>9} {size:>12}  "
            f"{(row['last_used'] or 'never')[:16]:16}  {row['state']}"
        )


@cache_command.command("prune")
@click.option("--to", "size", help="Also remove the least recently used pages until this much is left, such as 500MiB.")
@_JSON
def prune_cache(size: str | None, as_json: bool) -> None:
    """Remove what no model that is here will ask for."""
    root = prefix_cache_folder()
    most_bytes = None if size is None else parse_disk(size)
    doomed = [model for model in stored_models(root) if not is_usable(model.label)]
    _remove(doomed)
    pruned = [] if most_bytes is None else prune(root, most_bytes)
    pages = sum(len(model.files) for model in doomed) + len(pruned)
    nbytes = sum(model.nbytes for model in doomed) + sum(file.nbytes for file in pruned)
    _report(pages, nbytes, as_json)


@cache_command.command("clear")
@click.argument("model", type=MODEL, required=False)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_JSON
def clear_cache(model: str | None, yes: bool, as_json: bool) -> None:
    """Remove what is kept of MODEL, or of all models."""
    doomed = [kept for kept in stored_models(prefix_cache_folder()) if model is None or _name(kept) == model]
    if model is not None and not doomed:
        raise ModelNotFound(f"nothing is kept of `{model}`; `edge-llm cache list` shows what is")
    if doomed and not yes and has_person():
        click.confirm(f"Remove what is kept of {', '.join(sorted({_name(kept) for kept in doomed}))}?", abort=True, err=True)
    _remove(doomed)
    _report(sum(len(kept.files) for kept in doomed), sum(kept.nbytes for kept in doomed), as_json)


def _row(model: ModelPages) -> dict[str, Any]:
    used = datetime.fromtimestamp(model.used_ns / 1e9).astimezone().isoformat(" ", "seconds") if model.files else None
    return {
        "model": _name(model),
        "pages": len(model.files),
        "tokens": model.tokens,
        "bytes": model.nbytes,
        "last_used": used,
        "state": "usable" if is_usable(model.label) else "stale",
        "path": str(model.folder),
    }


def _name(model: ModelPages) -> str:
    return shown(model.label.get("model", "unknown"))


def _remove(models: list[ModelPages]) -> None:
    for model in models:
        remove_model(model.folder)


def _report(pages: int, nbytes: int, as_json: bool) -> None:
    left = sum(file.nbytes for file in stored_pages(prefix_cache_folder()))
    if as_json:
        say_json({"removed_pages": pages, "removed_bytes": nbytes, "bytes": left}, indent=None)
    else:
        note(f"removed {pages} pages ({nbytes / 2**20:.1f} MiB), {left / 2**20:.1f} MiB are left")
