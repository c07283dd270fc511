"""onnxruntime-genai in a process of its own: a folder with an ONNX model, token ids in, no tokenizer and no sampling.

Started by `edge_llm.bench.peer` as ``python -m edge_llm.bench.peer_genai '{"folder": ..., ...}'``.  A prompt is one call, and
so is every generated token; keys and values lie in one buffer for the whole context.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.serve import FIRST_PROMPT, serve

_PIECE = 512
"""Tokens at a time of a context that is not timed."""


class GenAI:
    """A loaded model and one sequence."""

    def __init__(self, folder: str, context: int, threads: int) -> None:
        self._api: Any = import_module("onnxruntime_genai")
        self._folder, self._context = folder, context
        self._vocab = json.loads((Path(folder) / "genai_config.json").read_text())["model"]["vocab_size"]
        self._threads = self._depth = 0
        self._load(threads)

    def describe(self) -> str:
        """The runtime below."""
        return f"onnxruntime {import_module('onnxruntime').__version__}"

    def begin(self, depth: int, threads: int, state: str | None = None) -> None:
        """Have ``depth`` tokens of context."""
        if threads != self._threads:
            self._load(threads)
        if depth != self._depth:
            self._generator.rewind_to(0)
            tokens = self._tokens(depth)
            for first in range(0, depth, _PIECE):
                self._generator.append_tokens(tokens[first : first + _PIECE])
            self._depth = depth

    def run(self, prompt: int, generate: int) -> float:
        """Seconds for a prompt and then single tokens; the context is as before afterwards."""
        generator, tokens = self._generator, self._tokens(prompt)
        singles = [self._tokens(1, seed) for seed in range(1, generate + 1)]
        started = time.perf_counter()
        if prompt:
            generator.append_tokens(tokens)
        for single in singles:
            generator.append_tokens(single)
        seconds = time.perf_counter() - started
        if generator.token_count() != self._depth + prompt + generate:
            raise RuntimeError("the context does not hold the tokens that were run")
        generator.rewind_to(self._depth)
        return seconds

    def first_token(self) -> int:
        """The most likely token after a prompt of `FIRST_PROMPT` tokens."""
        return int(self.logits(self._tokens(FIRST_PROMPT)).argmax())

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Of the last of ``tokens``, which come after what there is: float32 [vocab]."""
        self._generator.append_tokens(tokens)
        return np.asarray(self._generator.get_logits()).reshape(-1)

    def _load(self, threads: int) -> None:
        api = self._api
        config = api.Config(self._folder)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self._model = api.Model(config)
        params = api.GeneratorParams(self._model)
        params.set_search_options(max_length=self._context, past_present_share_buffer=True)
        self._generator = api.Generator(self._model, params)
        self._threads, self._depth = threads, 0

    def _tokens(self, count: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self._vocab, count, np.int32)


if __name__ == "__main__":
    serve(GenAI, sys.argv[1])
