"""`edge-llm bench simulate`: the scheduling policies on a machine of a cost table."""

from __future__ import annotations

from typing import Any

import click

from edge_llm.bench import cost_table, simulate
from edge_llm.cli.bench.options import (
    numbers_option,
    output_err_option,
    output_form,
    output_options,
    show,
    show_traces,
    trace_options,
)
from edge_llm.errors import UsageError


@click.command("simulate")
@click.argument("table")
@numbers_option("-p", "--n-prompt", default="512", help="Prompt lengths.")
@trace_options
@output_options
@output_err_option
def simulate_command(table: str, n_prompt: tuple[int, ...], output_err: str | None, **options: Any) -> None:
    """Say what every policy makes of prompts on the machine of TABLE, the name or the file of a cost table.

    Nothing is run or measured.
    """
    if not any(n_prompt):
        raise UsageError("nothing to simulate: give -p a number above 0", param="n_prompt")
    costs = cost_table.load(table)
    runs = [run for length in n_prompt if length for run in simulate.simulate(costs, length)]
    rows = simulate.rows(runs)
    show(rows, output_form(options), simulate.markdown)
    if output_err is not None:
        show(rows, output_err, simulate.markdown, on_stderr=True)
    show_traces({f"pp{run.n_prompt} {run.policy}": run.trace for run in runs}, options)
