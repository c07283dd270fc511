"""What a choice of shadows does to the predictions: calibration text through the INT8 model, several choices at once.

The float source is read a layer at a time, each layer is quantized in the ways that any choice asks for, and the tokens of
every choice go through it by the host's own subgraphs, INT8 keys and values included.  So it measures the numbers that a
bundle would give, and holds one layer.  Choices that agree on the first layers go through these as one, and have one state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

import numpy as np

from edge_llm.config import DEFAULT_SCHEME
from edge_llm.convert.parallel import core_count, workers
from edge_llm.convert.survey import Survey
from edge_llm.convert.turns import quantizable
from edge_llm.devices.base import Rows
from edge_llm.devices.host import HostDevice
from edge_llm.devices.kv_pages import PagedKV
from edge_llm.devices.model import model_widths
from edge_llm.errors import NumericError
from edge_llm.formats.layout import KEY_OFFSET
from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator, pages_for
from edge_llm.kv.sequence import SequencePages
from edge_llm.models.layer import HIDDEN, Decoder, Linear
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import FloatLinear, LayerWeights, WeightSource, read_final_norm, read_output
from edge_llm.progress import CountProgress
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.turning import turned_columns
from edge_llm.runner.base import Segment
from edge_llm.runner.rows import pack
from edge_llm.schemes import BlockWeights, Weight, scheme_of
from edge_llm.subgraphs.placement import HOST, embedding_part, head_part, place
from edge_llm.subgraphs.shelf import SubgraphShelf
from kernels import ThreadPool
from kernels.floats import divergences, exp64, log64, product, softmax_sums

Choice = Mapping[str, Treatment]
"""The treatment of every linear."""
Measure = Callable[[str, Sequence[Choice]], list[float]]
"""The loss of each of some choices in percent of perplexity; told the name of the stage.

Choices come with ever more shadows.  Where the first is within the budget, those between it and the last may be infinite.
"""
Made = Mapping[str, Mapping[str, np.ndarray]]
"""The arrays of linears that are quantized already, by the linears' names in a layer."""
NOTHING_MADE: Made = {}
WORST_DIVERGENCE = 100.0
"""Nats of KL; a larger divergence counts as this."""
MOST_ROWS = 2**16
"""Hidden states that all choices of `losses` have together: 32 choices go through the whole calibration text, more through
some of its sequences."""
_BLOCK_LOGITS = 2**22
"""Logits whose divergences are summed at a time."""
_BLOCKS = 4
"""Such blocks in a product: each pass over the output matrix costs its memory."""


