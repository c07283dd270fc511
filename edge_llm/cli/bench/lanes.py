"""`edge-llm bench lanes`: prompts under the scheduling policies, in real runs."""

from __future__ import annotations

from typing import Any

import click

from edge_llm.bench import lanes
from edge_llm.cli.bench.options import (
    bench_model,
    bench_runtime,
    model_options,
    numbers_option,
    output_form,
    output_options,
    run_options,
    show,
    show_traces,
    trace_options,
)
from edge_llm.cli.options import threads_option
from edge_llm.cli.terminal import note
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_int8_runner
from edge_llm.runner.order import AUTO


@click.command("lanes")
@model_options
@numbers_option("-p", "--n-prompt", default="512", help="Prompt lengths.")
@click.option(
    "--policy", "policies", default=AUTO, show_default=True, help=f"all, or a list of {', '.join((AUTO, *lanes.EVERY))}."
)
@trace_options
@threads_option
@run_options
@output_options
def lanes_command(n_prompt: tuple[int, ...], policies: str, repetitions: int, **options: Any) -> None:
    """Run prompts under scheduling policies, in turns.

    What lanes there are is up to the device: `cpu`, `npu` where a card, an emulated one or onnxruntime multiplies, `flash`
    with --memory.
    """
    if not any(n_prompt):
        raise UsageError("nothing to run: give -p a number above 0", param="n_prompt")
    names = lanes.EVERY if policies == "all" else tuple(policies.split(","))
    runtime, model = bench_runtime(options), bench_model(options)
    text_of = None if model.is_synthetic else model.folder
    with open_bundle(model.folder) as bundle:
        runner = load_int8_runner(bundle, runtime, max(n_prompt))
        prompts = [lanes.prompt_tokens(length, bundle.config.vocab_size, text_of) for length in n_prompt if length]
        runs = [run for prompt in prompts for run in lanes.compare(runner, prompt, names, repetitions)]
        sharing, site = runner.model.sharing, runner.site
    show(lanes.rows(runs), output_form(options), lanes.markdown)
    note(str(site))
    note(
        f"{sharing.built} subgraphs were built for {sharing.uses} uses; one for each chunk and layer would have held "
        f"{sharing.saved_bytes / 2**20:.0f} MiB more"
    )
    show_traces({f"pp{run.n_prompt} {run.policy}": run.typical for run in runs}, options)
