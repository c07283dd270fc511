"""Calibration: a little text runs through the float model, layer by layer, and every linear's input is measured.

The text is the built-in one (varied prose, dialogue, lists, code, several languages), the user's, or the model's own
(`self_written`).  It becomes up to `MAX_SEQUENCES` sequences, spread evenly over the text, each begun as the model begins a
text, `MAX_TOKENS` together.  Codes of 4 bits are fitted to more of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import UsageError
from edge_llm.files import read_file
from edge_llm.kernels.floats import product
from edge_llm.models import describe
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables, rope_tables
from edge_llm.operations.arithmetic import SAME_BITS
from edge_llm.operations.base import ApplyLinear, FloatLinear, LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.questions import AnyLinear
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.text.tokenizer import Tokenizer

BUILTIN_TEXT = Path(__file__).parent / "calibration.txt"
MORE_TEXT = Path(__file__).parent / "calibration_more.txt"
"""What weights are fitted to beside it: they need more, and INT8 stays what it was."""
HELD_OUT_TEXT = Path(__file__).parent / "held_out.txt"
"""What nothing is fitted to: import measures on it, and models are compared on it."""
BY_MODEL = "self"
"""In place of a path: the model writes half of the text, the rest is the built-in one."""
PASSAGE_BREAK = "\n%%\n"
"""Line between passages; each is tokenized for itself."""
MAX_TEXT_BYTES = 16 * 2**20
MAX_SEQUENCES = 16
MAX_SEQUENCE_TOKENS = 256
ENCODED_TOKENS = 32
"""The same for encoders: texts are short, and their first and last token weigh much in what becomes of them."""
MAX_TOKENS = 2048


@dataclass(frozen=True)
class CalibrationText:
    """A text and its digest."""

    text: str
    digest: str
    more: str = ""
    """Text that weights are fitted to beside it."""
    by_model: bool = False
    """The model writes half of it itself, and finds beginnings here."""


def read_calibration(path: Path | str | None = None, *, coded: bool = False) -> CalibrationText:
    """The text in ``path`` (UTF-8), or the built-in one, for ``coded`` weights with more.

    Raises `UsageError` when it cannot serve.
    """
    by_model = path == BY_MODEL
    text, data = read_text(Path(path) if path and not by_model else BUILTIN_TEXT)
    more, more_data = read_text(MORE_TEXT) if coded and (by_model or path is None) else ("", b"")
    digest = f"sha256:{hashlib.sha256(data + more_data).hexdigest()}"
    return CalibrationText(text, f"{BY_MODEL} {digest}" if by_model else digest, more, by_model)


def read_text(path: Path) -> tuple[str, bytes]:
    """The text in ``path``, which has some, and its bytes.  Raises `UsageError`."""
    data = read_file(path, MAX_TEXT_BYTES, error=UsageError)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{path}` is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    if not text.strip():
        raise UsageError(f"`{path}` is empty; give some text like what the model will see")
    return text, data


def calibration_sequences(
    text: str, tokenizer: Tokenizer, config: ModelConfig, most_tokens: int = MAX_TOKENS
) -> list[np.ndarray]:
    """Token ids int64 [T] of the sequences that are run, about ``most_tokens`` together.

    Control tokens that the text spells are control tokens, as in rendered chats.
    """
    encodes = describe(config).is_encoder
    head, tail = tokenizer.frame if encodes else tokenizer.begun
    ids = [token for passage in text.split(PASSAGE_BREAK) for token in tokenizer.encode(passage, parse_special=True)]
    if not ids:
        raise UsageError("the calibration text has no tokens in this model's vocabulary; give another text")
    length = max(1, min(config.context, ENCODED_TOKENS if encodes else MAX_SEQUENCE_TOKENS) - len(head) - len(tail))
    windows = [ids[start : start + length] for start in range(0, len(ids), length)]
    if len(windows) > 1 and len(windows[-1]) < length:
        windows.pop()
    most = len(windows) if encodes else MAX_SEQUENCES * max(1, most_tokens // MAX_TOKENS)
    count = max(1, min(most, most_tokens // (length + len(head) + len(tail)), len(windows)))
    chosen = np.linspace(0, len(windows) - 1, count).round().astype(int)
    return [np.array([*head, *windows[index], *tail], np.int64) for index in chosen]


def some_of(sequences: Sequence[np.ndarray], most_tokens: int = MAX_TOKENS) -> list[np.ndarray]:
    """Some of ``sequences``, evenly spread, about ``most_tokens`` together."""
    tokens = sum(len(ids) for ids in sequences)
    return list(sequences[:: -(-tokens // most_tokens)])


@dataclass(frozen=True)
class LayerRun:
    """What a layer made of the sequences; rows are in their order."""

    states: list[np.ndarray]
    """Hidden states after it, float32 [T, hidden] of each sequence."""
    seen: dict[str, ChannelStatistics]
    """What each of its linears was given."""
    products: dict[str, np.ndarray]
    """Of each linear, its weight times some rows of that, float32 [rows, N], without bias."""


def run_layer(
    states: Sequence[np.ndarray],
    layer: Layer,
    weights: LayerWeights,
    tables: RopeTables,
    name: str,
    pool: Executor,
    every: int,
    multiply: ApplyLinear | None = None,
) -> LayerRun:
    """Run the layer ``name`` on every sequence's hidden states float32 [T, hidden]; keep every ``every``-th row's products.

    ``multiply`` makes products without bias where not by the float weights.
    """
    times = multiply or float_product

    def run(state: np.ndarray, start: int) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
        inputs: dict[str, np.ndarray] = {}
        products: dict[str, np.ndarray] = {}

        def apply(linear: AnyLinear, parts: FloatLinear, x: np.ndarray) -> np.ndarray:
            y = times(linear, parts, x)
            products[linear.name] = y[-start % every :: every].copy()
            return y if parts.bias is None else y + parts.bias

        # what overflows shows up as a non-finite input of the next linear, which the statistics refuse by name
        with np.errstate(all="ignore"):
            after = layer_forward(
                state, layer, weights, tables, None, inputs.__setitem__, apply=apply, arithmetic=SAME_BITS
            )
        return after, inputs, products

    starts = np.cumsum([0, *(len(state) for state in states)])[:-1]
    seen = {linear.name: ChannelStatistics(linear.columns, f"{name}.{linear.name}") for linear in layer.linears}
    after, kept = [], []
    for state, inputs, products in pool.map(run, states, starts.tolist()):
        after.append(state)
        kept.append(products)
        for part, x in inputs.items():
            seen[part].add(x)
    return LayerRun(after, seen, {part: np.concatenate([one[part] for one in kept]) for part in seen})


def float_product(_linear: AnyLinear, parts: FloatLinear, x: np.ndarray) -> np.ndarray:
    """x @ W.T, without bias."""
    return product(x, parts.weight)


OFFSET_CONTEXT = 4096
"""Positions over which the mean key is taken; a longer text is served, only with less gain."""


def key_offset(layer: Layer, weights: LayerWeights, seen: ChannelStatistics, context: int) -> np.ndarray:
    """The mean key after its rotation, float32 [kv heads, head_dim], over the calibration and all positions to ``context``.

    ``seen`` is what the layer's projection reads.

    A vector that is subtracted from every key of a head shifts all scores of a query by the same amount, which the
    softmax takes out again, so it may be subtracted before a key is quantized.  Keys have large means in slowly
    rotating channels; without them the INT8 step is finer (SageAttention: Zhang et al., 2024, arXiv 2410.02367, §4.2;
    on stories260k the KL of INT8 keys falls from 0.0025 to 0.0004).
    """
    attention, linear = layer.attention, weights.linears[layer.projection.name]
    rows = slice(attention.q_size, attention.q_size + attention.kv_size)
    keys = product(seen.rows()[~seen.sinks()], linear.weight[rows])
    if linear.bias is not None:
        keys += linear.bias[rows]
    cos, sin = rope_tables(attention.rope, min(context, OFFSET_CONTEXT))
    return attention.mean_key(keys, weights.gains, cos, sin)
