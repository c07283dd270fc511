"""`edge-llm bench speculation`: what guessing ahead is worth."""

from __future__ import annotations

import sys
from typing import Any

import click

from edge_llm.cli.bench.options import bench_model, bench_runtime, model_options, output_form, output_options, run_options, show
from edge_llm.cli.options import draft_option, float_option, threads_option
from edge_llm.cli.terminal import note
from edge_llm.cli.values import Whole
from edge_llm.progress import ignore


@click.command("speculation")
@model_options
@draft_option
@click.option("-n", "--n-gen", type=Whole(2, 4096), default=128, show_default=True, help="Most tokens of an answer.")
@threads_option
@run_options
@float_option
@output_options
def speculation_command(n_gen: int, repetitions: int, **options: Any) -> None:
    """Generate without guesses, with guesses in every step, and as answers have them: where they pay.

    Questions are answered greedily by the model itself.  Prompt lookup is tried on a text that copies from its prompt, and one
    that does not, too.
    """
    from edge_llm.bench import speculation as bench  # the whole engine, which --help does without

    runtime = bench_runtime(options)
    bench.check_draft(runtime.draft, synthetic=options["synthetic"] is not None)
    model = bench_model(options)
    announce = note if sys.stderr.isatty() else ignore
    engine = bench.load(model.folder, runtime, n_gen, synthetic=model.is_synthetic)

    def tell(done: int, total: int) -> None:  # in lines: what draws a bar would compute beside what is measured
        announce(f"turn {done + 1} of {total}")

    rows = bench.rows(bench.measure(engine, runtime.draft, n_gen, repetitions, tell))
    show(rows, output_form(options), bench.markdown)
