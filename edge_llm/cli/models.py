"""`edge-llm list`, `show` and `rm`: the models that are here."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click

from edge_llm.cli.here import known_here
from edge_llm.cli.layers import layers_lines, layers_report
from edge_llm.cli.shadow import fold_lines, fold_report, quality_lines, quality_report, shadow_lines, shadow_report
from edge_llm.cli.terminal import has_person, note, say, say_json
from edge_llm.cli.turns import turn_lines, turn_report
from edge_llm.cli.values import MODEL, STDOUT, NewFile
from edge_llm.cli.weights import counted, weights_lines, weights_report
from edge_llm.config import ModelConfig, RuntimeConfig
from edge_llm.convert import sensitive
from edge_llm.convert.removal import refuse_builtin, remove
from edge_llm.decoding.defaults import generation_defaults
from edge_llm.errors import EdgeLLMError, UsageError
from edge_llm.files import folder_bytes, is_folder, shown
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.leftovers import clear_leftovers, stopped_imports
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.models import describe
from edge_llm.opening.library import InstalledModel, installed_models
from edge_llm.opening.machine import this_machine
from edge_llm.opening.plan import plan_rows
from edge_llm.opening.resolve import resolve
from edge_llm.paths import bundle_path, find_bundle, models_folder, no_such_model
from edge_llm.progress import byte_size
from edge_llm.talk.history import in_words
from edge_llm.text.chat import ChatTemplate


@click.command("list")
@click.argument("models", type=MODEL, nargs=-1, metavar="[MODEL]...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_command(models: tuple[str, ...], as_json: bool) -> None:
    """List the models that are here, or only MODEL.

    WEIGHTS is what is read into memory, as F4 of the chat, `show` and `bench` have it; ON DISK are all files of the model.
    """
    rows = installed_models()
    if models:
        known = {row.name: row for row in rows}
        if missing := [name for name in models if name not in known]:
            raise no_such_model(missing[0])
        rows = [known[name] for name in dict.fromkeys(models)]
    else:
        _tell_stopped()
    if as_json:
        say_json([_summary(row) for row in rows])
        return
    width = max(4, *(len(shown(row.name)) for row in rows))
    say(f"{'NAME'.ljust(width)}  {'FAMILY':8} {'PARAMETERS':>10} {'WEIGHTS':>9} {'ON DISK':>9} {'CONTEXT':>8}  PRECISION")
    for row in rows:
        name = shown(row.name).ljust(width)
        if row.problem is not None:
            say(f"{name}  {shown(row.problem, 1000)}")
        else:
            say(
                f"{name}  {row.family:8} {counted(row.parameters):>10} {byte_size(row.weights_bytes):>9} "
                f"{byte_size(row.nbytes):>9} {row.context:>8}  {row.precision}"
            )


@click.command("show")
@click.argument("models", type=MODEL, nargs=-1, metavar="MODEL...")  # `--sensitive` may have taken it
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; a list of them for several models.")
@click.option(
    "--sensitive",
    "sensitive_path",
    type=NewFile(or_stdout=True),
    is_flag=False,
    flag_value=sensitive.FILE,
    metavar="[FILE]",
    help=f"Write which linears are not in 4 bits, for import --sensitive; default: {sensitive.FILE}, here; "
    "-: only that, on stdout.",
)
@click.pass_context
def show_command(ctx: click.Context, models: tuple[str, ...], as_json: bool, sensitive_path: Path | None) -> None:
    """Show what each MODEL is: shapes, memory, outlier profile, how it runs here, where it came from."""
    if not models:
        taken = f": --sensitive took `{shown(sensitive_path)}` for its file; write MODEL first" if sensitive_path else ""
        raise click.UsageError(f"MODEL is missing{taken}", ctx)
    if sensitive_path is not None and len(models) > 1:
        raise UsageError("--sensitive is about one model; name one", param="sensitive")
    if as_json and sensitive_path is STDOUT:
        raise UsageError("--json and --sensitive - cannot share stdout; leave one out, or name a file", param="sensitive")
    bundles = [(name, open_bundle(find_bundle(name))) for name in (str(known_here(model)) for model in models)]
    if sensitive_path is not None:
        found = sensitive.sensitive(bundles[0][1].decoder)
        if sensitive_path is STDOUT:
            say_json(found)
            return
        sensitive.write_sensitive(sensitive_path, found)
        note(f"wrote {sensitive_path}: {len(found)} linears of the layers are not in 4 bits, or not all of them")
    if as_json:
        facts = [_facts(model, bundle) for model, bundle in bundles]
        say_json(facts[0] if len(facts) == 1 else facts)
        return
    for index, (model, bundle) in enumerate(bundles):
        if index:
            say()
        _say_facts(_facts(model, bundle))


def _say_facts(facts: dict[str, Any]) -> None:
    width = max(len(key) for key in facts)
    facts["source"].pop("lora_places", None)  # as `lora` says
    facts["source"].pop("stamps", None)
    if not facts["layers"]:
        del facts["layers"]
    del facts["shadow" if facts["turns"] else "turns"]  # behind turns no channel is hot, and their table has what overflows
    for key, value in facts.items():
        lines = _TABLES.get(key)
        if lines is not None and value:
            for index, line in enumerate(lines(value)):
                say(f"{(key if index == 0 else '').ljust(width)}  {line}")
            continue
        if not isinstance(value, dict):
            size = f" ({byte_size(value)})" if key in _SIZES else ""
            say(f"{key.ljust(width)}  {_short(value)}{size}")
            continue
        plain = [f"{shown(name)} {_short(inner)}" for name, inner in value.items() if not isinstance(inner, dict | list)]
        for index, line in enumerate(textwrap.wrap(", ".join(plain) or "none", 100)):
            say(f"{(key if index == 0 else '').ljust(width)}  {line}")


def _plan_lines(facts: dict[str, Any]) -> list[str]:
    """The plan as `edge-llm plan` has it."""
    if "error" in facts:
        return [shown(facts["error"], 1000)]
    return [f"{name:10} {value}" for name, value in plan_rows(facts)]


_SIZES = ("bytes", "weights_bytes")
"""Facts that are said in units too: all files, and the weights of them."""
_TABLES = {
    "layers": layers_lines, "weights": weights_lines, "folds": fold_lines, "turns": turn_lines, "shadow": shadow_lines,
    "quality": quality_lines, "plan": _plan_lines,
}  # fmt: skip
"""Facts that are shown as a table."""


@click.command("rm")
@click.argument("models", type=MODEL, nargs=-1, required=True, metavar="MODEL...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm_command(models: tuple[str, ...], yes: bool) -> None:
    """Remove each MODEL from this machine."""
    for model in models:
        refuse_builtin(model, "models")
    folders = {model: bundle_path(model) for model in models}
    clear_leftovers(models_folder())  # which may put one back
    stopped = stopped_imports(models_folder())
    for model, folder in folders.items():  # all or none: a name that is wrong removes nothing
        if not is_folder(folder) and model not in stopped:
            raise no_such_model(model)
    here = [model for model, folder in folders.items() if is_folder(folder)]
    if here and not yes:
        if not has_person():
            raise UsageError(f"nobody can be asked whether to remove {', '.join(here)}; give --yes", param="yes")
        sizes = ", ".join(f"{model} ({byte_size(folder_bytes(folders[model]))})" for model in here)
        click.confirm(f"Remove {sizes}?", abort=True, err=True)
    for model, folder in folders.items():
        _remove(model, folder)


def _remove(model: str, folder: Path) -> None:
    stopped, there = remove(folder)
    if stopped:
        note(f"removed the progress of a stopped import of {model}")
    if there:
        note(f"removed {model}")


def _tell_stopped() -> None:
    """Say which imports were stopped and may go on."""
    for name, folder in stopped_imports(models_folder()).items():
        note(
            f"an import of {shown(name)} was stopped ({byte_size(folder_bytes(folder))} of progress are saved): the same "
            f"`edge-llm import` goes on from there, `edge-llm rm {shown(name)}` removes it"
        )


def _summary(model: InstalledModel) -> dict[str, Any]:
    if model.problem is not None:
        return {"name": model.name, "error": model.problem, "path": str(model.folder)}
    return {
        "name": model.name,
        "family": model.family,
        "parameters": model.parameters,
        "bytes": model.nbytes,
        "weights_bytes": model.weights_bytes,
        "kv_bytes": model.kv_bytes,
        "context": model.context,
        "precision": model.precision,
        "fits": model.fits(),
        "path": str(model.folder),
    }


def _shape(config: ModelConfig) -> dict[str, Any]:
    """The numbers of a model; those of heads are the first attention's."""
    decoder = describe(config)
    attention = decoder.attentions[0]
    return {
        "family": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": len(decoder.layers),
        "num_heads": attention.heads,
        "num_kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "context": config.context,
        "tied_embeddings": config.tied_embeddings,
    }


