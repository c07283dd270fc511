"""What the commands of `edge-llm bench` share: lists of numbers, the model and how it is run, what is printed and drawn."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from edge_llm import kernels
from edge_llm.ascend.npu.chips import longest_chunk
from edge_llm.bench import trace
from edge_llm.bench.report import FORMATS, Row, render
from edge_llm.bench.synthetic import NAMES, find_shape, synthetic_bundle
from edge_llm.cli.here import known_here
from edge_llm.cli.options import Command, add_options, place_options, runtime_config
from edge_llm.cli.terminal import note
from edge_llm.cli.values import MODEL, NewFile, Whole, short, whole_number
from edge_llm.config import INT8, TABLE_SCHEMES, W4, RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.opening.machine import this_machine
from edge_llm.paths import find_bundle

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# -- lists of numbers -------------------------------------------------------------------------------------------------


class _Numbers(click.ParamType):
    """A comma-separated list of numbers, `a-b+step` and `a-b*factor` ranges, as llama-bench takes them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(number for item in str(value).split(",") for number in _expand(item))
        except ValueError:
            self.fail(f"`{short(str(value))[1:-1]}` is not a list of numbers such as 128,512 or 128-512*2", param, ctx)


def _expand(item: str) -> list[int]:
    low, dash, rest = item.partition("-")
    if not dash:
        return [natural_number(low)]
    for sign, step in (("+", lambda at, by: at + by), ("*", lambda at, by: at * by)):
        high, found, by = rest.partition(sign)
        if found:
            return _walk(natural_number(low), natural_number(high), whole_number(by), step)
    raise ValueError(item)


def _walk(low: int, high: int, by: int, step: Callable[[int, int], int]) -> list[int]:
    numbers = [low]
    while (following := step(numbers[-1], by)) <= high:
        if following <= numbers[-1] or len(numbers) > 1000:
            raise ValueError(by)
        numbers.append(following)
    return numbers


def natural_number(text: str) -> int:
    """The number that ``text`` is in plain digits, 0 or more; raises `ValueError`."""
    number = whole_number(text)
    if number < 0:
        raise ValueError(text)
    return number


def _flat(ctx: click.Context, param: click.Parameter, value: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """One list of an option that was repeated, as given the first time."""
    return tuple(dict.fromkeys(number for numbers in value for number in numbers))


def numbers_option(
    *names: str, default: str | None = None, help: str, cls: type[click.Option] = click.Option
) -> Callable[[Command], Command]:
    """An option that takes a list of numbers, and may be repeated."""
    defaults = None if default is None else [default]
    return click.option(
        *names, cls=cls, type=_Numbers(), multiple=True, callback=_flat, default=defaults, show_default=True, help=help
    )


# -- the model and how it is run --------------------------------------------------------------------------------------


class BenchModel(NamedTuple):
    """What is measured."""

    label: str
    """What tables call it."""
    folder: Path
    is_synthetic: bool


class _ShapeName(click.ParamType):
    """One of `NAMES`, or a path; a shell completes both."""

    name = "shape"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="file")]


def model_options(command: Command) -> Command:
    """Add MODEL -m --synthetic --weights --head --isa."""
    return add_options(
        command,
        click.argument("model", type=MODEL, required=False),
        click.option("-m", "--model", "model_option", type=MODEL, metavar="MODEL", help="The same as MODEL."),
        click.option(
            "--synthetic",
            type=_ShapeName(),
            metavar="SHAPE",
            help=f"Random weights at a real shape instead of MODEL: {', '.join(NAMES)}, or the path of a config.json.",
        ),
        click.option("--weights", type=click.Choice([INT8, W4]), help="Weights of --synthetic; default: int8."),
        click.option("--head", type=click.Choice(TABLE_SCHEMES), help="Output matrix of --synthetic; default: int8."),
        click.option(
            "--isa",
            type=click.Choice([*kernels.isa_variants(), *kernels.emulated_isas()]),
            help="Kernels of this instruction set; one that this processor lacks is emulated, slowly.",
        ),
    )


