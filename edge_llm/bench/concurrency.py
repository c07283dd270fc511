"""Many answers at once: what continuous batching is worth, through the service that the endpoint uses, or through both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.loads import Face, Load, Outcome
from edge_llm.bench.measure import OwnRunner, Test
from edge_llm.bench.report import Column, Row, table_of
from edge_llm.config import MOST_PARALLEL, GenerationParams, RuntimeConfig
from edge_llm.decoding.draft import Drafter, no_draft
from edge_llm.engine.batcher import Limits
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.request import Request
from edge_llm.engine.service import BatchingService
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_engine
from edge_llm.opening.runner import load_runner
from edge_llm.paths import builtin_bundle
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import Tokenizer

SEED = 11


@dataclass(frozen=True)
class LoadResult:
    """What a load came to, one value per repetition."""

    load: Load
    tokens_per_second: tuple[float, ...]
    """Generated tokens of all streams over the time until the last has ended."""
    first_token_ms: tuple[float, ...]
    """Median over the streams."""
    decode_per_second: tuple[float, ...]
    """Tokens behind the first over the time behind it, of all streams together."""
    bare_per_second: tuple[float, ...]
    """Of the runner alone, which computes one answer after such a prompt and chooses no tokens."""

    @property
    def ratio(self) -> float:
        """Of the median decode speeds: all streams over the runner alone."""
        return float(np.median(self.decode_per_second) / np.median(self.bare_per_second))


class ServiceFace:
    """The service of ``engine``; use as a context manager."""

    def __init__(self, engine: Engine, window_seconds: float) -> None:
        self.vocab_size = engine.tokenizer.vocab_size
        self._own = OwnRunner(engine.runner, self.vocab_size)
        self._service = BatchingService(engine, queue_limit=4096, window_seconds=window_seconds)

    def __enter__(self) -> ServiceFace:
        return self

    def __exit__(self, *_: object) -> None:
        self._service.close(drain_seconds=0.0)

    def bare(self, load: Load) -> float:
        self._own.begin(load.prompt)
        return load.generate / self._own.run(Test(0, load.generate, load.prompt))

    def run(self, prompts: Sequence[Sequence[int]], generate: int) -> list[Outcome]:
        params = GenerationParams(max_tokens=generate, ignore_eos=True)
        streams = [self._service.submit(Request(tuple(prompt), params)) for prompt in prompts]
        finishes = [collect(stream).finish for stream in streams]
        return [
            Outcome(finish.usage.completion_tokens, 1e-3 * finish.timings.prompt_ms, 1e-3 * finish.timings.predicted_ms)
            for finish in finishes
        ]


class BorrowedTokenizer(Tokenizer):
    """A tokenizer for a larger vocabulary than its own: its texts stand for the other tokens too, over and over.

    A token without text is no event of a stream, so the first that is seen would be the end of the answer.
    """

    def token_text(self, token: int) -> str:
        return super().token_text(self._checked(token) % self._backend.get_vocab_size())


def load_for(
    folder: Path, runtime: RuntimeConfig, loads: Sequence[Load], *, synthetic: bool, draft: str = "none"
) -> Engine:
    """An engine for ``loads`` of the bundle ``folder``; a ``synthetic`` one borrows the built-in model's tokenizer."""
    longest = max(load.prompt + load.generate for load in loads) + 1
    needed = max(load.streams * (load.prompt + load.generate + 16) for load in loads) + longest + 16  # one is the runner's own
    if runtime.context is not None and runtime.context < longest:
        raise UsageError(f"--ctx `{runtime.context}` is too small for answers of {longest} tokens", param="context")
    parallel = min(max(load.streams for load in loads), MOST_PARALLEL)
    runtime = replace(runtime, kv_tokens=needed, context=runtime.context or longest, draft=draft, parallel=parallel)
    if not synthetic:
        return load_engine(folder, runtime)
    with open_bundle(folder) as bundle, open_bundle(builtin_bundle()) as builtin:
        runner, _ = load_runner(bundle, runtime, longest)
        tokenizer = BorrowedTokenizer.from_folder(builtin.folder, bundle.config.vocab_size)
        template = ChatTemplate.from_folder(builtin.folder, tokenizer)
        limits = Limits(most_running=parallel)
        return Engine(folder.name, bundle.config, tokenizer, template, GenerationParams(), runner, 0.0, limits, _no_drafter)


def _no_drafter() -> Drafter:
    return no_draft


def measure(face: Face, loads: Sequence[Load], repetitions: int) -> list[LoadResult]:
    """Every load ``repetitions`` times, in turns with the runner alone, after one run to warm up."""
    random = np.random.default_rng(SEED)
    _run(face, loads[0], random)
    runs = [[_run(face, load, random) for load in loads] for _ in range(repetitions)]
    return [LoadResult(load, *zip(*column, strict=True)) for load, column in zip(loads, zip(*runs, strict=True), strict=True)]


def _run(face: Face, load: Load, random: np.random.Generator) -> tuple[float, float, float, float]:
    """The fields of a `LoadResult`, of one run."""
    bare = face.bare(load)
    prompts = [random.integers(0, face.vocab_size, load.prompt).tolist() for _ in range(load.streams)]
    started = time.perf_counter()
    outcomes = face.run(prompts, load.generate)
    seconds = time.perf_counter() - started
    tokens = sum(outcome.tokens for outcome in outcomes)
    first = 1e3 * float(np.median([outcome.first_seconds for outcome in outcomes]))
    decode = sum((outcome.tokens - 1) / max(outcome.more_seconds, 1e-9) for outcome in outcomes)
    return tokens / seconds, first, decode, bare


def rows(results: Sequence[LoadResult], window_seconds: float, face: str = "service") -> list[dict[str, Any]]:
    """One row per load through ``face``; ``speedup`` is over the first."""
    first = float(np.median(results[0].tokens_per_second))
    return [
        {
            "test": f"pp{result.load.prompt}+tg{result.load.generate}",
            "through": face,
            "n_streams": result.load.streams,
            "n_prompt": result.load.prompt,
            "n_gen": result.load.generate,
            "batch_window_ms": 1e3 * window_seconds,
            "tokens_per_second": float(np.median(result.tokens_per_second)),
            "speedup": float(np.median(result.tokens_per_second)) / first,
            "first_token_ms": float(np.median(result.first_token_ms)),
            "decode_ts": float(np.median(result.decode_per_second)),
            "bare_ts": float(np.median(result.bare_per_second)),
            "ratio": result.ratio,
            "samples_ts": list(result.tokens_per_second),
        }
        for result in results
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    return table_of(rows, COLUMNS)


COLUMNS = (
    Column("test", lambda row: row["test"], right=False),
    Column("through", lambda row: row["through"], right=False),
    Column("streams", lambda row: str(row["n_streams"])),
    Column("t/s, all streams", lambda row: f"{row['tokens_per_second']:.1f}"),
    Column("speedup", lambda row: f"{row['speedup']:.2f}x"),
    Column("first token ms", lambda row: f"{row['first_token_ms']:.1f}"),
    Column("decode t/s", lambda row: f"{row['decode_ts']:.1f}"),
    Column("of the runner's speed", lambda row: f"{row['ratio']:.0%}"),
)