def _facts(name: str, bundle: Bundle) -> dict[str, Any]:
    config = bundle.config
    left_out = generation_defaults(bundle.generation_config).left_out
    return {
        "name": name,
        "path": str(bundle.folder),
        "parameters": describe(config).parameters,
        "bytes": folder_bytes(bundle.folder),
        "weights_bytes": bundle.size,
        "kv_bytes_per_token": page_bytes(describe(config).attentions) // PAGE_TOKENS,
        "kv_bytes_per_token_float16": sum(4 * attention.kv_size for attention in describe(config).attentions),
        "state_bytes_per_sequence": describe(config).state_bytes,
        "model": _shape(config),
        "layers": layers_report(describe(config)),
        "weights": weights_report(bundle),
        "folds": fold_report(bundle),
        "turns": turn_report(bundle),
        "shadow": shadow_report(bundle),
        "quality": quality_report(bundle),
        "generation_defaults": bundle.generation_config,
        **({"generation_left_out": "; ".join(left_out)} if left_out else {}),
        "chat_template": bundle.has_file("chat_template.jinja"),
        **({"chat": in_words(ChatTemplate.from_folder(bundle.folder).shape)} if bundle.has_file("chat_template.jinja") else {}),
        "plan": _plan(bundle),
        "source": dict(bundle.manifest["source"]),
        "created_with": bundle.manifest["created_with"],
    }


def _plan(bundle: Bundle) -> dict[str, Any]:
    """How `run` would open it here, or why it could not."""
    try:
        return resolve(RuntimeConfig(), this_machine(), bundle).facts
    except EdgeLLMError as error:
        return {"error": str(error)}


def _short(value: Any) -> str:
    """``value`` as a person reads it: no Python, and a float without its last digits."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else shown(value, 1000)
