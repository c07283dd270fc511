"""`edge-llm bench`: speed, in llama-bench's flags, test names and layout."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

import edge_llm
from edge_llm.bench.report import FORMATS, render
from edge_llm.bench.speed import Measurement, Test, measure
from edge_llm.bench.synthetic import SHAPES, synthetic_bundle
from edge_llm.cli.options import runtime_config, runtime_options
from edge_llm.cli.terminal import note
from edge_llm.config import ModelConfig
from edge_llm.engine.load import find_bundle, load_runner
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle


class _Numbers(click.ParamType):
    """A comma-separated list of numbers, `a-b+step` and `a-b*factor` ranges, as llama-bench takes them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(number for item in str(value).split(",") for number in _expand(item))
        except ValueError:
            self.fail(f"`{value}` is not a list of numbers such as 128,512 or 128-512*2", param, ctx)


def _expand(item: str) -> list[int]:
    low, dash, rest = item.partition("-")
    if not dash:
        return [_positive(low)]
    for sign, step in (("+", lambda at, by: at + by), ("*", lambda at, by: at * by)):
        high, found, by = rest.partition(sign)
        if found:
            return _walk(_positive(low), _positive(high), int(by), step)
    raise ValueError(item)


def _walk(low: int, high: int, by: int, step: Callable[[int, int], int]) -> list[int]:
    numbers = [low]
    while (following := step(numbers[-1], by)) <= high:
        if following <= numbers[-1] or len(numbers) > 1000:
            raise ValueError(by)
        numbers.append(following)
    return numbers


def _positive(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


@click.command("bench")
@click.argument("model", required=False)
@click.option("-p", "--n-prompt", type=_Numbers(), default="512", show_default=True, help="Prompt lengths; 0 for none.")
@click.option("-n", "--n-gen", type=_Numbers(), default="128", show_default=True, help="Tokens to generate; 0 for none.")
@click.option("-pg", "both", multiple=True, metavar="P,G", help="Prompt and generation together; may be repeated.")
@click.option("-d", "--n-depth", type=_Numbers(), default="0", show_default=True, help="Tokens of context before.")
@click.option("-r", "--repetitions", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="md", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option("--synthetic", type=click.Choice(list(SHAPES)), help="Random weights at a real shape instead of MODEL.")
@runtime_options
def bench_command(
    model: str | None,
    n_prompt: tuple[int, ...],
    n_gen: tuple[int, ...],
    both: tuple[str, ...],
    n_depth: tuple[int, ...],
    repetitions: int,
    output: str,
    as_json: bool,
    synthetic: str | None,
    **options: Any,
) -> None:
    """Measure prompt processing (pp) and token generation (tg) of MODEL in tokens per second.

    Weight values do not change speed, so --synthetic measures a real shape without its model.
    """
    if model is not None and synthetic is not None:
        raise UsageError("give MODEL or --synthetic, not both", param="synthetic")
    tests = _tests(n_prompt, n_gen, both, n_depth)
    runtime = runtime_config(options)
    bundle = open_bundle(synthetic_bundle(synthetic) if synthetic else find_bundle(model))
    needed = max(test.tokens for test in tests)
    runner, runtime = load_runner(bundle, runtime, needed)
    label = synthetic or model or "builtin"
    rows = []
    for measurement in measure(runner, bundle.config.vocab_size, tests, repetitions):
        rows.append(_row(measurement, label, bundle.config, bundle.size, runtime))
        if output == "jsonl":
            click.echo(render(rows[-1:], "jsonl"))
        else:
            note(f"{measurement.test.label}: {rows[-1]['avg_ts']:.2f} t/s")
    if output != "jsonl":
        click.echo(render(rows, "json" if as_json else output))


def _tests(n_prompt: tuple[int, ...], n_gen: tuple[int, ...], both: tuple[str, ...], depths: tuple[int, ...]) -> list[Test]:
    pairs = [(prompt, 0) for prompt in n_prompt if prompt] + [(0, generate) for generate in n_gen if generate]
    for text in both:
        prompt, comma, generate = text.partition(",")
        if not (comma and prompt.isdigit() and generate.isdigit() and int(prompt) + int(generate)):
            raise UsageError(f"-pg takes two numbers such as 512,128, got `{text}`", param="pg")
        pairs.append((int(prompt), int(generate)))
    if not pairs:
        raise UsageError("nothing to measure: give -p, -n or -pg a number above 0", param="n_prompt")
    return [Test(prompt, generate, depth) for depth in depths for prompt, generate in pairs]


def _row(measurement: Measurement, label: str, config: ModelConfig, size: int, runtime: Any) -> dict[str, Any]:
    return {
        "build_version": edge_llm.__version__,
        "model_type": f"{label} INT8",
        "model_size": size,
        "model_n_params": config.parameters,
        "backends": runtime.device,
        "n_threads": runtime.threads,
        "type_k": "int8",
        "type_v": "int8",
        "test": measurement.test.label,
        "test_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **measurement.as_row(),
    }
