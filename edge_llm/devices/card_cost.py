"""How long a card takes, from its chip's law: launches, operations, bytes.  For simulation; the emulation runs in real time."""

from __future__ import annotations

from collections.abc import Iterable

from edge_llm.models.layer import Linear
from edge_llm.npu.chips import ChipLaw, MatmulRoute


def product_seconds(law: ChipLaw, route: MatmulRoute, rows: int, columns: int, outputs: int) -> float:
    """Seconds of one INT8 product on the card: launches, then the longer of multiplying and moving bytes."""
    columns, outputs = law.padded(columns, outputs)
    filled = -(-rows // law.row_tile) * law.row_tile
    operations = 2.0 * filled * columns * outputs
    result = 4 if route.exact else 2
    passes = 2 * route.launches - 1  # the product writes its result; every operator behind it reads and writes it
    moved = columns * outputs + rows * columns + passes * result * rows * outputs
    return route.launches * law.launch_seconds + max(
        operations / (law.int8_rate * law.rate_share), moved / (law.bandwidth * law.bandwidth_share)
    )


def copy_seconds(law: ChipLaw, nbytes: int) -> float:
    """Seconds of one copy between host and card."""
    return law.launch_seconds + nbytes / law.copy_rate


def linear_seconds(law: ChipLaw, route: MatmulRoute, rows: int, columns: int, outputs: int) -> float:
    """Seconds of a linear's task on the lane of the card: int8 rows in, product, float rows out."""
    result = 4 if route.exact else 2
    copies = copy_seconds(law, rows * columns) + copy_seconds(law, result * rows * outputs)
    return copies + product_seconds(law, route, rows, columns, outputs)


def together_seconds(law: ChipLaw, route: MatmulRoute, rows: int, linears: Iterable[Linear]) -> float:
    """Seconds of the products of ``linears`` where rows stay on the card and all are launched in one go."""
    alone = (product_seconds(law, route, rows, linear.columns, linear.rows) for linear in linears)
    return law.launch_seconds + sum(seconds - route.launches * law.launch_seconds for seconds in alone)


def card_costs(law: ChipLaw, route: MatmulRoute, linears: Iterable[Linear], lengths: Iterable[int]) -> dict[str, float]:
    """Seconds of the card task of every linear of a layer, by cost key ``part/rows``."""
    return {
        f"{linear.name}/{rows}": linear_seconds(law, route, rows, linear.columns, linear.rows)
        for rows in lengths
        for linear in linears
    }
