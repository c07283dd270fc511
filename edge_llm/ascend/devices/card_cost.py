"""How long a card takes, from its chip's law: launches, copies, operations, bytes.

For planning and simulation; the emulation runs in real time.  A step or a layer is reckoned for a card that does everything,
in float16 but for its products; hot channels are few and only count as launches.  It turns the inputs of linears, and no
queries and keys, whose scores are the same without (`edge_llm.ascend.devices.card.layers`).  Beside the CPU it gets rows that
are turned and quantized already, so that a linear's task has no turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edge_llm.ascend.npu.chips import ChipLaw, MatmulRoute, scales_rows
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.operations.norm import Norm

FLOAT16_BYTES, FLOAT32_BYTES = 2, 4
QUANTIZE_LAUNCHES = 1
HOT_LAUNCHES = 3
"""Gather the hot channels, multiply them, add; where a layer is turned no channel is hot."""
TURN_LAUNCHES = 2
"""Cast to float16, which the result of SwiGLU is already, and multiply by the matrix of a block."""
ROWS_LAUNCHES = 1
"""Multiply the product's rows by their scales, where the product does not."""
WIDEN_LAUNCHES = 1
"""Of what is added to the residual stream, unless the rows' scales do it."""
ATTENTION_LAUNCHES = 4
"""Part queries, keys and values, rotate, write the keys and values, attend."""
HEAD_NORM_LAUNCHES = 2


def product_seconds(law: ChipLaw, route: MatmulRoute, rows: int, columns: int, outputs: int) -> float:
    """Seconds of one INT8 product on the card, launches included."""
    return route.launches * law.launch_seconds + product_work(law, route, rows, columns, outputs)


