"""What families with experts are built of: sizes and routers out of a config.json, and the operations of a mixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_llm.errors import InvalidModel
from edge_llm.files import shown
from edge_llm.models.blocks import Shape, linear
from edge_llm.models.fields import MAX_EXPERTS, Fields
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.experts import Experts
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import SourceRows
from edge_llm.operations.router import Router
from edge_llm.operations.row_gate import RowGate

COUNT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
"""What config.json calls the number of experts."""


def read_count(raw: dict[str, Any]) -> int:
    """The number of experts of a layer."""
    key = next((key for key in COUNT_KEYS if raw.get(key) is not None), COUNT_KEYS[0])
    return Fields(raw).integer(key, 1, MAX_EXPERTS)


def read_used(raw: dict[str, Any], count: int) -> int:
    """The number of experts that a token goes to, of ``count``."""
    return Fields(raw).integer("num_experts_per_tok", 1, count)


def router(shape: Shape, count: int, used: int, *, module: str = "mlp.gate", **more: Any) -> Router:
    """The router whose weight is that of ``module``; ``more`` are further fields."""
    return Router(Gain("router", f"{module}.weight", shape.hidden, rows=count), used, **more)


def experts(
    shape: Shape,
    width: int,
    route: Router,
    *,
    activation: str = "silu",
    module: str = "mlp.experts",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Experts:
    """The experts behind ``route``, added to the residual stream; ``names`` are their modules for gate, up and down."""
    gate, up, down = (f"{module}.{{}}.{name}" for name in names)
    return Experts(shape.hidden, width, route, gate, up, down, "normed", HIDDEN, HIDDEN, activation)


def fused_experts(
    shape: Shape,
    width: int,
    route: Router,
    *,
    gate_up: str,
    down: str,
    activation: str = "silu",
    apart: bool = False,
    **more: Any,
) -> Experts:
    """The same of a source that has gate and up of an expert in one module, whose number comes last.

    ``apart``: a GGUF file has them in two, which are called as those of `experts`.  ``more`` are further fields.
    """
    if apart:
        return replace(experts(shape, width, route, activation="silu"), activation=activation, **more | {"alternate": False})
    gate, up, down = f"{gate_up}.{{}}", f"{gate_up}.{{}}", f"{down}.{{}}"
    return Experts(shape.hidden, width, route, gate, up, down, "normed", HIDDEN, HIDDEN, activation, **more)


def shared_experts(
    shape: Shape, width: int, *, activation: str = "silu", module: str = "mlp.shared_experts", gate: str = ""
) -> tuple[Operation, ...]:
    """A gated MLP that every row goes to, added to the residual stream; ``gate`` is the module of a gate of whole rows."""
    rows = [SourceRows(f"{module}.{name}_proj", width) for name in ("gate", "up")]
    down, written = SourceRows(f"{module}.down_proj", shape.hidden), "shared" if gate else HIDDEN
    behind = RowGate(Gain("shared_gate", f"{gate}.weight", shape.hidden, rows=1), "shared", "normed", HIDDEN, HIDDEN)
    return (
        linear("shared_gate_up", rows, shape.hidden, "normed", "shared_gate_up"),
        GLU(width, reads="shared_gate_up", writes="shared_activated", activation=activation),
        linear("shared_down", (down,), width, "shared_activated", written, adds="" if gate else HIDDEN),
        *((behind,) if gate else ()),
    )


def read_dense_layers(raw: dict[str, Any], layers: int) -> frozenset[int]:
    """The layers without experts: those that are listed, and all but every so-many-th."""
    fields = Fields(raw)
    listed = raw.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(one) is int and 0 <= one < layers for one in listed):
        raise InvalidModel(f"config.json: mlp_only_layers must be a list of layers below {layers}, not `{shown(listed)}`")
    step = fields.integer("decoder_sparse_step", 1, 1 << 20, 1)
    return frozenset(listed) | frozenset(index for index in range(layers) if (index + 1) % step)
