"""`edge-llm export`: a model for other runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edge_llm.ascend.export import exporter as onnx_graphs
from edge_llm.ascend.export.flavours import CHECK, FLAVOURS
from edge_llm.cli.here import known_here
from edge_llm.cli.options import chunk_option, context_option
from edge_llm.cli.terminal import note, progress_bar, say_json, write
from edge_llm.cli.values import MODEL, TEXT
from edge_llm.config import INT8, W4, RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.export.compressed import Exported, export_compressed
from edge_llm.export.linears import LOSSES
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.defaults import fill_defaults
from edge_llm.opening.machine import this_machine
from edge_llm.paths import find_bundle
from edge_llm.progress import byte_count
from edge_llm.quant.quality import Quality
from edge_llm.runner.rows import chunk_lengths

ONNX, COMPRESSED = FORMATS = ("onnx", "compressed-tensors")


@click.command("export")
@click.argument("model", type=MODEL)
@click.option("--format", "kind", type=click.Choice(FORMATS), default=ONNX, show_default=True, help="What to write.")
@click.option(
    "--flavour",
    type=click.Choice(list(FLAVOURS)),
    help=f"Of {ONNX}: operators that any runtime knows, exact; or those of an Ascend chip, for CANN's compiler atc.  "
    f"Default: {CHECK.name}.",
)
@click.option(
    "--weights",
    type=click.Choice([INT8, W4]),
    help=f"Of {COMPRESSED}: W8A8, or W4A16 in groups.  Default: as the model's are; blocks of a GGUF file become {INT8}.",
)
@click.option("--out", type=TEXT, metavar="FOLDER", help="Folder to write; default: MODEL-FORMAT, here.")
@context_option
@chunk_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def export_command(
    model: str,
    kind: str,
    flavour: str | None,
    weights: str | None,
    out: str | None,
    context: int | None,
    chunk: int | None,
    as_json: bool,
) -> None:
    """Write MODEL for other runtimes.

    compressed-tensors: a Hugging Face folder that vLLM, vllm-ascend and transformers load, with tokenizer and chat template.
    What the format cannot hold is named, and what that costs is measured on a text.

    onnx: the INT8 products as graphs, one per part and chunk length, shared by all layers.  A graph takes INT8 rows and gives
    float32, with the bits of edge-llm's own product; for an Ascend chip it gives float16, as the chip does, and atc.sh compiles
    it.  Its weights are initializers that are given layer by layer; index.json says which lies where, README.md how they are
    used.  Needs the package onnx.
    """
    if out == "":
        raise UsageError("--out cannot be empty; give a folder that is not there yet", param="out")
    _refuse_others(kind, {ONNX: {"flavour": flavour, "context": context, "chunk": chunk}, COMPRESSED: {"weights": weights}})
    found = str(known_here(model))
    if kind == COMPRESSED:
        _compressed(found, out, weights, as_json)
    else:
        _onnx(found, out, flavour or CHECK.name, RuntimeConfig(context=context, chunk=chunk), as_json)


def _refuse_others(kind: str, options: Mapping[str, Mapping[str, object]]) -> None:
    """Raise `UsageError` for an option of another format than ``kind``."""
    for format_name, own in options.items():
        given = next((name for name, value in own.items() if value is not None), None)
        if format_name != kind and given is not None:
            raise UsageError(f"--{given} is for --format {format_name}", param=given)


def _onnx(model: str, out: str | None, flavour: str, runtime: RuntimeConfig, as_json: bool) -> None:
    with open_bundle(find_bundle(model)) as bundle, progress_bar() as draw:
        runtime, _ = fill_defaults(runtime, bundle.config, this_machine())
        assert runtime.context is not None and runtime.chunk is not None
        folder = f"{bundle.folder.resolve().name}-{ONNX}" if out is None else out
        lengths = chunk_lengths(runtime.chunk, runtime.context)
        exported = onnx_graphs.export_onnx(bundle, Path(folder), lengths, draw, FLAVOURS[flavour])
    if as_json:
        say_json(asdict(exported) | {"folder": str(exported.folder)})
    else:
        note(f"{exported.graphs} graphs for {exported.layers} layers, {exported.nbytes / 2**20:.1f} MiB with the initializers")
        if exported.on_host:
            note(f"without a graph, because they are not INT8: {', '.join(exported.on_host)}")
        write(f"{exported.folder}\n")


def _compressed(model: str, out: str | None, weights: str | None, as_json: bool) -> None:
    with open_bundle(find_bundle(model)) as bundle, progress_bar() as draw:
        folder = f"{bundle.folder.resolve().name}-{COMPRESSED}" if out is None else out
        exported = export_compressed(bundle, Path(folder), weights, draw)
    if as_json:
        say_json(_fields(exported))
    else:
        _tell(exported)


def _tell(exported: Exported) -> None:
    kinds = ", ".join(f"{count} modules {kind}" for kind, count in exported.kinds.items())
    note(f"{kinds}; embedding and output matrix in float16; {byte_count(exported.nbytes)}")
    for key, linears in exported.losses.items():
        note(f"{len(linears)} linears {LOSSES[key]}")
    cost = exported.cost
    if cost is None:
        note("what that costs is not measured: the model's vocabulary has no tokens for the text")
    else:
        note(f"beside this model, on held-out text: {cost.to_model}")
        if cost.to_float is not None and cost.model_to_float is not None:
            note(f"beside the float model: {cost.to_float}")
            note(f"this model beside it: {cost.model_to_float}")
    write(f"{exported.folder}\n")


def _fields(exported: Exported) -> dict[str, Any]:
    def fields(quality: Quality | None) -> dict[str, float] | None:
        return None if quality is None else quality.to_fields()

    cost = exported.cost
    return {
        "folder": str(exported.folder),
        "nbytes": exported.nbytes,
        "modules": dict(exported.kinds),
        "losses": [{"what": key, "means": LOSSES[key], "linears": names} for key, names in exported.losses.items()],
        "cost": cost and {name: fields(quality) for name, quality in vars(cost).items()},
    }
