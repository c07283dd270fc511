"""What a bundle says of a text that nothing was fitted to, measured while it is written: beside what the float model says.

The tokens go through every layer twice, by the float weights and by the quantized ones in the host's own subgraphs, INT8 keys
and values included.  So the figures are those of the bundle, except that a tied 4-bit embedding is rounded here and fitted
there.  One layer is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

import numpy as np

from edge_llm.config import DEFAULT_SCHEME, ModelConfig
from edge_llm.convert.calibrate import HELD_OUT_TEXT, calibration_sequences, read_text
from edge_llm.convert.parallel import core_count
from edge_llm.convert.position import Arrays, Position
from edge_llm.convert.survey import Survey
from edge_llm.devices.base import Rows
from edge_llm.devices.host import HostDevice
from edge_llm.devices.kv_pages import PagedKV
from edge_llm.devices.model import model_widths
from edge_llm.errors import NumericError, UsageError
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.floats import product
from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator, pages_for
from edge_llm.kv.sequence import SequencePages
from edge_llm.kv.states import SequenceStates, StateSlots
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.reading import Reading, pooled
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import WeightSource, read_embedding
from edge_llm.operations.arithmetic import SAME_BITS, soft_cap
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.base import HIDDEN, FloatLinear, LayerWeights
from edge_llm.operations.linear import Linear
from edge_llm.quant.channels import NO_CHANNELS
from edge_llm.quant.quality import BLOCK_LOGITS, Closeness, Quality, Tally, closeness, log_softmax
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.turning import turned_columns
from edge_llm.runner.base import Segment
from edge_llm.runner.numeric import numeric_errors
from edge_llm.runner.rows import pack
from edge_llm.schemes import BlockWeights, Weight, scheme_of
from edge_llm.subgraphs.ops import buffer_widths
from edge_llm.subgraphs.placement import HOST, embedding_part, head_part, place
from edge_llm.subgraphs.shelf import SubgraphShelf
from edge_llm.text.tokenizer import Tokenizer

TOKENS = 1024
"""Of the held-out text; some more tell the KL better, and every import pays for them."""


def held_out_texts(tokenizer: Tokenizer, config: ModelConfig) -> list[np.ndarray]:
    """What a bundle of any model is measured on: token ids int64 [T] of short texts for an encoder."""
    if not describe(config).is_encoder:
        return held_out_sequences(tokenizer, config)
    try:
        return calibration_sequences(read_text(HELD_OUT_TEXT)[0], tokenizer, config, TOKENS)
    except UsageError:
        return []


def held_out_sequences(tokenizer: Tokenizer, config: ModelConfig) -> list[np.ndarray]:
    """Token ids int64 [T] of windows of the text that comes with us; none where the model's vocabulary has no tokens for it."""
    if describe(config).is_encoder:  # it predicts no token
        return []
    try:
        found = calibration_sequences(read_text(HELD_OUT_TEXT)[0], tokenizer, config, TOKENS)
    except UsageError:
        return []
    return [ids for ids in found if len(ids) > 1]


