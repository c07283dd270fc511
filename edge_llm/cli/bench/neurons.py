"""`edge-llm bench neurons`: what a token reads of a model with ReLU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge_llm.cli.bench.options import bench_model, model_options, numbers_option, output_form, output_options, show
from edge_llm.cli.values import REAL, Whole
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle


@click.command("neurons")
@model_options
@click.option("--text", type=click.Path(path_type=Path), help="Text that is read; default: the held-out text of import.")
@click.option("--calibration", type=click.Path(path_type=Path), help="Text of the predictors; default: that of import.")
@numbers_option("--windows", help="Lengths of windows in tokens.  Default: 1, 5 and 20.")
@click.option("--rank", type=Whole(1), help="Of the predictors; default: a quarter of the hidden size.")
@click.option("--recall", type=REAL, default=0.99, show_default=True, help="Share of active neurons that they are to name.")
@click.option("--tokens", type=Whole(2), default=2048, show_default=True, help="Of either text, at most.")
@output_options
def neurons_command(
    text: Path | None,
    calibration: Path | None,
    windows: tuple[int, ...],
    rank: int | None,
    recall: float,
    tokens: int,
    **options: Any,
) -> None:
    """Say what a token of a text reads of the MLPs of MODEL: all, active neurons, those of predictors; by windows and bundles.

    The float weights that MODEL was imported from read both texts; nothing is read from a disk or timed.
    """
    from edge_llm.bench import neurons as bench  # the float model, which --help does without
    from edge_llm.bench.neurons_texts import texts
    from edge_llm.opening.float_assembly import float_model

    if not 0 < recall <= 1:
        raise UsageError(f"--recall must be above 0 and at most 1, not `{recall:g}`", param="recall")
    with open_bundle(bench_model(options).folder) as bundle:
        read, trained = texts(bundle, text, calibration, tokens)
        model = float_model(bundle)
    ranks = rank or max(1, round(bench.RANK_SHARE * model.decoder.hidden_size))
    show(bench.rows(model, read, trained, windows or (1, 5, 20), ranks, recall), output_form(options), bench.markdown)
