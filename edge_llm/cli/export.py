"""`edge-llm export`: a model's INT8 products for other runtimes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from edge_llm.ascend.export.exporter import Exported, export_onnx
from edge_llm.ascend.export.flavours import CHECK, FLAVOURS
from edge_llm.cli.here import known_here
from edge_llm.cli.options import chunk_option, context_option
from edge_llm.cli.terminal import note, progress_bar, say_json, write
from edge_llm.cli.values import MODEL, TEXT
from edge_llm.config import RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.assembly import fill_defaults
from edge_llm.paths import find_bundle
from edge_llm.runner.rows import chunk_lengths


@click.command("export")
@click.argument("model", type=MODEL)
@click.option("--format", "kind", type=click.Choice(["onnx"]), default="onnx", show_default=True, help="What to write.")
@click.option(
    "--flavour",
    type=click.Choice(list(FLAVOURS)),
    default=CHECK.name,
    show_default=True,
    help="Operators that any runtime knows, exact; or those of an Ascend chip, for CANN's compiler atc.",
)
@click.option("--out", type=TEXT, metavar="FOLDER", help="Folder to write; default: MODEL-onnx, here.")
@context_option
@chunk_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def export_command(
    model: str, kind: str, flavour: str, out: str | None, context: int | None, chunk: int | None, as_json: bool
) -> None:
    """Write the INT8 products of MODEL as ONNX graphs: one per part and chunk length, shared by all layers.

    A graph takes INT8 rows and gives float32, with the bits of edge-llm's own product; for an Ascend chip it gives float16, as
    the chip does, and atc.sh compiles it.  Its weights are initializers that are given layer by layer; index.json says which
    lies where, README.md how they are used.  Needs the package onnx.
    """
    if out == "":
        raise UsageError("--out cannot be empty; give a folder that is not there yet", param="out")
    with open_bundle(find_bundle(known_here(model))) as bundle, progress_bar() as draw:
        runtime = fill_defaults(RuntimeConfig(context=context, chunk=chunk), bundle.config)
        assert runtime.context is not None and runtime.chunk is not None
        folder = f"{bundle.folder.resolve().name}-onnx" if out is None else out
        lengths = chunk_lengths(runtime.chunk, runtime.context)
        exported = export_onnx(bundle, Path(folder), lengths, draw, FLAVOURS[flavour])
    if as_json:
        say_json(asdict(exported) | {"folder": str(exported.folder)})
    else:
        _tell(exported)


def _tell(exported: Exported) -> None:
    note(f"{exported.graphs} graphs for {exported.layers} layers, {exported.nbytes / 2**20:.1f} MiB with the initializers")
    if exported.on_host:
        note(f"without a graph, because they are not INT8: {', '.join(exported.on_host)}")
    write(f"{exported.folder}\n")
