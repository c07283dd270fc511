"""What the look inside costs: decode speed with the panel open and closed, in pairs of the same answer.

    python benchmarks/look_inside.py                                 the built-in model; half a minute
    python benchmarks/look_inside.py --synthetic qwen2.5-0.5b        a larger shape, random weights

An app without a terminal shows the panel at 200x60 while a thread answers, as in a chat; it is told the speed four times a
second, so that there is always something to draw.  Beside the ratio stands the processor time that the app's own thread takes,
which says more where a machine drifts: while that thread has the interpreter, the other one waits for it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from textual.app import App, ComposeResult  # noqa: E402

from edge_llm.bench.concurrency import load_for  # noqa: E402
from edge_llm.bench.loads import Load  # noqa: E402
from edge_llm.bench.synthetic import SHAPES, find_shape, synthetic_bundle  # noqa: E402
from edge_llm.config import GenerationParams, RuntimeConfig  # noqa: E402
from edge_llm.engine.engine import Engine  # noqa: E402
from edge_llm.engine.inside import look  # noqa: E402
from edge_llm.engine.request import Request  # noqa: E402
from edge_llm.paths import builtin_bundle  # noqa: E402
from edge_llm.tui.inside import InsidePanel  # noqa: E402

PROMPT, GENERATE = 300, 200
SIZE = (200, 60)


class Watched(App[None]):
    """A panel on ``engine``."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._generated = 0

    def compose(self) -> ComposeResult:
        yield InsidePanel(lambda: look(self._engine))

    def on_mount(self) -> None:
        self.set_interval(0.25, self._see)

    def _see(self) -> None:
        generated, self._generated = self._generated, self._engine.counters.generated_tokens
        self.query_one(InsidePanel).see_rate(4.0 * (self._generated - generated))


def generate(engine: Engine, seconds: float) -> float:
    """Tokens per second after the first, of the same answer again and again for ``seconds``."""
    request = Request(tuple(range(1, PROMPT)), GenerationParams(max_tokens=GENERATE, ignore_eos=True))
    tokens, took, end = 0, 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        timings = engine.answer(request).finish.timings
        tokens += GENERATE - 1
        took += timings.predicted_ms / 1e3
    return tokens / took


async def side(app: Watched, opened: bool, work: Callable[[], float]) -> tuple[float, float]:
    """Tokens per second, and the share of a core that the app's thread takes, with the panel open or not."""
    app.query_one(InsidePanel).display = opened
    await asyncio.sleep(0.5)
    began, used = time.perf_counter(), time.thread_time()
    rate = await asyncio.to_thread(work)
    return rate, (time.thread_time() - used) / (time.perf_counter() - began)


async def measure(engine: Engine, pairs: int, seconds: float) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """(closed, open) of every pair, each with the closed or the open one first in turns."""
    generate(engine, 1.0)
    app, found = Watched(engine), []
    async with app.run_test(size=SIZE):
        for number in range(pairs):
            order = (False, True) if number % 2 == 0 else (True, False)
            both = {opened: await side(app, opened, lambda: generate(engine, seconds)) for opened in order}
            found.append((both[False], both[True]))
            closed, watched = both[False][0], both[True][0]
            print(f"closed {closed:9.2f}  open {watched:9.2f}  ratio {watched / closed:.4f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", choices=SHAPES, help="random weights of this shape instead of the built-in model")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each side of a pair (default: %(default)s)")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    folder = synthetic_bundle(find_shape(options.synthetic)) if options.synthetic else builtin_bundle()
    loads = [Load(1, PROMPT, GENERATE)]
    engine = load_for(folder, RuntimeConfig(threads=options.threads), loads, synthetic=bool(options.synthetic))
    found = asyncio.run(measure(engine, options.pairs, options.seconds))
    ratios = sorted(opened[0] / closed[0] for closed, opened in found)
    closed_share, open_share = (statistics.median(pair[place][1] for pair in found) for place in (0, 1))
    print(f"open / closed: median {statistics.median(ratios):.4f}, from {ratios[0]:.4f} to {ratios[-1]:.4f}")
    print(f"the app's thread takes {open_share:.2%} of a core when open, {closed_share:.2%} when closed")


if __name__ == "__main__":
    main()