def run_options(command: Command) -> Command:
    """Add -r -b -ub --device --cpus --numa --memory --ctx --chunk."""
    return add_options(
        command,
        click.option("-r", "--repetitions", type=Whole(1, 1000), default=5, show_default=True),
        click.option("-b", "--batch-size", type=Whole(1), help="Tokens in flight at once; default: 4 chunks."),
        click.option("-ub", "--ubatch-size", type=Whole(1), help="The same as --chunk."),
        place_options,
    )


def bench_runtime(options: dict[str, Any]) -> RuntimeConfig:
    """How the parsed ``options`` want the model to be run.

    llama-bench's words for ours: -ub is the chunk, -b the tokens of a window of chunks.
    """
    runtime = runtime_config(options)
    batch, ubatch = options["batch_size"], options["ubatch_size"]
    chunk = ubatch or runtime.chunk
    if batch is None:
        return replace(runtime, chunk=chunk)
    device = this_machine().auto.device if runtime.device == "auto" else runtime.device
    chunk = min(chunk or longest_chunk(device), batch)
    return replace(runtime, chunk=chunk, window=max(1, batch // chunk))


def bench_model(options: dict[str, Any]) -> BenchModel:
    """The model that the parsed ``options`` name; from here on its kernels are those of --isa."""
    name, synthetic, isa = options["model"] or options["model_option"], options["synthetic"], options["isa"]
    if options["model"] and options["model_option"]:
        raise UsageError("give MODEL or -m MODEL, not both", param="model")
    if name is not None and synthetic is not None:
        raise UsageError("give MODEL or --synthetic, not both", param="synthetic")
    for option in ("weights", "head"):
        if options[option] is not None and synthetic is None:
            raise UsageError(f"--{option} is for --synthetic; a model has what it was imported with", param=option)
    weights, head = options["weights"] or INT8, options["head"] or INT8
    if isa in kernels.emulated_isas():
        note(f"warning: this processor has no {isa}; its instructions are emulated, and the speed says nothing")
    if isa is not None:
        kernels.use_isa(isa)
    if synthetic is None:
        name = known_here(name, or_file=True)
        return BenchModel(name or "builtin", find_bundle(name), is_synthetic=False)
    shape = find_shape(synthetic)
    return BenchModel(shape.label, synthetic_bundle(shape, weights, head), is_synthetic=True)


# -- what is printed and drawn ----------------------------------------------------------------------------------------


def output_options(command: Command) -> Command:
    """Add -o --json."""
    return add_options(
        command,
        click.option("-o", "--output", type=click.Choice(FORMATS), default="md", show_default=True),
        click.option("--json", "as_json", is_flag=True, help="The same as -o json."),
    )


output_err_option = click.option("-oe", "--output-err", type=click.Choice(FORMATS), help="Print on stderr too, in this format.")


def output_form(options: dict[str, Any]) -> str:
    """In which of `FORMATS` the parsed ``options`` want the rows."""
    return "json" if options["as_json"] else options["output"]


def show(rows: Sequence[Row], form: str, markdown: Callable[[Sequence[Row]], str], *, on_stderr: bool = False) -> None:
    """Print ``rows`` in one of `FORMATS`."""
    click.echo(markdown(rows) if form == "md" else render(rows, form), err=on_stderr)


def trace_options(command: Command) -> Command:
    """Add --gantt --trace."""
    return add_options(
        command,
        click.option("--gantt", is_flag=True, help="Draw the lanes as text."),
        click.option("--trace", "trace_path", type=NewFile(), help="Write the lanes to this file, for https://ui.perfetto.dev."),
    )


def show_traces(runs: trace.Runs, options: dict[str, Any]) -> None:
    """Draw runs on lanes and write them, as the parsed ``options`` want it; rows for a script have stdout for themselves."""
    if options["gantt"]:
        width = min(200, max(60, shutil.get_terminal_size((100, 24)).columns))
        click.echo(f"\n{trace.gantt(runs, width)}\n\n{trace.lanes_table(runs)}", err=output_form(options) != "md")
    if options["trace_path"] is not None:
        trace.save_chrome(options["trace_path"], runs)
        note(f"wrote {options['trace_path']}; open it at https://ui.perfetto.dev")
