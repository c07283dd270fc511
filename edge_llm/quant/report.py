"""The shadows of a model as figures: how many channels stand out, what is kept of it, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm.config import FLOAT16, INT8
from edge_llm.quant.folding import Fold
from edge_llm.quant.profile import LinearProfile
from edge_llm.quant.shadow import NONE, SHADOWS, product_cost, shadow_cost


@dataclass(frozen=True)
class LinearShadow:
    """One linear [rows, columns] and the shadow that it keeps."""

    name: str
    rows: int
    columns: int
    shadow: str
    hot: int
    """Hot channels that are computed in float."""
    profile: LinearProfile | None
    """None where calibration did not see the linear (random weights)."""
    scheme: str = INT8
    """Its weight scheme."""

    @property
    def overflow(self) -> float:
        """Share of the input's values that are added back."""
        return self.profile.overflow if self.profile is not None and self.shadow != NONE else 0.0

    @property
    def outliers(self) -> int:
        """Channels that stand out, kept or not."""
        found = self.profile.outliers if self.profile is not None else None
        return self.hot if found is None else found

    @property
    def nbytes(self) -> int:
        """Memory beyond INT8: the hot channels' numbers, and weights in float16."""
        if self.scheme == FLOAT16:
            return self.rows * self.columns
        return self.hot * (4 + 2 * self.rows)

    @property
    def cost(self) -> float:
        """Predicted microseconds of one core per row, beyond the INT8 product."""
        if self.scheme == FLOAT16:
            return shadow_cost(self.rows, self.columns, self.columns, 0.0) - product_cost(self.rows, self.columns)
        return shadow_cost(self.rows, self.columns, self.hot, self.overflow)

    def to_fields(self) -> dict[str, Any]:
        """As `show --json` prints it."""
        fields = {
            "scheme": self.scheme,
            "shadow": self.shadow,
            "outlier_channels": self.outliers,
            "hot_channels": self.hot,
            "overflow": self.overflow,
            "bytes": self.nbytes,
            "cost_share": self.cost / product_cost(self.rows, self.columns),
        }
        profile = self.profile
        if profile is not None:
            fields |= {"error": profile.error, "error_without_shadow": profile.error_without_shadow}
            fields |= {"error_full": profile.error if profile.error_full is None else profile.error_full}
        return fields


def totals(linears: Iterable[LinearShadow]) -> dict[str, Any]:
    """The figures of several linears together; shares are of their channels, values and products."""
    linears = list(linears)
    kept = Counter(FLOAT16 if linear.scheme == FLOAT16 else linear.shadow for linear in linears)
    columns = sum(linear.columns for linear in linears)
    return {
        "linears": len(linears),
        **{shadow: kept[shadow] for shadow in SHADOWS},
        FLOAT16: kept[FLOAT16],
        "outlier_channels": sum(linear.outliers for linear in linears),
        "hot_channels": sum(linear.hot for linear in linears),
        "hot_share": sum(linear.hot for linear in linears) / columns,
        "overflow": sum(linear.overflow * linear.columns for linear in linears) / columns,
        "bytes": sum(linear.nbytes for linear in linears),
        "cost_share": sum(linear.cost for linear in linears)
        / sum(product_cost(linear.rows, linear.columns) for linear in linears),
    }


def fold_totals(folds: Mapping[str, Fold]) -> dict[str, dict[str, Any]]:
    """What was folded, by kind of place (qkv, keys, values, gate_up, products, output), and what it was worth.

    Errors are means over the layers, relative and squared, with outliers treated; None where folds were not searched for.
    """
    kinds: dict[str, list[Fold]] = {}
    for name, fold in folds.items():
        kinds.setdefault(name.rpartition(".")[2], []).append(fold)
    return {
        kind: {
            "places": len(found),
            "folded": sum(any(fold.powers) for fold in found),
            "spread": max(fold.spread for fold in found),
            "error": _mean([fold.error for fold in found]),
            "error_unfolded": _mean([fold.error_unfolded for fold in found]),
        }
        for kind, found in kinds.items()
    }


def mean_errors(linears: Sequence[LinearProfile]) -> dict[str, float | None]:
    """Means over ``linears`` behind turns: errors with scales of rows and with static ones, and what overflows the latter."""
    return {
        "error": _mean([one.error for one in linears]),
        "error_static": _mean([one.error_full for one in linears]),
        "overflow": _mean([one.overflow for one in linears]),
    }


def _mean(errors: Sequence[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return sum(known) / len(known) if known else None


def by_kind(linears: Iterable[LinearShadow]) -> Mapping[str, list[LinearShadow]]:
    """The linears of all layers together by what they are: qkv, o, gate_up, down, output."""
    kinds: dict[str, list[LinearShadow]] = {}
    for linear in linears:
        kinds.setdefault(linear.name.rpartition(".")[2], []).append(linear)
    return kinds
