"""Many answers at once: what continuous batching is worth, through the service that the endpoint uses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.report import Column, Row, table_of
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.engine.assembly import load_runner
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.load import load_engine
from edge_llm.engine.request import Request
from edge_llm.engine.service import BatchingService
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.paths import builtin_bundle
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import Tokenizer

SEED = 11


@dataclass(frozen=True)
class Load:
    """So many answers at once, each of a prompt and tokens to generate; the prompts have nothing in common."""

    streams: int
    prompt: int
    generate: int


@dataclass(frozen=True)
class LoadResult:
    """What a load came to, one value per repetition."""

    load: Load
    tokens_per_second: tuple[float, ...]
    """Generated tokens of all streams over the time until the last has ended."""
    first_token_ms: tuple[float, ...]
    """Median over the streams."""


def load_for(folder: Path, runtime: RuntimeConfig, loads: Sequence[Load], *, synthetic: bool) -> Engine:
    """An engine for ``loads`` of the bundle ``folder``; a ``synthetic`` one borrows the built-in model's tokenizer.

    That knows no text for most tokens of a larger vocabulary.
    """
    needed = max(load.streams * (load.prompt + load.generate + 16) for load in loads)
    longest = max(load.prompt + load.generate for load in loads) + 1
    if runtime.context is not None and runtime.context < longest:
        raise UsageError(f"--ctx `{runtime.context}` is too small for answers of {longest} tokens", param="context")
    runtime = replace(runtime, kv_tokens=needed, context=runtime.context or longest, draft="none")
    if not synthetic:
        return load_engine(folder, runtime)
    with open_bundle(folder) as bundle, open_bundle(builtin_bundle()) as builtin:
        runner, _ = load_runner(bundle, runtime, longest)
        tokenizer = Tokenizer.from_folder(builtin.folder, bundle.config.vocab_size)
        template = ChatTemplate.from_folder(builtin.folder, tokenizer)
        return Engine(folder.name, bundle.config, tokenizer, template, GenerationParams(), runner, load_ms=0.0)


def measure(engine: Engine, loads: Sequence[Load], repetitions: int, window_seconds: float) -> list[LoadResult]:
    """Every load ``repetitions`` times, in turns, after one run to warm up."""
    service = BatchingService(engine, queue_limit=4096, window_seconds=window_seconds)
    random = np.random.default_rng(SEED)
    try:
        _run(service, engine, loads[0], random)
        runs = [[_run(service, engine, load, random) for load in loads] for _ in range(repetitions)]
    finally:
        service.close(drain_seconds=0.0)
    return [
        LoadResult(load, tuple(run[number][0] for run in runs), tuple(run[number][1] for run in runs))
        for number, load in enumerate(loads)
    ]


def _run(service: BatchingService, engine: Engine, load: Load, random: np.random.Generator) -> tuple[float, float]:
    """Tokens per second of all streams, and the median time to the first token in milliseconds."""
    params = GenerationParams(max_tokens=load.generate, ignore_eos=True)
    vocab = engine.tokenizer.vocab_size
    prompts = [tuple(random.integers(0, vocab, load.prompt).tolist()) for _ in range(load.streams)]
    started = time.perf_counter()
    answers = [collect(stream) for stream in [service.submit(Request(prompt, params)) for prompt in prompts]]
    seconds = time.perf_counter() - started
    tokens = sum(answer.finish.usage.completion_tokens for answer in answers)
    return tokens / seconds, float(np.median([answer.finish.timings.prompt_ms for answer in answers]))


def rows(results: Sequence[LoadResult], window_seconds: float) -> list[dict[str, Any]]:
    """One row per load; ``speedup`` is over the first."""
    first = float(np.median(results[0].tokens_per_second))
    return [
        {
            "test": f"pp{result.load.prompt}+tg{result.load.generate}",
            "n_streams": result.load.streams,
            "n_prompt": result.load.prompt,
            "n_gen": result.load.generate,
            "batch_window_ms": 1e3 * window_seconds,
            "tokens_per_second": float(np.median(result.tokens_per_second)),
            "speedup": float(np.median(result.tokens_per_second)) / first,
            "first_token_ms": float(np.median(result.first_token_ms)),
            "samples_ts": list(result.tokens_per_second),
        }
        for result in results
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    return table_of(rows, COLUMNS)


COLUMNS = (
    Column("test", lambda row: row["test"], right=False),
    Column("streams", lambda row: str(row["n_streams"])),
    Column("t/s, all streams", lambda row: f"{row['tokens_per_second']:.1f}"),
    Column("speedup", lambda row: f"{row['speedup']:.2f}x"),
    Column("first token ms", lambda row: f"{row['first_token_ms']:.1f}"),
)
