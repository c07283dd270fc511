"""A model that is larger than the memory given: speed against the disk, against all in memory, and against llama.cpp.

    python benchmarks/streaming.py                              both shapes, half of the weights; about two minutes
    python benchmarks/streaming.py --memory 30% --isa avx2      other budgets, other kernels

Writes `benchmarks/results/streaming.md`.  Everybody has a process of its own: we with all weights, we with a part of them, and
llama.cpp, which maps its file.  The last two get the same memory limit from a cgroup (budget, keys and values, and 15 %), if
this machine lets us make one.  They take turns, after the page cache has forgotten llama.cpp's file; what the disk gives and
how busy it is, is measured before that, while we generate alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402

from edge_llm import kernels  # noqa: E402
from edge_llm.bench.disk import DiskMeter, DiskUse  # noqa: E402
from edge_llm.bench.environment import environment  # noqa: E402
from edge_llm.bench.llama_shape import llama_shape  # noqa: E402
from edge_llm.bench.measure import Contestant, Measurement, Ratio, Test, measure  # noqa: E402
from edge_llm.bench.own_process import OwnProcess  # noqa: E402
from edge_llm.bench.peer import LLAMA_CPP, Peer, PeerSettings, PeerSpec  # noqa: E402
from edge_llm.bench.report import markdown_lines  # noqa: E402
from edge_llm.bench.synthetic import SHAPES, find_shape, synthetic_bundle  # noqa: E402
from edge_llm.bench.synthetic_gguf import synthetic_gguf  # noqa: E402
from edge_llm.config import RuntimeConfig  # noqa: E402
from edge_llm.formats.bundle import Bundle, open_bundle  # noqa: E402
from edge_llm.kv.pages import page_bytes, pages_for  # noqa: E402
from edge_llm.opening.machine import this_machine  # noqa: E402
from edge_llm.opening.resolve import resolve  # noqa: E402
from edge_llm.resources import usable_cores  # noqa: E402
from edge_llm.weights.memory_plan import MemoryPlan  # noqa: E402
from edge_llm.weights.plan import ALLOWANCE  # noqa: E402

PROMPT, GENERATE = Test(512, 0), Test(0, 16)
PEER_UBATCH = 128
"""Tokens that llama.cpp computes at once: its buffers for 512 would not fit beside the larger vocabulary."""
DEFAULT_SHAPES = ("qwen2.5-0.5b", "llama-1.1b")


class NoLimit(Exception):
    """This machine does not let us limit memory."""


class MemoryGroup:
    """A cgroup whose processes have ``limit`` bytes of memory together, their page cache included; version 1 or 2."""

    def __init__(self, limit: int) -> None:
        root = Path("/sys/fs/cgroup")
        old = (root / "memory").is_dir()
        top = root / "memory" if old else root
        self._home = top / _own_group("memory" if old else "")
        if not (self._home / "cgroup.procs").is_file():
            raise NoLimit(f"no folder of this process's own group: {self._home}")
        # Version 2 allows no groups below one that has processes.
        self._group = (self._home if old else root) / f"edge-llm-{uuid.uuid4().hex[:8]}"
        try:
            if not old:
                (root / "cgroup.subtree_control").write_text("+memory")
            self._group.mkdir()
            (self._group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        except OSError as error:
            with suppress(OSError):
                self._group.rmdir()
            raise NoLimit(f"{error.strerror}: {error.filename}") from None

    @contextmanager
    def children(self) -> Iterator[None]:
        """Processes that are started inside belong to the group."""
        procs = self._group / "cgroup.procs"
        procs.write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self._home / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Remove the group; its processes must have ended."""
        self._group.rmdir()


