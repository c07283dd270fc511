"""`edge-llm bench`: speed, in llama-bench's flags, test names and layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edge_llm.bench import breakdown, saved
from edge_llm.bench.from_source import Prepared, QualityWish, prepare
from edge_llm.bench.measure import Test
from edge_llm.bench.peer import BATCH, UBATCH, parse_peers
from edge_llm.bench.report import render
from edge_llm.bench.session import BenchSettings, Row, run
from edge_llm.cli.bench.commands import Bench
from edge_llm.cli.bench.options import (
    bench_model,
    bench_runtime,
    model_options,
    natural_number,
    numbers_option,
    output_err_option,
    output_form,
    output_options,
    run_options,
)
from edge_llm.cli.bench.words import WORDS
from edge_llm.cli.options import Command, SharedOption, add_options, float_option
from edge_llm.cli.terminal import note, progress_bar
from edge_llm.cli.values import NewFile, Real
from edge_llm.config import BLOCKS, RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.defaults import fill_defaults
from edge_llm.opening.machine import this_machine
from edge_llm.progress import ignore
from edge_llm.runner.base import Site

REFUSED = {
    "-fa": "attention never holds the whole score matrix, so there is nothing to switch; a peer takes it in its name, "
    "such as --peer llama.cpp:q8_0:nofa",
    "-ngl": "a model runs wholly on one --device",
    "-mmp": "weights are read into memory and never mapped",
    "-nkvo": "keys and values lie where the model runs, see --device",
    "-embd": "embeddings are not offered",
    "-hf": "import a model first (`edge-llm import`) and give its name",
}
"""Flags of llama-bench that mean nothing here, and why."""
MOVED = {
    "--policy": "`edge-llm bench lanes [MODEL] --policy NAMES`",
    "--gantt": "`edge-llm bench lanes [MODEL] --gantt` or `edge-llm bench simulate TABLE --gantt`",
    "--trace": "`edge-llm bench lanes [MODEL] --trace FILE` or `edge-llm bench simulate TABLE --trace FILE`",
    "--simulate": "`edge-llm bench simulate TABLE`",
    "--concurrency": "`edge-llm bench load [MODEL] --concurrency NUMBERS`",
    "--batch-window": "`edge-llm bench load [MODEL] --batch-window MILLISECONDS`",
    "--speculation": "`edge-llm bench speculation [MODEL]`",
    "--draft": "`edge-llm bench speculation [MODEL] --draft WHO` to see what guessing ahead is worth",
    "--sampling": "`edge-llm bench sampling [MODEL]`",
}
"""Options that mean nothing for speed, and what to write instead."""
KV_TYPES = ("int8", "q8_0")
"""What -ctk and -ctv accept: keys and values are INT8 with one scale per token and head, which is nearest to q8_0."""


def _refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        flag = param.opts[0]
        raise UsageError(f"{flag} is a flag of llama-bench that has no meaning here: {REFUSED[flag]}", param=flag)


def _point(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        flag = param.opts[0]
        raise UsageError(f"{flag} has no meaning for speed; write {MOVED[flag]}", param=flag)


def _hidden_options(command: Command) -> Command:
    """Add the options that are there only to be refused with a reason."""
    hidden: Any = {"hidden": True, "expose_value": False, "is_eager": True}
    return add_options(
        command,
        *(click.option(flag, f"refused{n}", callback=_refuse, **hidden) for n, flag in enumerate(REFUSED)),
        *(
            click.option(flag, f"moved{n}", callback=_point, is_flag=False, flag_value="", **hidden)
            for n, flag in enumerate(MOVED)
        ),
    )


def _kv_type(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value.lower() not in KV_TYPES:
        raise UsageError(
            f"keys and values are kept in INT8, not `{value}`; leave {param.opts[0]} out or give {' or '.join(KV_TYPES)}",
            param=param.name,
        )
    return "int8"


def _kv_option(*names: str) -> Callable[[Command], Command]:
    return click.option(*names, default="int8", callback=_kv_type, expose_value=False, help="Only int8 (or q8_0).")


@click.group("bench", cls=Bench)
@model_options
@numbers_option("-p", "--n-prompt", default="512", help="Prompt lengths; 0 for none.")
@numbers_option("-n", "--n-gen", default="128", help="Tokens to generate; 0 for none.")
@click.option("-pg", "both", multiple=True, metavar="P,G", help="Prompt and generation together; may be repeated.")
@numbers_option("-d", "--n-depth", default="0", help="Tokens of context before.")
@numbers_option("-t", "--threads", cls=SharedOption, help="CPU threads; default: the cores this process may use.")
@_kv_option("-ctk", "--cache-type-k")
@_kv_option("-ctv", "--cache-type-v")
@run_options
@float_option
@click.option("--delay", type=Real(0, 3600), default=0.0, help="Seconds to wait before every test.")
@click.option("--no-warmup", is_flag=True, help="No run before those that are timed.")
@click.option("--progress", "show_progress", is_flag=True, help="Say what is measured, also when stderr is no terminal.")
@click.option("--roof", is_flag=True, help="Measure what the machine can do at most, and print the share of it.")
@click.option("--breakdown", is_flag=True, help="Where the time goes, by part and operation.")
@click.option("--ttft", "first_token", is_flag=True, help="Time from process start to the first token (of 32), warm and cold.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    help="Measure others in turns, with -b and -ub too: llama.cpp[:TYPE][:fa|nofa] with "
    "q8_0, q4_0, q4_0-pure, q4_k_m, iq4_xs, f16 or file (that of MODEL, the default where it is kept in the blocks of a GGUF "
    "file), genai[:int4|int8], openvino[:int4|int8], torch; a list.",
)
@click.option(
    "--quality-text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="How near MODEL and its peers are to float, on this text; with --peer llama.cpp default: a short one of our own.",
)
@click.option("--no-quality", is_flag=True, help="Measure speed alone.")
@output_options
@output_err_option
@click.option("--save", "save_path", type=NewFile(), help="Write all rows to this file.")
@click.option(
    "--compare",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print the ratio to the rows of a file written by --save.",
)
@_hidden_options
def bench_command(
    threads: tuple[int, ...],
    output_err: str | None,
    save_path: Path | None,
    compare: Path | None,
    show_progress: bool,
    **options: Any,
) -> None:
    """Measure prompt processing (pp) and token generation (tg) of MODEL in tokens per second.

    Flags, test names and table are those of llama-bench.  Weight values do not change speed, so --synthetic measures a
    real shape without its model, and peers get random weights of the same shape.  Where the float weights of MODEL are at
    hand, llama.cpp gets these, and KL x 1000 and top-1 say how near everybody is to them on a text (KL of the float path,
    in thousandths of a nat for a token, and how often the likeliest token is the same).

    A command below, right after `bench`, measures something else.  A model that is named like a command is -m NAME.
    """
    _refuse_word(options["model"])
    tests = _tests(options["n_prompt"], options["n_gen"], options["both"], options["n_depth"])
    runtime = bench_runtime(options)
    old = [] if compare is None else saved.load(compare)
    peers = parse_peers(options["peers"], tests)
    _refuse_unmeasured(options, runtime)
    model = bench_model(options)
    with open_bundle(model.folder) as bundle:
        if bundle.manifest["source"].get("weights") == BLOCKS:
            peers = parse_peers(options["peers"], tests, of_file=True)
        runtimes = [replace(runtime, threads=count) for count in threads] or [runtime]
        settings = BenchSettings(
            label=model.label,
            bundle=bundle,
            tests=tests,
            runtime=runtime,
            threads=tuple(fill_defaults(one, bundle.config, this_machine())[0].threads or 1 for one in runtimes),
            repetitions=options["repetitions"],
            warm_up=not options["no_warmup"],
            delay=options["delay"],
            peers=peers,
            peer_batch=options["batch_size"] or BATCH,
            peer_ubatch=options["ubatch_size"] or UBATCH,
            roof=options["roof"],
            breakdown=options["breakdown"],
            first_token=options["first_token"],
        )
        shown = show_progress or sys.stderr.isatty()
        settings = replace(settings, prepared=_prepared(settings, options, model.is_synthetic, shown))
        rows = _measure(settings, old, output_form(options), shown)
    if output_err is not None:
        click.echo(render(rows, output_err), err=True)
    if save_path is not None:
        saved.save(save_path, rows)


def _refuse_word(model: str | None) -> None:
    if model in WORDS:
        raise UsageError(
            f"`{model}` is a command: write it right after `bench`; a model of that name is `-m {model}`", param="model"
        )


def _refuse_unmeasured(options: dict[str, Any], runtime: RuntimeConfig) -> None:
    if options["first_token"] and (runtime.memory or runtime.float_path or runtime.device not in ("auto", "host")):
        raise UsageError("--ttft is of a process with all weights in INT8 on the host; leave it out here", param="ttft")
    if options["breakdown"] and runtime.float_path:
        raise UsageError("--breakdown is of the INT8 path; leave --float out", param="breakdown")


def _prepared(settings: BenchSettings, options: dict[str, Any], is_synthetic: bool, show_progress: bool) -> Prepared:
    """Models for peers of the model's own weights, and quality, as far as there are such weights and it is wished for."""
    text, peers = options["quality_text"], [spec for spec in settings.peers if spec.engine.of_source is not None]
    if text is not None and (is_synthetic or options["no_quality"]):
        raise UsageError("--quality-text is for a MODEL with float weights, without --no-quality", param="quality_text")
    if is_synthetic or (not peers and text is None):
        return Prepared()
    if text is None and settings.bundle.float_source() is None:
        note(f"the float weights of `{settings.label}` are not here any more: peers get random ones, no quality")
        return Prepared()
    without = options["no_quality"] or (settings.runtime.float_path and text is None)
    runtime = replace(settings.runtime, threads=settings.threads[0])
    with progress_bar() if show_progress else nullcontext(ignore) as draw:
        return prepare(settings.bundle, runtime, peers, None if without else QualityWish(text), draw)