class Trial:
    """The held-out sequences on their way through the layers that are written."""

    def __init__(
        self,
        source: WeightSource,
        decoder: Decoder,
        sequences: Sequence[np.ndarray],
        survey: Survey,
        kept: Mapping[str, Treatment],
    ) -> None:
        """``decoder`` has the weight schemes of what is ``kept``."""
        lengths = [len(ids) for ids in sequences]
        self._decoder, self._sequences, self._survey, self._kept = decoder, sequences, survey, kept
        self._pool = ThreadPool(core_count())
        device = HostDevice(core_count())
        self._tables = RopeTables(max(lengths))
        widths = model_widths(decoder, device.placement)
        self._shelf = SubgraphShelf(partial(device.build, tables=self._tables), widths)
        self._layer_parts = place(decoder, HOST)
        room = PAGE_TOKENS * sum(pages_for(length) for length in lengths)
        # a layer's keys are not needed after it, so all layers with the same attention use one array and its page numbers
        keeps = [(layer.attention if layer.attentions else None, layer.fixed) for layer in decoder.layers]
        slots = StateSlots(1 + 2 * len(sequences))
        pages = {one: PagedKV((one[0],), room, fixed=(one[1],), slots=slots.count).layers[0] for one in dict.fromkeys(keeps)}
        self._pages = [pages[one] for one in keeps]
        allocator = PageAllocator(pages_for(room))
        segments = []
        for ids in sequences:
            states = SequenceStates(slots, PAGE_TOKENS, room)
            states.reserve()
            sequence = SequencePages(allocator, states)
            sequence.reserve(len(ids))
            segments.append(Segment(sequence, ids.tolist()))
        (chunk,) = pack(segments, (sum(lengths),))
        self._rows = chunk.rows
        self._buffers = {name: np.zeros((sum(lengths), width), np.float32) for name, width in widths.items()}
        embedding = read_embedding(source, decoder)
        embedded = [embedding[ids] for ids in sequences]
        self.position = Position(embedded, self._embed(np.concatenate(embedded)))
        """Where the sequences are; an import that goes on sets it."""

    def _embed(self, embedded: np.ndarray) -> np.ndarray:
        """The embeddings float32 [tokens, hidden] as the bundle will have them; codes are rounded here, and not fitted."""
        of_output = self._kept["output"]
        tied = self._decoder.tied
        linear = replace(self._decoder.table, scheme=of_output.scheme if tied else DEFAULT_SCHEME)
        hot = of_output.hot if tied else NO_CHANNELS
        arrays = scheme_of(linear).convert(turned_columns(embedded, linear.turn), hot, "the embedding")
        table = _opened(linear, arrays, None, of_output)
        hidden = np.empty_like(embedded)
        rows = replace(self._rows, tokens=np.arange(len(embedded)))
        look_up = self._shelf.get(embedding_part(self._decoder, HOST), rows.static)
        look_up(BlockWeights({"embedding": table}, {}), {HIDDEN: hidden}, rows, None)
        return hidden

    def run_layer(
        self,
        index: int,
        weights: LayerWeights,
        ready: Mapping[str, FloatLinear],
        made: Mapping[str, Arrays],
        pool: Executor,
    ) -> None:
        """Carry all states through layer ``index``.

        ``weights`` are its float weights, ``ready`` its linears as they are quantized, ``made`` what became of these.
        """
        layer, position = self._decoder.layers[index], self.position

        def opened(linear: Linear) -> Weight:
            return _opened(linear, made[linear.name], ready[linear.name].bias, self._kept[f"layers.{index}.{linear.name}"])

        linears = {linear.name: opened(linear) for linear in layer.linears}
        block = BlockWeights(linears, {**weights.gains, KEY_OFFSET: self._survey.key_offsets[index]})
        buffers = {**self._buffers, HIDDEN: position.bundle_states}
        with numeric_errors():
            for part in self._layer_parts[index]:
                self._shelf.get(part, self._rows.static)(block, buffers, self._rows, self._pages[index])

        def run_float(x: np.ndarray) -> np.ndarray:
            return layer_forward(x, layer, weights, self._tables, arithmetic=SAME_BITS)

        with np.errstate(all="ignore"):
            position.float_states = list(pool.map(run_float, position.float_states))

    def closeness(self, gain: np.ndarray) -> Closeness:
        """How near an encoder's vectors are to those of the float model, behind all layers and their pooling.

        ``gain`` holds the vectors of the last norm in the source.  What stands behind the pooling is in float in both.
        """
        decoder = self._decoder
        reading = decoder.reading or Reading()
        ends = np.cumsum([len(ids) for ids in self._sequences])[:-1]
        found = [
            np.stack([pooled(decoder.norm.applied(one, gain), reading.pooling) for one in states])
            for states in (np.split(self.position.bundle_states, ends), self.position.float_states)
        ]
        return closeness(*found)

    def quality(self, output: np.ndarray, gain: np.ndarray, made: Arrays) -> Quality:
        """How near the bundle is to the float model, behind all layers.

        ``output`` is the float matrix [V, hidden] of the source, ``gain`` the vectors of its last norm, and ``made`` what
        became of the matrix.  Raises `NumericError` where the predictions are no numbers.
        """
        decoder = self._decoder
        head = BlockWeights(
            {"output": _opened(decoder.output, made, None, self._kept["output"])},
            decoder.norm.named(gain / self._survey.output_fold),
        )
        part = head_part(decoder, HOST)
        run_head, widths = self._shelf.get(part, self._rows.static), buffer_widths((part,), decoder.hidden_size)
        widths = {name: width for name, width in widths.items() if name not in (HIDDEN, decoder.output.writes)}
        length = max(1, BLOCK_LOGITS // len(output))
        logits = np.empty((length, len(output)), np.float32)
        tally, first = Tally(), 0
        for ids, states in zip(self._sequences, self.position.float_states, strict=True):
            normed = decoder.norm.applied(states, gain)
            for start in range(0, len(ids) - 1, length):
                stop = min(start + length, len(ids) - 1)
                rows, ours = np.arange(first + start, first + stop), logits[: stop - start]
                given = {HIDDEN: self.position.bundle_states[rows], decoder.output.writes: ours}
                between = {name: np.empty((len(rows), width), np.float32) for name, width in widths.items()}
                with numeric_errors():
                    run_head(head, between | given, self._part(rows), None)
                theirs = product(normed[start:stop], output, self._pool)
                found, exact = (log_softmax(soft_cap(logits, decoder.cap, SAME_BITS)) for logits in (ours, theirs))
                tally.add(ids[start + 1 : stop + 1], found, exact)
            first += len(ids)
        quality = tally.quality()
        if not math.isfinite(quality.mean_kl):
            raise NumericError("the predictions on the held-out text are not numbers; the source's weights are damaged")
        return quality

    def _part(self, at: np.ndarray) -> Rows:
        rows = self._rows
        return replace(
            rows, tokens=rows.tokens[at], sequence=rows.sequence[at], position=rows.position[at], slots=rows.slots[at]
        )


def _opened(linear: Linear, arrays: Arrays, bias: np.ndarray | None, treatment: Treatment) -> Weight:
    found = arrays if bias is None else {**arrays, "bias": bias}
    scheme = scheme_of(linear)
    return scheme.open(linear, found, scheme.facts_of(treatment))
