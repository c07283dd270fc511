"""What a token reads of a model with ReLU: all of its MLPs, the active neurons, those that a predictor names, and of either
only those that the last tokens did not have.

The float model reads a text; a predictor is trained on another one.  A neuron is its row of up (and of gate) and its column of
down, in INT8.  Nothing is read from a disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.bench.report import Column, Row, table_of
from edge_llm.errors import UsageError
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.operations.arithmetic import apply_float, soft_cap
from edge_llm.operations.base import ApplyLinear, FloatLinear
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.quant.predictor import Guessed, Predictor, train
from edge_llm.quant.quality import Quality, Tally, log_softmax
from edge_llm.schemes.neurons import rounded_rows, runs_of

Windows = Sequence[Sequence[int]]
"""Texts as token ids, each read from an empty context on."""
RANK_SHARE = 0.25
"""Of the hidden size: the rank of predictors where none is asked for."""


@dataclass(frozen=True)
class Neurons:
    """The MLP of a layer: ``first`` decides which of ``count`` neurons are active, ``down`` reads them."""

    first: Linear
    down: Linear
    count: int

    @property
    def rows(self) -> int:
        """Rows and columns of a neuron: up and down, or gate, up and down; those beside ``down`` come first."""
        return 1 + self.first.rows // self.count


def neurons_of(layer: Layer) -> Neurons | None:
    """Those of ``layer``; None where its MLP does not end in ReLU."""
    for one in layer.operations:
        if one.zeroes and (writer := layer.writer(one.reads, one)) is not None and (readers := layer.multipliers(one)):
            return Neurons(layer.linears_of(writer)[0], readers[0], one.write_width)
    return None


@dataclass(frozen=True)
class Seen:
    """What the rows of a text activated in one layer."""

    neurons: Neurons
    inputs: list[np.ndarray]
    """What `Neurons.first` read, float32 [T, K] of each text."""
    active: list[np.ndarray]
    """bool [T, count]: in INT8 not 0."""


def watch(model: FloatModel, windows: Windows) -> dict[int, Seen]:
    """What ``windows`` activate in each layer of ``model`` with ReLU, by the layer.  Raises `UsageError` where it has none."""
    found = {index: one for index, layer in enumerate(model.decoder.layers) if (one := neurons_of(layer)) is not None}
    if not found:
        raise UsageError("the model has no ReLU in its MLPs, so all of its neurons are active", param="model")
    tables, seen = RopeTables(max(map(len, windows))), {index: Seen(one, [], []) for index, one in found.items()}
    for ids in windows:
        x = model.embedding[np.asarray(ids)]
        for index, (layer, weights) in enumerate(zip(model.decoder.layers, model.layers, strict=True)):
            read: dict[str, np.ndarray] = {}
            x = layer_forward(x, layer, weights, tables, observe=read.__setitem__)
            if index in seen:
                to = seen[index]
                to.inputs.append(read[to.neurons.first.name])
                to.active.append(rounded_rows(read[to.neurons.down.name])[0] != 0)
    return seen


def predictors(model: FloatModel, seen: dict[int, Seen], rank: int, recall: float) -> dict[int, Predictor]:
    """A predictor for each layer, trained on what was ``seen``."""
    return {
        index: train(
            np.concatenate(one.inputs), model.layers[index].linears[one.neurons.first.name].weight[: one.neurons.count],
            np.concatenate(one.active), rank, recall,
        )
        for index, one in seen.items()
    }  # fmt: skip


def quality(model: FloatModel, guessing: dict[int, Predictor], windows: Windows) -> Quality:
    """How near the model is to itself when neurons that nobody guessed are lost."""
    tally, tables = Tally(), RopeTables(max(map(len, windows)))
    for ids in windows:
        logits = [soft_cap(_states(model, ids, tables, one) @ model.output.T, model.decoder.cap) for one in (guessing, {})]
        ours, theirs = (log_softmax(one[:-1]) for one in logits)
        tally.add(np.asarray(ids[1:]), ours, theirs)
    return tally.quality()


def _states(model: FloatModel, ids: Sequence[int], tables: RopeTables, guessing: dict[int, Predictor]) -> np.ndarray:
    x = model.embedding[np.asarray(ids)]
    for index, (layer, weights) in enumerate(zip(model.decoder.layers, model.layers, strict=True)):
        apply = _only(neurons_of(layer), guessing[index]) if index in guessing else None
        x = layer_forward(x, layer, weights, tables, apply=apply)
    return model.decoder.norm.applied(x, model.final_norm)


def _only(neurons: Neurons | None, predictor: Predictor) -> ApplyLinear:
    """Products whose neurons are 0 where ``predictor`` does not name them."""

    def apply(linear: Any, weights: FloatLinear, x: np.ndarray) -> np.ndarray:
        y = apply_float(weights, x)
        if neurons is not None and linear.name == neurons.first.name:
            y[:, : neurons.count][~predictor.guess(x)] = 0
        return y

    return apply


# -- counting --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reads:
    """Of a token, in all layers together."""

    wanted: float = 0.0
    """Neurons that it wants."""
    missed: float = 0.0
    """Of these, how many the window does not have."""
    held: float = 0.0
    """Neurons in the window."""

    def __add__(self, other: Reads) -> Reads:
        return Reads(self.wanted + other.wanted, self.missed + other.missed, self.held + other.held)


def windowed(wanted: Sequence[np.ndarray], window: int) -> Reads:
    """Means over the tokens of texts, of which bool [T, F] says what each wants, of one layer.

    What one of the last ``window`` tokens wanted is in memory; the first tokens of a text, whose window is short, do not count.
    """
    found, tokens = Reads(), 0
    for one in wanted:
        last = np.full(one.shape[1], -1 - window)
        for now, row in enumerate(one):
            there = now - last <= window
            if now >= window:
                found += Reads(int(row.sum()), int((row & ~there).sum()), int(there.sum()))
                tokens += 1
            last[row] = now
    tokens = max(1, tokens)
    return Reads(found.wanted / tokens, found.missed / tokens, found.held / tokens)


def in_runs(wanted: Sequence[np.ndarray], run: int) -> list[np.ndarray]:
    """The same of runs of ``run`` neurons, which are read together."""
    starts = np.arange(0, wanted[0].shape[1], run)
    return [np.logical_or.reduceat(one, starts, axis=1) for one in wanted]


def rows(model: FloatModel, text: Windows, calibration: Windows, lengths: Sequence[int], rank: int, recall: float) -> list[Row]:
    """A row for each way to read the neurons of ``text``, predictors being trained on ``calibration``.

    Raises `UsageError` for a window (one of ``lengths``, in tokens) that no text is longer than.
    """
    window, longest = max(lengths), max(map(len, text))
    if window >= longest:
        raise UsageError(f"--windows must be below the {longest} tokens of the longest text, not `{window}`", param="windows")
    guessing = predictors(model, watch(model, calibration), rank, recall)
    seen = watch(model, text)
    guessed = {index: [guessing[index].guess(x) for x in one.inputs] for index, one in seen.items()}
    named = np.concatenate([one.ravel() for index in seen for one in guessed[index]])
    right = Guessed.of(named, np.concatenate([one.ravel() for index in seen for one in seen[index].active]))
    lost = quality(model, guessing, text)
    beside = {
        "rank": rank, "recall": right.recall, "precision": right.precision, "mean_kl": lost.mean_kl,
        "predictor_bytes": sum(one.nbytes for one in guessing.values()),
    }  # fmt: skip
    active = {index: one.active for index, one in seen.items()}
    return [*_exact(seen, active, lengths), *({**row, **beside} for row in _predicted(seen, guessed, lengths))]


def _exact(seen: dict[int, Seen], active: dict[int, list[np.ndarray]], lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Up (and gate) stay in memory, and say which columns of down are wanted."""
    whole = sum(one.neurons.count * one.neurons.rows * one.neurons.down.rows for one in seen.values())
    beside = sum(one.neurons.count * (one.neurons.rows - 1) * one.neurons.down.rows for one in seen.values())
    yield _row("dense", 0, whole, len(seen), whole, whole, Reads())
    for window in (0, *lengths):
        yield _ways("exact", seen, active, window, columns=True, beside=beside, whole=whole)
        runs = {index: in_runs(one, runs_of(seen[index].neurons.down).neurons) for index, one in active.items()}
        yield _ways("exact, in pages", seen, runs, window, columns=True, beside=beside, whole=whole, pages=True)


