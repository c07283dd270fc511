"""`edge-llm bench load`: many answers at once through the service."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from edge_llm.cli.bench.options import (
    bench_model,
    bench_runtime,
    model_options,
    numbers_option,
    output_form,
    output_options,
    run_options,
    show,
)
from edge_llm.cli.options import float_option, threads_option
from edge_llm.cli.values import Real, Whole
from edge_llm.errors import UsageError

SERVER = "edge_llm.cli.bench.own_server"
"""The module of the process that --rest asks."""


@click.command("load")
@model_options
@numbers_option("--concurrency", default="1,8", help="So many answers at once.")
@click.option("-p", "--n-prompt", type=Whole(1), default=512, show_default=True, help="Tokens of each prompt.")
@click.option("-n", "--n-gen", type=Whole(1), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--rest", is_flag=True, help="Through the REST endpoint of a server process, over loopback.")
@click.option("--batch-window", type=Real(0, 10_000), default=0.0, help="Milliseconds to wait for company.")
@threads_option
@run_options
@float_option
@output_options
def load_command(
    concurrency: tuple[int, ...], n_prompt: int, n_gen: int, rest: bool, batch_window: float, repetitions: int, **options: Any
) -> None:
    """Generate so many answers at once, each to a prompt of its own, as `edge-llm serve` does."""
    from edge_llm.bench import concurrency as bench  # the whole engine, which --help does without
    from edge_llm.bench.loads import Face, Load
    from edge_llm.bench.rest import RestFace

    if not all(concurrency):
        raise UsageError("--concurrency must be above 0", param="concurrency")
    loads = [Load(count, n_prompt, n_gen) for count in concurrency]
    runtime, model = bench_runtime(options), bench_model(options)
    seconds = batch_window / 1e3
    with contextlib.ExitStack() as stack:
        if rest:
            face: Face = stack.enter_context(
                RestFace(SERVER, model.folder, runtime, loads, seconds, synthetic=model.is_synthetic)
            )
        else:
            engine = bench.load_for(model.folder, runtime, loads, synthetic=model.is_synthetic)
            face = stack.enter_context(bench.ServiceFace(engine, seconds))
        results = bench.measure(face, loads, repetitions)
    rows = bench.rows(results, seconds, "REST" if rest else "service")
    show(rows, output_form(options), bench.markdown)
