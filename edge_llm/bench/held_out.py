"""How near models are to the float path on a text that none of them was fitted to: all read the same token ids.

The float path runs layer by layer, so that one layer of it is in memory; its logits are made block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from edge_llm.bench.quality import check_enough, windows_of
from edge_llm.bench.worker import Worker
from edge_llm.convert.calibrate import HELD_OUT_TEXT, read_text
from edge_llm.models.layer import Decoder
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import WeightSource, read_embedding, read_final_norm, read_layer, read_output
from edge_llm.operations.arithmetic import soft_cap
from edge_llm.progress import StageProgress, ignore
from edge_llm.quant.quality import BLOCK_LOGITS, Quality, Tally, log_softmax
from edge_llm.runner.base import Runner
from edge_llm.text.tokenizer import Tokenizer

WINDOW = 512
"""Tokens that a model reads from an empty context on."""


class Reader(Protocol):
    """A model that reads a text and says what it expects."""

    def logits(self, tokens: Sequence[int], past: int) -> np.ndarray:
        """float32 [T, vocab] of ``tokens``, which follow the last ``past`` tokens; none begins a new window."""
        ...


class OwnReader:
    """Our runner."""

    def __init__(self, runner: Runner[Any]) -> None:
        self._runner = runner
        self._sequence: Any = None

    def logits(self, tokens: Sequence[int], past: int) -> np.ndarray:
        if past == 0:
            if self._sequence is not None:
                self._sequence.close()
            self._sequence = self._runner.open()
        return self._runner.forward(self._sequence, tokens, wanted=len(tokens))


class PeerReader(AbstractContextManager["PeerReader"]):
    """A peer in its worker process, which hands logits over in a file."""

    def __init__(self, worker: Worker, vocab: int) -> None:
        self._worker, self._vocab = worker, vocab
        self._folder = TemporaryDirectory()
        self._file = str(Path(self._folder.name) / "logits")

    def __exit__(self, *_: object) -> None:
        self._worker.close()
        self._folder.cleanup()

    def logits(self, tokens: Sequence[int], past: int) -> np.ndarray:
        self._worker.ask("logits", tokens=[int(token) for token in tokens], past=past, out=self._file)
        return np.fromfile(self._file, np.float32).reshape(len(tokens), self._vocab)


def held_out_windows(text: Path | None, tokenizer: Tokenizer, context: int) -> list[list[int]]:
    """The text in a file, or the one that comes with us, as windows of token ids; `UsageError` where it cannot serve."""
    tokens = tokenizer.encode(read_text(text or HELD_OUT_TEXT)[0])
    window, bos = min(WINDOW, context), tokenizer.bos_id if tokenizer.add_bos else None
    check_enough(tokens, window, bos)
    return list(windows_of(tokens, window, bos))


def compare_readers(
    readers: Mapping[str, Reader],
    source: WeightSource,
    decoder: Decoder,
    windows: Sequence[Sequence[int]],
    progress: StageProgress = ignore,
) -> dict[str, Quality]:
    """How near each of ``readers`` is to the float path on the weights of ``source``.

    All tokens count but the windows' first, which are not predicted.
    """
    states = float_states(source, decoder, windows, progress)
    output = read_output(source, decoder)
    tallies = {name: Tally() for name in readers}
    for number, (ids, rows) in enumerate(zip(windows, states, strict=True)):
        for start, stop in _blocks(len(ids) - 1, len(output)):
            targets = np.asarray(ids[start + 1 : stop + 1])
            wanted = log_softmax(soft_cap(rows[start:stop] @ output.T, decoder.cap))
            for name, reader in readers.items():
                tallies[name].add(targets, log_softmax(reader.logits(ids[start:stop], start)), wanted)
        progress("held-out text", number + 1, len(windows))
    return {name: tally.quality() for name, tally in tallies.items()}


def float_states(
    source: WeightSource, decoder: Decoder, windows: Sequence[Sequence[int]], progress: StageProgress = ignore
) -> list[np.ndarray]:
    """What the output matrix is multiplied with: float32 [T, hidden] of every window, each from an empty context on."""
    tables = RopeTables(max(map(len, windows)))
    embedding = read_embedding(source, decoder)
    states = [embedding[np.asarray(ids)] for ids in windows]
    del embedding
    for done, layer in enumerate(decoder.layers):
        weights = read_layer(source, layer)
        states = [layer_forward(rows, layer, weights, tables) for rows in states]
        progress("float path", done + 1, len(decoder.layers))
    gain = read_final_norm(source, decoder)
    return [decoder.norm.applied(rows, gain) for rows in states]


def _blocks(tokens: int, vocab: int) -> Iterator[tuple[int, int]]:
    """Start and stop of runs of tokens whose logits are looked at together."""
    length = max(1, BLOCK_LOGITS // vocab)
    return ((start, min(start + length, tokens)) for start in range(0, tokens, length))
