"""`edge-llm bench speculation`: what prompt lookup is worth."""

from __future__ import annotations

from typing import Any

import click

from edge_llm.cli.bench.options import bench_model, bench_runtime, model_options, output_form, output_options, run_options, show
from edge_llm.cli.options import float_option, threads_option


@click.command("speculation")
@model_options
@threads_option
@run_options
@float_option
@output_options
def speculation_command(repetitions: int, **options: Any) -> None:
    """Generate with and without prompt lookup: a text that copies from its prompt, and one that does not."""
    from edge_llm.bench import speculation as bench  # the whole engine, which --help does without
    from edge_llm.bench.concurrency import load_for
    from edge_llm.bench.loads import Load

    runtime, model = bench_runtime(options), bench_model(options)
    engine = load_for(model.folder, runtime, [Load(1, bench.DOCUMENT, bench.DOCUMENT)], synthetic=model.is_synthetic)
    rows = bench.rows(bench.measure(engine.runner, engine.tokenizer, repetitions))
    show(rows, output_form(options), bench.markdown)