def losses(
    source: WeightSource,
    decoder: Decoder,
    survey: Survey,
    choices: Sequence[Choice],
    enough: float,
    progress: CountProgress,
) -> list[float]:
    """What INT8 costs with each of ``choices``, in percent of perplexity: exp(mean KL(float || INT8)) - 1.

    Where the first costs at most ``enough``, those between the first and the last may be left unmeasured: infinity.

    That is the rise to expect on text that the float model predicts well.  The rise on the calibration text itself has the
    same mean there, but an error of sqrt(2 KL / tokens), often more than the budget.
    """
    survey = survey.of_some(MOST_ROWS // len(choices))
    with workers() as pool:
        trial = Trial(decoder, survey, choices)
        for index in range(len(decoder.layers)):
            progress(index, len(decoder.layers))
            weights = survey.folded_layer(source, decoder, index, pool)
            ready = quantizable(weights, decoder.layers[index], pool)
            trial.run_layer(index, LayerWeights(ready, weights.gains), pool)
        found = trial.compare(read_output(source, decoder), read_final_norm(source, decoder), enough, pool)
        progress(len(decoder.layers), len(decoder.layers))
    return found


class Trial:
    """The hidden states of every choice, between two layers."""

    def __init__(self, decoder: Decoder, survey: Survey, choices: Sequence[Choice]) -> None:
        lengths = [len(ids) for ids in survey.sequences]
        self._decoder = decoder
        self._survey = survey
        self._choices = choices
        self._device = HostDevice(core_count())
        self._pool = ThreadPool(core_count())
        build = partial(self._device.build, tables=RopeTables(max(lengths)))
        widths = model_widths(decoder, self._device.placement)
        self._shelf = SubgraphShelf(build, widths)
        self._layer_parts = place(decoder, HOST)
        self._head = head_part(decoder, HOST)
        room = PAGE_TOKENS * sum(pages_for(length) for length in lengths)
        # a layer's keys are not needed after it, so all layers with the same attention use one array and its page numbers
        pages = {attention: PagedKV((attention,), room).layers[0] for attention in decoder.attentions}
        self._pages = [pages[attention] for attention in decoder.attentions]
        allocator = PageAllocator(pages_for(room))
        segments = []
        for ids in survey.sequences:
            sequence = SequencePages(allocator)
            sequence.reserve(len(ids))
            segments.append(Segment(sequence, ids.tolist()))
        (chunk,) = pack(segments, (survey.tokens,))
        self._rows = chunk.rows
        self._buffers = {name: np.zeros((survey.tokens, width), np.float32) for name, width in widths.items()}
        embedded = np.concatenate(survey.embedded)
        by_output = {id(choice["output"]): choice for choice in choices}
        begun = {output: self._embed(embedded, choice) for output, choice in by_output.items()}
        self._states = [begun[id(choice["output"])] for choice in choices]
        """Of every choice float32 [tokens, hidden]; one array for those that have treated all the same so far."""

    def _embed(self, embedded: np.ndarray, choice: Choice) -> np.ndarray:
        """The embeddings float32 [tokens, hidden] as the bundle will have them; codes are rounded here, and not fitted."""
        of_output = choice["output"]
        linear = replace(self._decoder.table, scheme=of_output.scheme if self._decoder.tied else DEFAULT_SCHEME)
        hot = of_output.hot if self._decoder.tied else np.empty(0, np.int32)
        arrays = scheme_of(linear).convert(turned_columns(embedded, linear.turn), hot, "the embedding")
        table = _open(linear, arrays, None, of_output)
        hidden = np.empty_like(embedded)
        rows = replace(self._rows, tokens=np.arange(len(embedded)))
        look_up = self._shelf.get(embedding_part(self._decoder, HOST), rows.static)
        look_up(BlockWeights({"embedding": table}, {}), {HIDDEN: hidden}, rows, None)
        return hidden

    def position(self) -> list[np.ndarray]:
        """The states of every choice float32 [tokens, hidden], for `go_on`."""
        return self._states

    def go_on(self, position: list[np.ndarray]) -> None:
        """Go on from a `position`."""
        self._states = position

    def run_layer(self, index: int, weights: LayerWeights, pool: Executor, made: Made = NOTHING_MADE) -> None:
        """Carry the states of every choice through layer ``index`` with the float ``weights``; some linears are ``made``.

        The linears among the ``weights`` are `quantizable`.
        """
        layer, prefix = self._decoder.layers[index], f"layers.{index}."
        groups = self._alike([prefix + linear.name for linear in layer.linears])
        choices = [self._choices[group[0]] for group in groups]
        linears = self._linears(prefix, layer.linears, weights.linears, choices, pool, made)
        gains = {**weights.gains, KEY_OFFSET: self._survey.key_offsets[index]}
        parts = [self._shelf.get(part, self._rows.static) for part in self._layer_parts[index]]
        before = list(self._states)
        left = Counter(id(before[group[0]]) for group in groups)
        for number, group in enumerate(groups):
            state = before[group[0]]
            left[id(state)] -= 1
            state = state.copy() if left[id(state)] else state  # the last group that begins with an array overwrites it
            block = BlockWeights({part: made[number] for part, made in linears.items()}, gains)
            buffers = {**self._buffers, "hidden": state}
            for part in parts:
                part(block, buffers, self._rows, self._pages[index])
            for choice in group:
                self._states[choice] = state

    def _alike(self, names: Sequence[str]) -> list[list[int]]:
        """The numbers of the choices, together where they have one state and treat the linears ``names`` the same."""
        found: dict[tuple[int, ...], list[int]] = {}
        for number, (state, choice) in enumerate(zip(self._states, self._choices, strict=True)):
            found.setdefault((id(state), *(id(choice[name]) for name in names)), []).append(number)
        return list(found.values())

    def _linears(
        self,
        prefix: str,
        linears: Sequence[Linear],
        weights: Mapping[str, FloatLinear],
        choices: Sequence[Choice],
        pool: Executor,
        already: Made = NOTHING_MADE,
    ) -> dict[str, list[Weight]]:
        """Of each linear that of each of ``choices``; the same arrays where scheme and hot channels are the same.

        ``prefix`` stands before the linears' names in a choice.
        """
        treatments = {linear.name: [choice[prefix + linear.name] for choice in choices] for linear in linears}
        kinds = {(linear, _kind(treatment)): treatment for linear in linears for treatment in treatments[linear.name]}

        def convert(linear: Linear, treatment: Treatment) -> Mapping[str, np.ndarray]:
            if linear.name in already:
                return already[linear.name]
            scheme = scheme_of(replace(linear, scheme=treatment.scheme))
            return scheme.convert(weights[linear.name].weight, treatment.hot, prefix + linear.name)

        made = dict(zip(kinds, pool.map(convert, [linear for linear, _ in kinds], kinds.values()), strict=True))

        def opened(linear: Linear, treatment: Treatment) -> Weight:
            arrays = made[linear, _kind(treatment)]
            return _open(replace(linear, scheme=treatment.scheme), arrays, weights[linear.name].bias, treatment)

        return {linear.name: [opened(linear, one) for one in treatments[linear.name]] for linear in linears}

    def compare(
        self, output: np.ndarray, gain: np.ndarray, enough: float, pool: Executor, made: Made = NOTHING_MADE
    ) -> list[float]:
        """The loss of every choice; ``output`` float32 [V, hidden] (folded in place), ``gain`` of the last norm.

        The ``output`` of a single choice may be ``made``.  See `losses` about ``enough``.
        """
        fold = self._survey.output_fold
        output *= fold
        ready = FloatLinear(turned_columns(output, self._decoder.output.turn))
        opened = self._linears("", [self._decoder.output], {"output": ready}, self._choices, pool, made)["output"]
        heads = [BlockWeights({"output": one}, {"final_norm": gain / fold}) for one in opened]
        states = np.concatenate(self._survey.states) / fold
        run_head = self._shelf.get(self._head, self._rows.static)

        def divergences_of(rows: np.ndarray, choices: Sequence[int]) -> np.ndarray:
            """The divergence in every block of ``rows`` from each of ``choices``: float64 [blocks, choices]."""
            wanted = product(states[rows], output, self._pool)
            wanted_shift = _softmax_shift(wanted, self._pool)
            theirs = logits[: len(rows)]
            found = []
            for number in choices:
                run_head(heads[number], {"hidden": self._states[number][rows], "logits": theirs}, self._part(rows), None)
                shift = _softmax_shift(theirs, self._pool)
                found.append(divergences(wanted, wanted_shift, theirs, shift, size, self._pool))
            return np.transpose(found)

        size = max(1, _BLOCK_LOGITS // len(output))
        step = _BLOCKS * size
        logits = np.empty((min(step, len(states)), len(output)), np.float32)
        groups = np.split(np.arange(len(states)), range(step, len(states), step))
        comparison = _Comparison(len(heads), groups, divergences_of)
        comparison.measure_as_needed(enough)
        return comparison.losses()

    def _part(self, at: np.ndarray) -> Rows:
        rows = self._rows
        return replace(
            rows, tokens=rows.tokens[at], sequence=rows.sequence[at], position=rows.position[at], slots=rows.slots[at]
        )


class _Comparison:
    """The divergences from some choices in every block of rows, measured a group of blocks at a time."""

    def __init__(
        self, choices: int, groups: Sequence[np.ndarray], divergences_of: Callable[[np.ndarray, Sequence[int]], np.ndarray]
    ) -> None:
        self._choices = range(choices)
        self._groups = groups
        self._divergences_of = divergences_of
        self._found: list[np.ndarray] = []
        """Of every group float64 [blocks, choices], 0 where nothing is measured."""
        self._unmeasured: set[int] = set()

    def measure_as_needed(self, enough: float) -> None:
        """Measure the first choice, the last, and those between unless the first costs at most ``enough``.

        A sweep over the groups costs a product of the float model.  So the first group says what is likely to be needed, and
        only where it was wrong there is a second one.
        """
        ends = {self._choices[0], self._choices[-1]}
        between = set(self._choices) - ends
        start, others = self._groups[:1], self._groups[1:]
        self._found = [self._measure(rows, ends) for rows in start]
        in_one_sweep = self._loss(0) > enough
        self._found += [self._measure(rows, ends | between if in_one_sweep else ends) for rows in others]
        if not between or self._loss(0) <= enough:
            self._unmeasured = between
        else:
            for number, rows in enumerate(start if in_one_sweep else self._groups):
                self._found[number] += self._measure(rows, between)

    def _measure(self, rows: np.ndarray, choices: set[int]) -> np.ndarray:
        wanted = sorted(choices)
        found = self._divergences_of(rows, wanted)
        every = np.zeros((len(found), len(self._choices)))
        every[:, wanted] = found
        return every

    def losses(self) -> list[float]:
        """The loss of every choice in percent of perplexity; infinity where it was not measured."""
        return [math.inf if number in self._unmeasured else self._loss(number) for number in self._choices]

    def _loss(self, choice: int) -> float:
        """In the groups that were measured."""
        rows = sum(len(group) for group in self._groups[: len(self._found)])
        return _percent(float(np.concatenate(self._found).sum(axis=0)[choice]) / rows)


def _percent(divergence: float) -> float:
    """The rise of perplexity that a mean KL ``divergence`` stands for; raises `NumericError` if it is not a number."""
    if not math.isfinite(divergence):
        raise NumericError("the predictions on the calibration text are not numbers; the source's weights are damaged")
    return 100.0 * (float(exp64(min(max(0.0, divergence), WORST_DIVERGENCE))) - 1.0)


def _kind(treatment: Treatment) -> tuple[str, bytes]:
    return treatment.scheme, treatment.hot.tobytes()


def _open(linear: Linear, arrays: Mapping[str, np.ndarray], bias: np.ndarray | None, treatment: Treatment) -> Weight:
    found = arrays if bias is None else {**arrays, "bias": bias}
    scheme = scheme_of(linear)
    return scheme.open(linear, found, scheme.facts_of(treatment))


def _softmax_shift(logits: np.ndarray, pool: ThreadPool) -> np.ndarray:
    """What the log-probabilities of ``logits`` [n, vocab] are less by: float32 [n, 2], one after the other."""
    largest, sums = softmax_sums(logits, pool)
    return np.stack([largest, log64(sums).astype(np.float32)], axis=1)
