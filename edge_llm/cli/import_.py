"""`edge-llm import`: a source becomes a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from edge_llm.cli.terminal import note, progress_as, progress_option, write
from edge_llm.cli.values import REAL, SOURCE
from edge_llm.config import BLOCKS, FLOAT16, INT8, TABLE_SCHEMES, W4
from edge_llm.convert.allocate import AUTO, DEFAULT_BITS, KINDS, LayerBits
from edge_llm.convert.calibrate import BY_MODEL
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.convert.pace import slowness
from edge_llm.convert.sensitive import read_sensitive
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.progress import Journey
from edge_llm.sources.lora_places import wish


@click.command("import")
@click.argument("source", type=SOURCE)
@click.option("--name", help="Name of the model here; default: the last part of SOURCE.")
@click.option(
    "--calibration",
    metavar="FILE",
    help="Text that the activations are measured on; self: the float model writes half of it.",
)
@click.option(
    "--shadow",
    type=click.Choice(["auto", "full", "none"]),
    default="auto",
    show_default=True,
    help="What a static scale cuts off: auto and full keep it exact beside INT8, none drops it.  full implies --turn 0, where "
    "channels that stand out are kept in float16 too.",
)
@click.option(
    "--float16",
    multiple=True,
    metavar="NAME",
    help="Keep linears in float16, by name or pattern: layers.0.down, '*.o'.  May be given several times.",
)
@click.option(
    "--neurons",
    is_flag=True,
    help="Models with ReLU: the columns of each neuron lie together, so that --memory reads those of active neurons alone.",
)
@click.option(
    "--weights",
    type=click.Choice(KINDS),
    help="Weights of the layers: the blocks of a GGUF file as they are, 8 bits, 4 bits (half the memory and the time to read "
    "it), or auto: a mixture.  Default: blocks where SOURCE has them, which no card multiplies, else int8.",
)
@click.option("--bits", type=REAL, help=f"Bits per weight of the layers, with --weights auto; default: {DEFAULT_BITS:g}.")
@click.option(
    "--head",
    type=click.Choice(TABLE_SCHEMES),
    default=INT8,
    show_default=True,
    help="Output matrix, with --weights w4 or auto: 4 bits are read faster and cost more there than in a layer.",
)
@click.option(
    "--fast",
    is_flag=True,
    help="Round INT8 weights; default: fit them to the calibration text (GPTQ), nearer to float.  Blocks stay as they are.",
)
@click.option("--fit", is_flag=True, hidden=True, expose_value=False)  # it is done anyway; older scripts say it
@click.option(
    "--turn",
    type=click.Choice(["0", "16", "32", "64", "128"]),
    help="Most channels that are turned together before INT8, so that none stands out; default: 128.  0: channels stay as they "
    "are, which --shadow full wants.",
)
@click.option(
    "--sensitive",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Linears that are not to have 4 bits: a file that show --sensitive wrote, edited or not.",
)
@click.option("--no-fold", is_flag=True, help="Leave uneven channels as they are, to see what folding them is worth.")
@click.option("--keep-float", is_flag=True, help="Keep the float weights in the bundle, for --float and perplexity.")
@click.option(
    "--lora",
    multiple=True,
    metavar="ADAPTER[:STRENGTH]",
    help="Merge an adapter: a folder that PEFT saved, a GGUF file or a hub id; STRENGTH: how much of it, default: 1.  May be "
    "given several times.",
)
@click.option("--revision", help="Branch, tag or commit of a hub id; default: main.")
@click.option("--overwrite", is_flag=True, help="Replace a model of the same name.")
@click.option("--fresh", is_flag=True, help="Start anew where the same import was stopped.")
@progress_option
def import_command(
    source: str,
    name: str | None,
    calibration: str | None,
    shadow: str,
    float16: tuple[str, ...],
    neurons: bool,
    weights: str | None,
    bits: float | None,
    head: str,
    fast: bool,
    turn: str | None,
    sensitive: Path | None,
    no_fold: bool,
    keep_float: bool,
    lora: tuple[str, ...],
    revision: str | None,
    overwrite: bool,
    fresh: bool,
    progress_form: str,
) -> None:
    """Turn SOURCE into a local model: a Hugging Face folder, a GGUF file, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, one
    with the quantization of a GGUF file (ORG/NAME:Q4_K_M), one of ModelScope (modelscope:ORG/NAME), the address of its page, or
    a short name such as qwen3.

    Reads the weights layer by layer, measures the activations on a calibration text, makes uneven channels even by factors that
    cancel and by turns, and fits the weights in INT8 or 4 bits to the text.  A checkpoint of GPTQ, AWQ, FP8 or
    compressed-tensors is read as the floats that it stands for; W8A8 of compressed-tensors and ModelSlim is taken over as it
    is.  A GGUF file keeps its blocks, which takes seconds, unless other --weights are asked for.  A half-written model is never
    visible; where Ctrl-C, a kill or a full disk stopped it, the same command goes on, and gives the same model.
    """
    if bits is not None and weights != AUTO:
        raise UsageError(f"--bits is for --weights {AUTO}", param="bits")
    if sensitive is not None and weights not in (W4, AUTO):
        raise UsageError(f"--sensitive says what is not to have 4 bits: it is for --weights {W4} and {AUTO}", param="sensitive")
    if sensitive is not None and float16:
        raise UsageError("write the linears of --float16 into the file of --sensitive", param="float16")
    if fast and weights in (W4, AUTO):
        raise UsageError("--fast rounds INT8 weights; those of 4 bits are always fitted", param="fast")
    fixed = {} if sensitive is None else read_sensitive(sensitive)
    kept, or_blocks = DEFAULT_BITS if bits is None else bits, weights is None
    kind = None if weights == BLOCKS else "fast" if fast else weights or INT8
    with progress_as(progress_form, Journey(kind, slowness=slowness)) as draw:
        folder = import_model(
            source,
            name,
            revision=revision,
            lora=[wish(one) for one in lora],
            calibration=calibration if calibration in (None, BY_MODEL) else Path(calibration),
            outliers=Outliers(shadow, tuple((pattern, FLOAT16) for pattern in float16), neurons),
            fold=not no_fold,
            turn=None if turn is None else int(turn),
            weights=LayerBits(weights or INT8, kept, fixed, head, fit=not fast, or_blocks=or_blocks),
            keep_float=keep_float,
            overwrite=overwrite,
            fresh=fresh,
            progress=draw,
            notice=note,
        )
    _tell_ready(folder)


def _tell_ready(folder: Path) -> None:
    """Say where the model is, and what is done next with it."""
    with open_bundle(folder) as bundle:
        use = "make vectors with `edge-llm embed" if bundle.decoder.is_encoder else "chat with `edge-llm chat"
    note(f"ready: {use} {folder.name}`")
    write(f"{folder}\n")