def _own_group(controller: str) -> str:
    """Where this process is in the hierarchy of ``controller`` (version 2: the empty name), from its root."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return next((path.lstrip("/") for _, names, path in lines if controller in names.split(",")), "")


@dataclass(frozen=True)
class Result:
    """One shape, measured."""

    shape: str
    plan: MemoryPlan
    limit: int
    limited: str | None
    """Why there was no limit; None if there was one."""
    prompt: list[Measurement]
    """All in memory, a part of it, llama.cpp."""
    alone: Measurement
    """Generation while nobody else runs, and the greatest memory of all tests."""
    disk: DiskUse
    """Meanwhile."""
    generate: list[Measurement]
    """A part in memory, llama.cpp; in turns."""


def measure_shape(shape: str, memory: str, repetitions: int) -> Result:
    """Run everybody in turns."""
    with open_bundle(synthetic_bundle(find_shape(shape))) as bundle:
        plan = resolve(RuntimeConfig(memory=memory), this_machine(), bundle).weights.host
        limit = memory_limit(bundle, plan)
        with ExitStack() as stack:
            resident, streamed, peer, limited = start(bundle, memory, limit, stack)
            meter = DiskMeter(bundle)
            before = meter.before()
            (alone,) = measure([streamed], GENERATE, repetitions)
            use = meter.after(before, alone=True)
            assert use is not None
            generate = measure([streamed, peer], GENERATE, repetitions)
            prompt = measure([resident, streamed, peer], PROMPT, repetitions)
            alone = replace(alone, peak_rss_bytes=streamed.peak_rss_bytes())
            return Result(shape, plan, limit, limited, prompt, alone, use, generate)


def memory_limit(bundle: Bundle, plan: MemoryPlan) -> int:
    """Budget, keys and values, and 15 %."""
    return round((plan.budget + pages_for(PROMPT.tokens) * page_bytes(bundle.decoder.attentions)) * (1 + ALLOWANCE))


def start(
    bundle: Bundle, memory: str, limit: int, stack: ExitStack
) -> tuple[Contestant, Contestant, Contestant, str | None]:
    """All contestants, which end with ``stack``; and why there is no limit."""
    threads, context = usable_cores(), PROMPT.tokens + GENERATE.tokens
    resident = OwnProcess(bundle.folder, context, threads)
    stack.callback(resident.close)
    gguf = synthetic_gguf(llama_shape(bundle.config), LLAMA_CPP.variants[0])
    with gguf.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    groups: list[MemoryGroup] = []
    limited = None
    try:
        for _ in range(2):
            groups.append(MemoryGroup(limit))
            stack.callback(groups[-1].close)
    except NoLimit as error:
        limited = str(error)
    with ExitStack() as inside:
        if limited is None:
            inside.enter_context(groups[0].children())
        streamed = OwnProcess(bundle.folder, context, threads, memory)
        stack.callback(streamed.close)
    with ExitStack() as inside:
        if limited is None:
            inside.enter_context(groups[1].children())
        settings = PeerSettings(bundle.config, context, threads, PROMPT.tokens, PEER_UBATCH)
        peer = Peer(PeerSpec(LLAMA_CPP, LLAMA_CPP.variants[0]), settings)
        stack.callback(peer.close)
    return resident, streamed, peer, limited


def report(results: Sequence[Result], memory: str, surroundings: dict[str, object]) -> str:
    """Markdown."""
    machine = f"{surroundings['cpu']}, {kernels.isa()}, {usable_cores()} threads"
    lines = [
        "# Weights larger than the memory given",
        "",
        f"`--memory {memory}`, {machine}, edge-llm {surroundings['edge_llm']}",
        "",
    ]
    columns = [row(result) for result in results]
    rows = [[name, *(cells[name] for cells in columns)] for name in columns[0]]
    lines += markdown_lines(["", *(result.shape for result in results)], rows)
    lines += ["", *(f"No memory limit for {r.shape}: {r.limited}" for r in results if r.limited)]
    return "\n".join(lines).rstrip() + "\n"


def row(result: Result) -> dict[str, str]:
    """What the report says of a shape."""
    plan, disk = result.plan, result.disk
    resident, streamed, their_prompt = result.prompt
    alone = result.alone
    tokens, their_tokens = result.generate
    speed = _median(alone)
    share = Ratio.of(streamed, resident)
    prompts, answers = Ratio.of(streamed, their_prompt), Ratio.of(tokens, their_tokens)
    return {
        "weights streamed": f"{plan.streamed_bytes / 2**20:.0f} MiB per token, {len(plan.streamed)} layers",
        "disk alone": f"{disk.rate / 1e9:.2f} GB/s",
        "generation": f"{speed:.2f} t/s ({alone.speeds.min():.2f} - {alone.speeds.max():.2f})",
        "of disk / bytes": f"{speed * plan.streamed_bytes / disk.rate:.2f}",
        "disk busy meanwhile": "unknown" if disk.busy is None else f"{disk.busy:.0%}",
        "prompt of 512": f"{_median(streamed):.0f} t/s",
        "of all in memory": f"{share.median:.2f} ({share.low:.2f} - {share.high:.2f})",
        "peak memory": f"{alone.peak_rss_bytes / 2**20:.0f} MiB",
        "limit: budget, keys and values, 15 %": f"{result.limit / 2**20:.0f} MiB",
        "generation in turns with llama.cpp": f"{_median(tokens):.2f} t/s",
        "llama.cpp Q8_0, mapped, generation": f"{_median(their_tokens):.2f} t/s",
        "we are faster": f"{answers.median:.1f}x ({answers.low:.1f} - {answers.high:.1f})",
        "llama.cpp, prompt of 512": f"{_median(their_prompt):.0f} t/s",
        "we are faster there": f"{prompts.median:.1f}x ({prompts.low:.1f} - {prompts.high:.1f})",
    }


def _median(measurement: Measurement) -> float:
    return float(np.median(measurement.speeds))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="50%", help="budget of the weights (default: 50%%)")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(DEFAULT_SHAPES))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--isa", choices=kernels.isa_variants())
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/streaming.md")
    arguments = parser.parse_args()
    if arguments.isa:
        kernels.use_isa(arguments.isa)
    results = []
    for shape in arguments.shapes:
        print(f"{shape} ...", file=sys.stderr, flush=True)
        results.append(measure_shape(shape, arguments.memory, arguments.repetitions))
    text = report(results, arguments.memory, environment())
    print(text)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