def _measure(settings: BenchSettings, old: Sequence[Row], output: str, show_progress: bool) -> list[Row]:
    """Measure and print the rows; those of jsonl as they come."""
    rows: list[Row] = []
    announce = note if show_progress else _silent
    try:
        for row in run(settings, warn=lambda sentence: note(f"warning: {sentence}"), announce=announce):
            rows.append(saved.compared(row, old) if old else row)
            if output == "jsonl":
                click.echo(render(rows[-1:], "jsonl"))
    finally:  # what was measured before an interrupt or a failure is worth showing
        if rows and output != "jsonl":
            click.echo(render(rows, output))
    if output == "md":
        _add_to_table(rows)
    return rows


def _add_to_table(rows: Sequence[Row]) -> None:
    """What no column has: where the model ran and why (on stderr, so that tables paste), and where the time went."""
    ours = [row for row in rows if not row["peer"]]
    for site in dict.fromkeys(str(Site.of_row(row)) for row in ours):
        note(site)
    for row in ours:
        if "breakdown" in row:
            click.echo("\n" + breakdown.table(row["breakdown"]))


def _silent(_: str) -> None:
    return


def _tests(
    n_prompt: tuple[int, ...], n_gen: tuple[int, ...], both: tuple[str, ...], depths: tuple[int, ...]
) -> tuple[Test, ...]:
    pairs = [(prompt, 0) for prompt in n_prompt if prompt] + [(0, generate) for generate in n_gen if generate]
    for text in both:
        prompt, _, generate = text.partition(",")
        try:
            pairs.append((natural_number(prompt), natural_number(generate)))
        except ValueError:
            pairs.append((0, 0))
        if not sum(pairs[-1]):
            raise UsageError(f"-pg takes two numbers such as 512,128, got `{text}`", param="pg")
    if not pairs:
        raise UsageError("nothing to measure: give -p, -n or -pg a number above 0", param="n_prompt")
    return tuple(Test(prompt, generate, depth) for depth in depths for prompt, generate in pairs)
