"""The process behind `bench load --rest`: the engine of a load behind the endpoint of `edge-llm serve`, on a free port."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from edge_llm import kernels
from edge_llm.bench.loads import Load
from edge_llm.bench.measure import OwnRunner, Test
from edge_llm.bench.serve import serve
from edge_llm.config import RuntimeConfig
from edge_llm.engine.service import BatchingService
from edge_llm.server.host import ModelHost
from edge_llm.server.pool import ModelPool
from edge_llm.server.run import ServeOptions, listen, make_server


class OwnServer:
    """A server that runs, and its runner alone, which is measured while nobody asks."""

    def __init__(
        self,
        folder: str,
        runtime: dict[str, Any],
        loads: list[dict[str, int]],
        window_seconds: float,
        synthetic: bool,
        isa: str,
    ) -> None:
        from edge_llm.bench.concurrency import load_for  # the whole engine, which a refused setting does without

        kernels.use_isa(isa)
        engine = load_for(Path(folder), RuntimeConfig(**runtime), [Load(**load) for load in loads], synthetic=synthetic)
        self._own = OwnRunner(engine.runner, engine.tokenizer.vocab_size)
        self._vocab_size = engine.tokenizer.vocab_size
        host = ModelHost([engine.name])
        host.start(engine, BatchingService(engine, queue_limit=4096, window_seconds=window_seconds))
        options = ServeOptions(port=0)
        listener = listen(options)
        self._port = listener.getsockname()[1]
        server = make_server(ModelPool(host), options)
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server", daemon=True).start()

    def describe(self) -> dict[str, int]:
        """Where it listens, and how many tokens the model has."""
        return {"port": self._port, "vocab_size": self._vocab_size}

    def begin(self, depth: int) -> None:
        self._own.begin(depth)

    def run(self, prompt: int, generate: int, depth: int) -> float:
        return self._own.run(Test(prompt, generate, depth))


if __name__ == "__main__":
    serve(OwnServer, sys.argv[1])
