"""`edge-llm bench`: speed, in llama-bench's flags, test names and layout."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import kernels
from edge_llm.bench import breakdown, cost_table, lanes, saved, simulate, trace
from edge_llm.bench.measure import Test
from edge_llm.bench.peer import BATCH, UBATCH, parse_peers
from edge_llm.bench.report import FORMATS, render
from edge_llm.bench.session import Plan, Row, run
from edge_llm.bench.synthetic import SHAPES, synthetic_bundle
from edge_llm.cli.options import runtime_config, runtime_options_but_threads
from edge_llm.cli.terminal import note
from edge_llm.cli.values import NewFile, Real, Whole, short, whole_number
from edge_llm.config import RuntimeConfig
from edge_llm.engine.runners import load_int8_runner, resolve
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.paths import find_bundle

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
KV_TYPES = ("int8", "q8_0")
"""What -ctk and -ctv accept: keys and values are INT8 with one scale per token and head, which is nearest to q8_0."""


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
        return [_positive(low)]
    for sign, step in (("+", lambda at, by: at + by), ("*", lambda at, by: at * by)):
        high, found, by = rest.partition(sign)
        if found:
            return _walk(_positive(low), _positive(high), whole_number(by), step)
    raise ValueError(item)


def _walk(low: int, high: int, by: int, step: Callable[[int, int], int]) -> list[int]:
    numbers = [low]
    while (following := step(numbers[-1], by)) <= high:
        if following <= numbers[-1] or len(numbers) > 1000:
            raise ValueError(by)
        numbers.append(following)
    return numbers


def _positive(text: str) -> int:
    number = whole_number(text)
    if number < 0:
        raise ValueError(text)
    return number


def _flat(ctx: click.Context, param: click.Parameter, value: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """One list of an option that was repeated, as given the first time."""
    return tuple(dict.fromkeys(number for numbers in value for number in numbers))


def _refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        flag = param.opts[0]
        raise UsageError(f"{flag} is a flag of llama-bench that has no meaning here: {REFUSED[flag]}", param=flag)


def _kv_type(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value.lower() not in KV_TYPES:
        raise UsageError(
            f"keys and values are kept in INT8, not `{value}`; leave {param.opts[0]} out or give {' or '.join(KV_TYPES)}",
            param=param.name,
        )
    return "int8"


def _refused_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for number, flag in enumerate(REFUSED):
        command = click.option(flag, f"refused{number}", hidden=True, expose_value=False, callback=_refuse)(command)
    return command


_LIST: dict[str, Any] = {"type": _Numbers(), "multiple": True, "callback": _flat}


@click.command("bench")
@click.argument("model", required=False)
@click.option("-m", "--model", "model_option", hidden=True, help="The same as MODEL.")
@click.option("-p", "--n-prompt", default=["512"], show_default=True, help="Prompt lengths; 0 for none.", **_LIST)
@click.option("-n", "--n-gen", default=["128"], show_default=True, help="Tokens to generate; 0 for none.", **_LIST)
@click.option("-pg", "both", multiple=True, metavar="P,G", help="Prompt and generation together; may be repeated.")
@click.option("-d", "--n-depth", default=["0"], show_default=True, help="Tokens of context before.", **_LIST)
@click.option("-r", "--repetitions", type=Whole(1, 1000), default=5, show_default=True)
@click.option("-t", "--threads", help="CPU threads; default: the cores this process may use.", **_LIST)
@click.option("-b", "--batch-size", type=Whole(1), help="Tokens in flight at once; default: 4 chunks.")
@click.option("-ub", "--ubatch-size", type=Whole(1), help="The same as --chunk, and given to the peers too.")
@click.option("-ctk", "--cache-type-k", default="int8", callback=_kv_type, expose_value=False, help="Only int8 (or q8_0).")
@click.option("-ctv", "--cache-type-v", default="int8", callback=_kv_type, expose_value=False, help="Only int8 (or q8_0).")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="md", show_default=True)
@click.option("-oe", "--output-err", type=click.Choice(FORMATS), help="Print on stderr too, in this format.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option("--delay", type=Real(0, 3600), default=0.0, help="Seconds to wait before every test.")
@click.option("--no-warmup", is_flag=True, help="No run before those that are timed.")
@click.option("--progress", "show_progress", is_flag=True, help="Say what is measured, also when stderr is no terminal.")
@click.option("--synthetic", type=click.Choice(list(SHAPES)), help="Random weights at a real shape instead of MODEL.")
@click.option("--isa", type=click.Choice(kernels.isa_variants()), help="Kernels of this instruction set.")
@click.option("--roof", is_flag=True, help="Measure what the machine can do at most, and print the share of it.")
@click.option("--breakdown", "show_breakdown", is_flag=True, help="Where the time goes, by part and operation.")
@click.option("--ttft", "first_token", is_flag=True, help="Time from process start to the first token (32-token prompt).")
@click.option("--peer", "peers", multiple=True, help="Measure others in turns: llama.cpp[:q8_0|q4_0][:fa|nofa], torch; a list.")
@click.option("--save", "save_path", type=NewFile(), help="Write all rows to this file.")
@click.option(
    "--compare",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print the ratio to the rows of a file written by --save.",
)
@click.option("--simulate", "table", metavar="TABLE", help="The scheduling policies on a machine of this cost table (or file).")
@click.option(
    "--policy", "policies", help=f"Run prompts under these scheduling policies in turns: all, or of {', '.join(lanes.EVERY)}."
)
@click.option("--concurrency", help="So many answers at once through the service, such as 1,8,32.", **_LIST)
@click.option("--batch-window", type=Real(0, 10_000), default=0.0, help="Milliseconds to wait for company.")
@click.option("--speculation", is_flag=True, help="What prompt lookup is worth on text that copies and on text that does not.")
@click.option("--sampling", is_flag=True, help="What choosing tokens adds to decoding: greedy, by filters, log-probabilities.")
@click.option("--gantt", is_flag=True, help="Draw the lanes of prompts as text.")
@click.option(
    "--trace",
    "trace_path",
    type=NewFile(),
    help="Write the lanes of prompts to this file, for https://ui.perfetto.dev.",
)
@_refused_flags
@runtime_options_but_threads
def bench_command(
    model: str | None,
    model_option: str | None,
    n_prompt: tuple[int, ...],
    n_gen: tuple[int, ...],
    both: tuple[str, ...],
    n_depth: tuple[int, ...],
    repetitions: int,
    threads: tuple[int, ...],
    batch_size: int | None,
    ubatch_size: int | None,
    output: str,
    output_err: str | None,
    as_json: bool,
    delay: float,
    no_warmup: bool,
    show_progress: bool,
    synthetic: str | None,
    isa: str | None,
    roof: bool,
    show_breakdown: bool,
    first_token: bool,
    peers: tuple[str, ...],
    save_path: Path | None,
    compare: Path | None,
    table: str | None,
    policies: str | None,
    concurrency: tuple[int, ...],
    batch_window: float,
    speculation: bool,
    sampling: bool,
    gantt: bool,
    trace_path: Path | None,
    **options: Any,
) -> None:
    """Measure prompt processing (pp) and token generation (tg) of MODEL in tokens per second.

    Flags, test names and table are those of llama-bench.  Weight values do not change speed, so --synthetic measures a
    real shape without its model, and peers get random weights of the same shape.
    """
    form = "json" if as_json else output
    kind = _kind(click.get_current_context())
    _refuse_several(kind, {"-t": threads, "-p": n_prompt, "-n": n_gen})
    if kind == "--simulate":
        assert table is not None
        _simulate(table, n_prompt, form, output_err, gantt, trace_path)
        return
    model = model or model_option
    if model is not None and synthetic is not None:
        raise UsageError("give MODEL or --synthetic, not both", param="synthetic")
    tests = _tests(n_prompt, n_gen, both, n_depth)
    runtime = _batched(runtime_config(options | {"threads": None}), batch_size, ubatch_size)
    runtimes = [replace(runtime, threads=count) for count in threads] or [runtime]
    old = [] if compare is None else saved.load(compare)
    specs = parse_peers(peers, tests)
    if first_token and (runtime.memory or runtime.float_path or runtime.device not in ("auto", "host")):
        raise UsageError("--ttft is of a process with all weights in INT8 on the host; leave it out here", param="ttft")
    if show_breakdown and runtime.float_path:
        raise UsageError("--breakdown is of the INT8 path; leave --float out", param="breakdown")
    if isa is not None:
        kernels.use_isa(isa)
    folder = synthetic_bundle(synthetic) if synthetic else find_bundle(model)
    if kind == "--concurrency":
        sizes = (concurrency, n_prompt[0], n_gen[0])
        _run_loads(folder, synthetic is not None, runtimes[0], sizes, repetitions, batch_window / 1e3, form)
        return
    if kind == "--speculation":
        _run_speculation(folder, synthetic is not None, runtimes[0], repetitions, form)
        return
    if kind == "--sampling":
        _run_sampling(folder, synthetic is not None, runtimes[0], (n_prompt[0], n_gen[0]), repetitions, form)
        return
    if kind in LANES:
        names = lanes.EVERY if policies == "all" else tuple((policies or runtime.policy).split(","))
        _run_lanes(folder, runtimes[0], n_prompt, names, repetitions, form, gantt, trace_path)
        return
    with open_bundle(folder) as bundle:
        plan = Plan(
            label=synthetic or model or "builtin",
            bundle=bundle,
            tests=tests,
            runtime=runtime,
            threads=tuple(resolve(one, bundle.config).threads or 1 for one in runtimes),
            repetitions=repetitions,
            warm_up=not no_warmup,
            delay=delay,
            peers=specs,
            peer_batch=batch_size or BATCH,
            peer_ubatch=ubatch_size or UBATCH,
            roof=roof,
            breakdown=show_breakdown,
            first_token=first_token,
        )
        rows = _measure(plan, old, form, show_progress or sys.stderr.isatty())
    if output_err is not None:
        click.echo(render(rows, output_err), err=True)
    if save_path is not None:
        saved.save(save_path, rows)


LANES = ("--policy", "--gantt", "--trace")
KINDS = {
    "table": "--simulate",
    "concurrency": "--concurrency",
    "speculation": "--speculation",
    "sampling": "--sampling",
    "policies": "--policy",
    "gantt": "--gantt",
    "trace_path": "--trace",
}
"""What may be measured instead of speed, by the parameter that asks for it; the first that is given decides."""
OF_LANES = {"n_prompt", "policies", "gantt", "trace_path"}
OF_ONE_KIND = {
    "--simulate": {"table", "n_prompt", "gantt", "trace_path", "output", "output_err", "as_json"},
    "--concurrency": {"concurrency", "n_prompt", "n_gen", "batch_window", "float_path"},
    "--speculation": {"speculation", "float_path"},
    "--sampling": {"sampling", "n_prompt", "n_gen", "float_path"},
    **dict.fromkeys(LANES, OF_LANES),
}
"""The options that mean something to each kind; besides those of `OF_ANY_RUN`, which a simulation is not."""
OF_ANY_RUN = {
    *("model", "model_option", "synthetic", "isa", "repetitions", "threads", "batch_size", "ubatch_size"),
    *("output", "as_json", "show_progress", "device", "cpus", "numa", "memory", "context", "chunk"),
}
OF_ONE_VALUE = {
    **dict.fromkeys(("--concurrency", "--sampling"), ("-t", "-p", "-n")),
    **dict.fromkeys(("--speculation", *LANES), ("-t",)),
}
"""Lists that take one value, by kind."""


def _kind(context: click.Context) -> str | None:
    """Which of `KINDS` is asked for, None for speed; options that then mean nothing are refused."""
    given = {
        param.name: param.opts[0] if isinstance(param, click.Option) else "MODEL"
        for param in context.command.params
        if param.name and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    }
    kind = next((flag for name, flag in KINDS.items() if name in given), None)
    if "draft" in given:
        raise UsageError("--draft has no meaning here: `--speculation` says what prompt lookup is worth", param="draft")
    if kind is None and "batch_window" in given:
        raise UsageError("--batch-window has a meaning only with --concurrency", param="batch_window")
    taken = OF_ONE_KIND[kind] | (set() if kind == "--simulate" else OF_ANY_RUN) if kind else set(given)
    for name, flag in given.items():
        if name not in taken:
            why = ": nothing is run or measured" if kind == "--simulate" else ""
            raise UsageError(f"{flag} has no meaning with {kind}{why}", param=name)
    return kind


def _refuse_several(kind: str | None, lists: dict[str, tuple[int, ...]]) -> None:
    for flag in OF_ONE_VALUE.get(kind or "", ()):
        if len(lists[flag]) > 1:
            raise UsageError(f"{flag} takes one value with {kind}", param=flag)


def _simulate(
    name: str, n_prompt: tuple[int, ...], output: str, output_err: str | None, gantt: bool, trace_path: Path | None
) -> None:
    """Print what every policy makes of prompts of these lengths on the machine of a cost table."""
    if not any(n_prompt):
        raise UsageError("nothing to simulate: give -p a number above 0", param="n_prompt")
    costs = cost_table.load(name)
    runs = [run for length in n_prompt if length for run in simulate.simulate(costs, length)]
    rows = simulate.rows(runs)
    click.echo(simulate.markdown(rows) if output == "md" else render(rows, output))
    if output_err is not None:
        click.echo(simulate.markdown(rows) if output_err == "md" else render(rows, output_err), err=True)
    show_traces({f"pp{run.n_prompt} {run.policy}": run.trace for run in runs}, gantt, trace_path, on_stderr=output != "md")


def _run_loads(
    folder: Path,
    synthetic: bool,
    runtime: RuntimeConfig,
    sizes: tuple[tuple[int, ...], int, int],
    repetitions: int,
    window_seconds: float,
    output: str,
) -> None:
    """Print what so many answers at once come to; ``sizes``: how many, tokens of their prompts, tokens of the answers."""
    from edge_llm.bench import concurrency as bench  # the whole engine, which would count in the memory of other measurements

    streams, prompt, generate = sizes
    if not (all(streams) and prompt and generate):
        raise UsageError("--concurrency, -p and -n must be above 0", param="concurrency")
    loads = [bench.Load(count, prompt, generate) for count in streams]
    engine = bench.load_for(folder, runtime, loads, synthetic=synthetic)
    rows = bench.rows(bench.measure(engine, loads, repetitions, window_seconds), window_seconds)
    click.echo(bench.markdown(rows) if output == "md" else render(rows, output))


def _run_speculation(folder: Path, synthetic: bool, runtime: RuntimeConfig, repetitions: int, output: str) -> None:
    """Print what prompt lookup is worth."""
    from edge_llm.bench import speculation as bench  # see _run_loads
    from edge_llm.bench.concurrency import Load, load_for

    engine = load_for(folder, runtime, [Load(1, bench.DOCUMENT, bench.DOCUMENT)], synthetic=synthetic)
    rows = bench.rows(bench.measure(engine.runner, engine.tokenizer, repetitions))
    click.echo(bench.markdown(rows) if output == "md" else render(rows, output))


def _run_sampling(
    folder: Path, synthetic: bool, runtime: RuntimeConfig, sizes: tuple[int, int], repetitions: int, output: str
) -> None:
    """Print what choosing tokens costs; ``sizes``: tokens of the prompt, tokens of the answer."""
    from edge_llm.bench import sampling as bench  # see _run_loads
    from edge_llm.bench.concurrency import Load, load_for

    if not all(sizes):
        raise UsageError("-p and -n must be above 0 with --sampling", param="n_gen")
    prompt, generate = sizes
    engine = load_for(folder, runtime, [Load(2, prompt, generate + 1)], synthetic=synthetic)
    rows = bench.rows(bench.measure(engine, *sizes, repetitions), *sizes)
    click.echo(bench.markdown(rows) if output == "md" else render(rows, output))


def _run_lanes(
    folder: Path,
    runtime: RuntimeConfig,
    n_prompt: tuple[int, ...],
    policies: tuple[str, ...],
    repetitions: int,
    output: str,
    gantt: bool,
    trace_path: Path | None,
) -> None:
    """Print what policies make of prompts in real runs, and draw them."""
    if not any(n_prompt):
        raise UsageError("nothing to run: give -p a number above 0", param="n_prompt")
    with open_bundle(folder) as bundle:
        runner = load_int8_runner(bundle, runtime, max(n_prompt))
        runs = [run for length in n_prompt if length for run in lanes.compare(runner, length, policies, repetitions)]
        sharing = runner.subgraphs.sharing
    rows = lanes.rows(runs)
    click.echo(lanes.markdown(rows) if output == "md" else render(rows, output))
    note(
        f"{sharing.built} subgraphs were built for {sharing.uses} uses; one for each chunk and layer would have held "
        f"{sharing.saved_bytes / 2**20:.0f} MiB more"
    )
    show_traces({f"pp{run.n_prompt} {run.policy}": run.typical for run in runs}, gantt, trace_path, on_stderr=output != "md")


def show_traces(runs: trace.Runs, gantt: bool, path: Path | None, *, on_stderr: bool) -> None:
    """Draw runs on lanes (--gantt) and write them (--trace)."""
    if gantt:
        width = min(200, max(60, shutil.get_terminal_size((100, 24)).columns))
        click.echo(f"\n{trace.gantt(runs, width)}\n\n{trace.lanes_table(runs)}", err=on_stderr)
    if path is not None:
        trace.save_chrome(path, runs)
        note(f"wrote {path}; open it at https://ui.perfetto.dev")


def _measure(plan: Plan, old: Sequence[Row], output: str, show_progress: bool) -> list[Row]:
    """Run the plan and print its rows; those of jsonl as they come."""
    rows: list[Row] = []
    progress = note if show_progress else _silent
    try:
        for row in run(plan, warn=lambda sentence: note(f"warning: {sentence}"), progress=progress):
            rows.append(saved.compared(row, old) if old else row)
            if output == "jsonl":
                click.echo(render(rows[-1:], "jsonl"))
    finally:  # what was measured before an interrupt or a failure is worth showing
        if rows and output != "jsonl":
            click.echo(render(rows, output))
    for row in rows:
        if output == "md" and "breakdown" in row:
            click.echo("\n" + breakdown.table(row["breakdown"]))
    return rows


def _silent(_: str) -> None:
    return


def _tests(
    n_prompt: tuple[int, ...], n_gen: tuple[int, ...], both: tuple[str, ...], depths: tuple[int, ...]
) -> tuple[Test, ...]:
    pairs = [(prompt, 0) for prompt in n_prompt if prompt] + [(0, generate) for generate in n_gen if generate]
    for text in both:
        prompt, _, generate = text.partition(",")
        try:
            pairs.append((_positive(prompt), _positive(generate)))
        except ValueError:
            pairs.append((0, 0))
        if not sum(pairs[-1]):
            raise UsageError(f"-pg takes two numbers such as 512,128, got `{text}`", param="pg")
    if not pairs:
        raise UsageError("nothing to measure: give -p, -n or -pg a number above 0", param="n_prompt")
    return tuple(Test(prompt, generate, depth) for depth in depths for prompt, generate in pairs)


def _batched(runtime: RuntimeConfig, batch: int | None, ubatch: int | None) -> RuntimeConfig:
    """llama-bench's words for ours: -ub is the chunk, -b the tokens of a window of chunks."""
    chunk = min(ubatch or runtime.chunk, batch or 2**31)
    return replace(runtime, chunk=chunk, window=runtime.window if batch is None else max(1, batch // chunk))
