"""`edge-llm bench sampling`: what choosing tokens adds to decoding."""

from __future__ import annotations

import sys
from typing import Any

import click

from edge_llm.cli.bench.options import bench_model, bench_runtime, model_options, output_form, output_options, run_options, show
from edge_llm.cli.options import float_option, threads_option
from edge_llm.cli.terminal import note
from edge_llm.cli.values import Whole
from edge_llm.progress import ignore


@click.command("sampling")
@model_options
@click.option("-p", "--n-prompt", type=Whole(1), default=512, show_default=True, help="Tokens of the prompt.")
@click.option("-n", "--n-gen", type=Whole(1), default=128, show_default=True, help="Tokens of the answer.")
@threads_option
@run_options
@float_option
@output_options
def sampling_command(n_prompt: int, n_gen: int, repetitions: int, **options: Any) -> None:
    """Generate greedily, by filters and with log-probabilities, beside the model alone."""
    from edge_llm.bench import sampling as bench  # the whole engine, which --help does without
    from edge_llm.bench.concurrency import load_for
    from edge_llm.bench.loads import Load

    runtime, model = bench_runtime(options), bench_model(options)
    engine = load_for(model.folder, runtime, [Load(2, n_prompt, n_gen + 1)], synthetic=model.is_synthetic)
    announce = note if sys.stderr.isatty() else ignore
    announce(f"tg{n_gen} @ d{n_prompt}, {1 + len(bench.WAYS)} ways in turns; first a run to warm up")

    def tell(done: int, total: int) -> None:  # in lines: what draws a bar would compute beside what is measured
        announce(f"turn {done + 1} of {total}")

    results = bench.measure(engine, n_prompt, n_gen, repetitions, tell)
    rows = bench.rows(results, n_prompt, n_gen)
    show(rows, output_form(options), bench.markdown)
