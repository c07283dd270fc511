"""What an export costs: a text that nothing was fitted to, through the bundle's layers and those that are written.

Products are those of the bundle on the one side, and on the other those that the format means: rounded weights, and inputs
rounded as it says, in float32.  All else is in float32 on both.  Where the float model that the bundle was made of is there, it
is a third.  One layer is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_llm.convert.parallel import core_count
from edge_llm.export.linears import Made
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.floats import product
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import read_embedding, read_final_norm, read_layer, read_output
from edge_llm.opening.float_assembly import bundle_layer
from edge_llm.operations.arithmetic import soft_cap
from edge_llm.operations.base import FloatLinear, LayerWeights, unrounded
from edge_llm.operations.questions import AnyLinear
from edge_llm.quant.quality import BLOCK_LOGITS, Quality, Tally, log_softmax
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.tables import Table
from edge_llm.sources.base import Source

States = list[np.ndarray]
"""Of every sequence float32 [T, hidden]."""


@dataclass(frozen=True)
class Cost:
    """How near three models are to each other on ``tokens`` tokens."""

    to_model: Quality
    """The export beside the bundle."""
    to_float: Quality | None
    """The export beside the float model; None where that is not there."""
    model_to_float: Quality | None
    """The bundle beside the float model."""


class Trial:
    """The sequences on their way through the layers."""

    def __init__(
        self,
        decoder: Decoder,
        sequences: Sequence[np.ndarray],
        embedding: np.ndarray,
        written: np.ndarray,
        source: Source | None,
    ) -> None:
        """``embedding`` float32 [tokens of all sequences, hidden] is the bundle's, ``written`` that of the export."""
        self._decoder, self._sequences, self._source = decoder, sequences, source
        self._tables = RopeTables(max(len(ids) for ids in sequences))
        self._pool = ThreadPool(core_count())
        cuts = np.cumsum([len(ids) for ids in sequences])[:-1]
        self._model, self._export = (list(np.split(one, cuts)) for one in (embedding, written))
        self._float = self._begun(source) if source is not None else []

    def _begun(self, source: Source) -> States:
        embedding = read_embedding(source, describe(source.config))
        return [embedding[ids] for ids in self._sequences]

    def run_layer(self, index: int, block: BlockWeights, made: Mapping[str, Made]) -> None:
        """Carry all states through layer ``index``, which is ``block`` in the bundle and whose linears are ``made``."""
        layer, tables = self._decoder.layers[index], self._tables
        linears = {name: FloatLinear(one.form.floats, one.bias) for name, one in made.items()}

        def apply(linear: AnyLinear, weight: FloatLinear, x: np.ndarray) -> np.ndarray:
            y = product(np.ascontiguousarray(made[linear.name].form.input(x), np.float32), weight.weight, self._pool)
            return y if weight.bias is None else y + weight.bias

        weights = LayerWeights(linears, block.gains)
        self._export = [layer_forward(x, layer, weights, tables, apply=apply) for x in self._export]
        self._model = [bundle_layer(x, layer, block, tables, self._pool, None, unrounded) for x in self._model]
        if self._source is not None:
            own = describe(self._source.config).layers[index]
            exact = read_layer(self._source, own)
            self._float = [layer_forward(x, own, exact, tables) for x in self._float]

    def cost(self, gain: np.ndarray, output: Table, written: np.ndarray, factor: float) -> Cost:
        """Behind all layers: ``gain`` are the vectors of the last norm, ``output`` is the matrix of the bundle, ``written``
        [V, hidden] times ``factor`` that of the export."""
        to_model, to_float, model_to_float = Tally(), Tally(), Tally()
        source, decoder, norm = self._source, self._decoder, self._decoder.norm
        theirs = None if source is None else describe(source.config)
        exact = None if source is None or theirs is None else (read_final_norm(source, theirs), read_output(source, theirs))
        length = max(1, BLOCK_LOGITS // self._decoder.vocab_size)
        for number, ids in enumerate(self._sequences):
            for start in range(0, len(ids) - 1, length):
                some = slice(start, min(start + length, len(ids) - 1))
                targets = ids[some.start + 1 : some.stop + 1]
                export = self._logits(norm.applied(self._export[number][some], gain) * np.float32(factor), written)
                normed = np.ascontiguousarray(norm.applied(self._model[number][some], gain), np.float32)
                model = log_softmax(soft_cap(output.apply(normed, self._pool), decoder.cap))
                to_model.add(targets, export, model)
                if exact is not None and theirs is not None:
                    truth = self._logits(theirs.norm.applied(self._float[number][some], exact[0]), exact[1])
                    to_float.add(targets, export, truth)
                    model_to_float.add(targets, model, truth)
        if exact is None:
            return Cost(to_model.quality(), None, None)
        return Cost(to_model.quality(), to_float.quality(), model_to_float.quality())

    def _logits(self, states: np.ndarray, output: np.ndarray) -> np.ndarray:
        """The log-probabilities of ``states`` [T, hidden] by a matrix [V, hidden], whose rows are float32 a run at a time."""
        runs = [output[first : first + 8192].astype(np.float32) for first in range(0, len(output), 8192)]
        found = np.concatenate([states @ run.T for run in runs], axis=1)
        return log_softmax(soft_cap(found, self._decoder.cap))
