"""The process behind `first_token`: it opens a bundle, says so, answers with the most likely token, and waits."""

from __future__ import annotations

import sys
from pathlib import Path

from edge_llm import kernels
from edge_llm.bench.serve import serve
from edge_llm.config import RuntimeConfig
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_runner

PROMPT = 32
"""Tokens of the prompt."""


class OwnStart:
    """A runner just made."""

    def __init__(self, bundle: str, threads: int, isa: str, context: int) -> None:
        kernels.use_isa(isa)
        with open_bundle(Path(bundle)) as opened:
            self._vocab = opened.config.vocab_size
            self._runner, _ = load_runner(opened, RuntimeConfig(threads=threads), min(context, opened.config.context))

    def first_token(self) -> int:
        """The most likely token after a prompt of `PROMPT` tokens."""
        logits = self._runner.forward(self._runner.open(), [token % self._vocab for token in range(PROMPT)])
        return int(logits[-1].argmax())


if __name__ == "__main__":
    serve(OwnStart, sys.argv[1])
