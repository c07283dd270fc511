"""OpenVINO in a process of its own: the graph that its `LLMPipeline` runs on a CPU, token ids in, no tokenizer and no sampling.

Attention is paged, as there, and pages have the number type that the plugin chooses, usually INT8.  A prompt is one call, and
so is every token.  Started by `edge_llm.bench.peer` as ``python -m edge_llm.bench.peer_openvino '{"folder": ..., ...}'``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.serve import FIRST_PROMPT, seconds_of, serve

PAGE = 32
"""Tokens of a page of the CPU plugin."""
_PIECE = 512
"""Tokens at a time of a context that is not timed."""
PLUGIN = {"PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": "NO"}
"""No other engine pins its threads, and those that are pinned wait for whatever else runs on their cores."""
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Settings that round nothing."""


class OpenVINO:
    """A compiled model and one sequence; ``properties`` change how the plugin runs it."""

    def __init__(
        self, folder: str, vocab: int, context: int, threads: int, properties: dict[str, str] | None = None
    ) -> None:
        self._api: Any = import_module("openvino")
        self._model = _paged(self._api, Path(folder) / "model.xml")
        self._vocab, self._context = vocab, context
        self._properties = properties or {}
        self._threads = self._depth = 0
        self._load(threads)

    def describe(self) -> str:
        """The processor and the number type that the plugin computes in."""
        precision = self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        return f"{self._api.get_version()}, {precision}"

    def begin(self, depth: int, threads: int, state: str | None = None) -> None:
        """Have ``depth`` tokens of context."""
        if threads != self._threads:
            self._load(threads)
        if depth != self._depth:
            tokens = self._tokens(depth)
            for first in range(0, depth, _PIECE):
                self._forward(tokens[first : first + _PIECE], first)
            self._depth = depth

    def run(self, prompt: int, generate: int) -> float:
        """Seconds for a prompt and then single tokens; the context is as before afterwards."""
        return seconds_of(self._forward, self._tokens(prompt + generate), prompt, self._depth)

    def first_token(self) -> int:
        """The most likely token after a prompt of `FIRST_PROMPT` tokens."""
        return int(self.logits(self._tokens(FIRST_PROMPT), 0).argmax())

    def logits(self, tokens: np.ndarray, start: int) -> np.ndarray:
        """Of the last of ``tokens``, which come after ``start`` tokens: float32 [vocab]."""
        self._forward(tokens, start)
        found: np.ndarray = self._request.get_output_tensor().data
        return found.reshape(-1).copy()

    def _load(self, threads: int) -> None:
        settings = PLUGIN | {"INFERENCE_NUM_THREADS": threads} | self._properties
        self._compiled = self._api.Core().compile_model(self._model, "CPU", settings)
        self._request = self._compiled.create_infer_request()
        pages = -(-self._context // PAGE)
        for given in self._compiled.inputs:
            if "cache" in given.get_any_name():
                shape = [pages, *(size.get_length() for size in list(given.get_partial_shape())[1:])]
                self._request.set_tensor(given, self._api.Tensor(given.get_element_type(), self._api.Shape(shape)))
        self._threads, self._depth = threads, 0

    def _forward(self, tokens: np.ndarray, start: int) -> None:
        end = start + len(tokens)
        pages = -(-end // PAGE)
        inputs = {
            "input_ids": tokens,
            "position_ids": np.arange(start, end),
            "past_lens": np.array([start], np.int32),
            "subsequence_begins": np.array([0, len(tokens)], np.int32),
            "block_indices": np.arange(pages, dtype=np.int32),
            "block_indices_begins": np.array([0, pages], np.int32),
            "max_context_len": np.array(end, np.int32),
        }
        for name, array in inputs.items():
            self._request.set_tensor(name, self._api.Tensor(array))
        self._request.infer()

    def _tokens(self, count: int) -> np.ndarray:
        return np.random.default_rng(0).integers(0, self._vocab, count)


def _paged(api: Any, path: Path) -> Any:
    """The model at ``path`` with pages for its keys and values, whose tokens lie along the first axis."""
    model = api.Core().read_model(path)
    import_module("openvino._offline_transformations").paged_attention_transformation(model)
    (last,) = (node for node in model.get_ops() if node.get_friendly_name() == "last_token")
    last.input(2).replace_source_output(api.op.Constant(np.array(0)).output(0))
    model.validate_nodes_and_infer_types()
    return model


if __name__ == "__main__":
    serve(OpenVINO, sys.argv[1])
