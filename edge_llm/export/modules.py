"""The modules of a family's checkpoint out of the linears of its description: `edge_llm.models.weights` backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from edge_llm.errors import UnsupportedModel
from edge_llm.export.forms import Form
from edge_llm.export.linears import Made
from edge_llm.models.weights import arranged
from edge_llm.operations.base import Gain
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import SourceRows


@dataclass(frozen=True)
class Module:
    """A module of the checkpoint."""

    name: str
    form: Form
    bias: np.ndarray | None
    """float32 [N]."""


@dataclass(frozen=True)
class _Rows:
    """Rows of a module, from ``first`` on."""

    first: int
    form: Form
    bias: np.ndarray | None


def modules_of(layer: Layer, made: Mapping[str, Made]) -> Iterator[Module]:
    """The modules of ``layer``, whose linears are ``made``.

    Raises `UnsupportedModel` where some rows of a module are in another form than the rest.
    """
    found: dict[str, list[_Rows]] = {}
    for linear in layer.linears:
        start, one = 0, made[linear.name]
        for part in linear.sources:
            found.setdefault(layer.prefix + part.source, []).append(_rows_of(one, start, part))
            start += part.count
    for name, rows in found.items():
        first, *more = sorted(rows, key=lambda one: one.first)
        if any(one.form.kind != first.form.kind for one in more):
            raise UnsupportedModel(f"`{name}` has rows in more than one form, which a module of the format has not")
        biases = [one.bias for one in (first, *more)]
        bias = np.concatenate([one for one in biases if one is not None]) if any(one is not None for one in biases) else None
        yield Module(name, first.form.stacked([one.form for one in more]) if more else first.form, bias)


def gain_of(gain: Gain, values: np.ndarray) -> np.ndarray:
    """The tensor float32 [K] of the checkpoint of which ``values`` are ``(tensor + plus) * factor``."""
    found = values / np.float32(gain.factor) if gain.factor != 1 else values
    return np.asarray(found - np.float32(gain.plus) if gain.plus else found, np.float32)


def _rows_of(made: Made, start: int, part: SourceRows) -> _Rows:
    """The rows of ``part``, which begin at ``start`` of the linear that is ``made``, in the module's own order."""
    alone = SourceRows(part.source, part.count, head=part.head, pairs=part.pairs)
    order = np.empty(part.count, np.int64)
    order[arranged(np.arange(part.count), alone)] = np.arange(part.count)
    bias = None if made.bias is None else made.bias[start + order] / np.float32(part.factor)
    return _Rows(part.first, made.form.rows(start + order, part.factor), bias)
