"""Our runner in a process of its own, as a contestant: what it takes of memory is then its own too."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from edge_llm import kernels
from edge_llm.bench.measure import OwnRunner, Test
from edge_llm.bench.serve import serve
from edge_llm.bench.worker import Worker
from edge_llm.config import RuntimeConfig
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_runner


class OwnProcess:
    """A contestant; ``memory`` is the budget of its weights (None: all resident).  Close it when it is no longer wanted."""

    def __init__(self, bundle: Path, context: int, threads: int, memory: str | None = None) -> None:
        setting = {"bundle": str(bundle), "context": context, "threads": threads, "memory": memory, "isa": kernels.isa()}
        self._worker = Worker("edge_llm.bench.own_process", setting, "edge-llm")
        try:
            self._worker.receive()
        except BaseException:
            self._worker.close()
            raise

    def begin(self, depth: int) -> None:
        self._worker.ask("begin", depth=depth)

    def run(self, test: Test) -> float:
        return float(self._worker.ask("run", prompt=test.prompt, generate=test.generate, depth=test.depth))

    def peak_rss_bytes(self) -> int:
        return self._worker.peak_rss_bytes()

    def close(self) -> None:
        self._worker.close()


@dataclass(frozen=True)
class _Inside:
    """What the process answers with."""

    own: OwnRunner

    def begin(self, depth: int) -> None:
        self.own.begin(depth)

    def run(self, prompt: int, generate: int, depth: int) -> float:
        return self.own.run(Test(prompt, generate, depth))


def _open(bundle: str, context: int, threads: int, memory: str | None, isa: str) -> _Inside:
    kernels.use_isa(isa)
    with open_bundle(Path(bundle)) as opened:
        runner, _ = load_runner(opened, RuntimeConfig(threads=threads, memory=memory), context)
        return _Inside(OwnRunner(runner, opened.config.vocab_size))


if __name__ == "__main__":
    serve(_open, sys.argv[1])