def _predicted(seen: dict[int, Seen], guessed: dict[int, list[np.ndarray]], lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Nothing of the MLP stays, and a guessed neuron is read row by row, or in one piece."""
    whole = sum(one.neurons.count * one.neurons.rows * one.neurons.down.rows for one in seen.values())
    for window in (0, *lengths):
        for bundled in (False, True):
            yield _ways("predicted", seen, guessed, window, columns=False, beside=0, whole=whole, bundled=bundled)


def _ways(
    way: str,
    seen: dict[int, Seen],
    wanted: dict[int, list[np.ndarray]],
    window: int,
    *,
    columns: bool,
    beside: int,
    whole: int,
    bundled: bool = False,
    pages: bool = False,
) -> dict[str, Any]:
    """The row of a ``way`` to read what is ``wanted``: columns of down alone or whole neurons, ``beside`` what always stays."""
    read = held = count = 0.0
    total = Reads()
    for index, one in seen.items():
        found = windowed(wanted[index], window)
        width = one.neurons.down.rows
        piece = runs_of(one.neurons.down).nbytes if pages else width * (1 if columns else one.neurons.rows)
        read, held = read + found.missed * piece, held + found.held * piece
        count += found.missed * (1 if columns or bundled else one.neurons.rows)
        total += found
    name = f"{way}{', window' if window else ''}{', bundled' if bundled else ''}"
    return _row(name, window, read, count, beside + held, whole, total)


def _row(way: str, window: int, read: float, count: float, held: float, whole: float, found: Reads) -> dict[str, Any]:
    return {
        "way": way,
        "window": window,
        "bytes_per_token": read,
        "dense_share": read / whole,
        "reads_per_token": count,
        "bytes_per_read": read / count if count else None,
        "held_bytes": held,
        "held_share": held / whole,
        "hit_rate": 1 - found.missed / found.wanted if window and found.wanted else None,
        "recall": None,
        "precision": None,
        "mean_kl": None,
    }


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


COLUMNS = (
    Column("way", lambda row: row["way"], right=False),
    Column("window", lambda row: str(row["window"] or "")),
    Column("read a token", lambda row: f"{row['bytes_per_token'] / 1024:.1f} KiB"),
    Column("of dense", lambda row: _share(row["dense_share"])),
    Column("reads", lambda row: f"{row['reads_per_token']:.0f}"),
    Column("bytes a read", lambda row: "" if row["bytes_per_read"] is None else f"{row['bytes_per_read']:.0f}"),
    Column("in memory", lambda row: _share(row["held_share"])),
    Column("hits", lambda row: _share(row["hit_rate"])),
    Column("recall", lambda row: _share(row["recall"])),
    Column("precision", lambda row: _share(row["precision"])),
    Column("KL", lambda row: "" if row["mean_kl"] is None else f"{row['mean_kl']:.4f}"),
)


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    return table_of(rows, COLUMNS)