def product_work(law: ChipLaw, route: MatmulRoute, rows: int, columns: int, outputs: int) -> float:
    """Seconds of the card itself for one INT8 product: the longer of multiplying and moving bytes."""
    columns, outputs = law.padded(columns, outputs)
    filled = -(-rows // law.row_tile) * law.row_tile
    operations = 2.0 * filled * columns * outputs
    result = 4 if route.exact else 2
    passes = 2 * route.launches - 1  # the product writes its result; every operator behind it reads and writes it
    moved = columns * outputs + rows * columns + passes * result * rows * outputs
    share = law.rate_share * (1.0 if rows >= law.fast_rows else law.slow_share)
    return max(operations / (law.int8_rate * share), _moving(law, moved))


def turn_seconds(law: ChipLaw, linear: Linear, rows: int) -> float:
    """Seconds in which a card turns ``rows`` inputs of ``linear``, launches included; 0 where nothing is turned."""
    return TURN_LAUNCHES * law.launch_seconds + turn_work(law, linear, rows) if linear.turn else 0.0


def turn_work(law: ChipLaw, linear: Linear, rows: int) -> float:
    """The same of the card itself: float16 [rows * K / p, p] times [p, p] for blocks of p channels, behind its cast."""
    if not linear.turn:
        return 0.0
    values, block = rows * linear.columns, linear.turn
    filled = -(-(values // block) // law.row_tile) * law.row_tile
    operations = 2.0 * filled * block * block
    multiplied = max(
        operations / (law.float16_rate * law.rate_share), _moving(law, FLOAT16_BYTES * (2 * values + block * block))
    )
    return multiplied + _moving(law, (FLOAT16_BYTES + FLOAT32_BYTES) * values)


def copy_seconds(law: ChipLaw, nbytes: int) -> float:
    """Seconds of one copy between host and card."""
    return law.copy_latency + nbytes / law.copy_rate


def linear_seconds(law: ChipLaw, route: MatmulRoute, rows: int, columns: int, outputs: int) -> float:
    """Seconds of a linear's task on the lane of the card: int8 rows in, product, float rows out, and the host hears of it."""
    result = 4 if route.exact else 2
    copies = copy_seconds(law, rows * columns) + copy_seconds(law, result * rows * outputs)
    return copies + product_seconds(law, route, rows, columns, outputs) + law.wait_seconds


def layer_seconds(law: ChipLaw, route: MatmulRoute, layer: Layer, rows: int, keys: int) -> float:
    """Seconds of a layer of ``rows`` rows that see ``keys`` keys, launched one operator after the other.

    The host runs ahead: what takes longer counts, launching or the work.
    """
    return max(launches(law, route, layer) * law.launch_seconds, _layer_work(law, route, layer, rows, keys))


def step_seconds(
    law: ChipLaw, route: MatmulRoute, layers: Sequence[Layer], output: Linear, rows: int, keys: int
) -> float:
    """Seconds of a whole step, from its tokens to its logits: one replay where the chip captures."""
    ends = copy_seconds(law, 64 * rows) + copy_seconds(law, 4 * rows * output.rows) + law.wait_seconds
    if not law.captures:
        head = linear_seconds(law, route, rows, output.columns, output.rows) + turn_seconds(law, output, rows)
        return ends + head + sum(layer_seconds(law, route, layer, rows, keys) for layer in layers)
    work = sum(_layer_work(law, route, layer, rows, keys) for layer in layers)
    head = product_work(law, route, rows, output.columns, output.rows) + turn_work(law, output, rows)
    return ends + law.replay_seconds + work + head


def card_costs(law: ChipLaw, route: MatmulRoute, linears: Iterable[Linear], lengths: Iterable[int]) -> dict[str, float]:
    """Seconds of the card task of every linear of a layer, by cost key ``part/rows``."""
    return {
        f"{linear.name}/{rows}": linear_seconds(law, route, rows, linear.columns, linear.rows)
        for rows in lengths
        for linear in linears
    }


def attention_work(law: ChipLaw, attention: Attention, rows: int, keys: int) -> float:
    """Seconds of the card itself: rotation, writing of keys and values, attention of ``rows`` queries to ``keys`` keys."""
    turned = 2 * rows * (attention.q_size + attention.kv_size)
    written = 2 * rows * attention.kv_size
    read = 2 * keys * attention.kv_size + 2 * rows * attention.q_size
    operations = 4.0 * rows * keys * attention.q_size
    attending = max(operations / (law.float16_rate * law.rate_share), _moving(law, FLOAT16_BYTES * read))
    return attending + _moving(law, FLOAT16_BYTES * (turned + written))


def _layer_work(law: ChipLaw, route: MatmulRoute, layer: Layer, rows: int, keys: int) -> float:
    return sum(_work(law, route, layer, operation, rows, keys) for operation in layer.operations)


def _work(law: ChipLaw, route: MatmulRoute, layer: Layer, operation: Operation, rows: int, keys: int) -> float:
    """Seconds of the card itself."""
    if operation.linears:
        return sum(_linear_work(law, route, linear, rows) for linear in layer.linears_of(operation))
    if operation.attentions:
        return attention_work(law, layer.attention, rows, keys)
    return _moving(law, FLOAT16_BYTES * rows * (operation.read_width + operation.write_width))


def _linear_work(law: ChipLaw, route: MatmulRoute, linear: Linear, rows: int) -> float:
    beside = rows * (3 * linear.columns + 3 * FLOAT16_BYTES * linear.rows)
    product = product_work(law, route, rows, linear.columns, linear.rows)
    return product + _moving(law, beside) + turn_work(law, linear, rows)


def launches(law: ChipLaw, route: MatmulRoute, layer: Layer) -> int:
    """Operators of ``layer`` on a card that does everything, for more rows than one."""

    def of(operation: Operation) -> int:
        linears = sum(_linear_launches(law, route, layer, linear) for linear in layer.linears_of(operation))
        attention = ATTENTION_LAUNCHES + HEAD_NORM_LAUNCHES * bool(layer.attention.q_norm) if operation.attentions else 0
        return linears + attention or 1

    return sum(map(of, layer.operations))


def _linear_launches(law: ChipLaw, route: MatmulRoute, layer: Layer, linear: Linear) -> int:
    writer = layer.writer(linear.reads, linear)
    kind = "" if writer is None else writer.KIND
    behind_swiglu = kind == GLU.KIND
    by_rows = bool(linear.turn) and scales_rows(law, behind_swiglu=behind_swiglu)
    behind = by_rows and not law.multiplies_rows
    hot = 0 if any(one.turn for one in layer.linears) else HOT_LAUNCHES
    around = (TURN_LAUNCHES - (kind != Norm.KIND)) if linear.turn else hot
    around += ROWS_LAUNCHES if behind else 0
    around += WIDEN_LAUNCHES if linear.adds and not behind else 0
    return route.launches + QUANTIZE_LAUNCHES + around


def _moving(law: ChipLaw, nbytes: float) -> float:
    """Seconds in which the card's memory gives or takes so many bytes."""
    return nbytes / (law.bandwidth * law.bandwidth_share)
