"""What a bundle says of a linear that is multiplied as INT8, beside its integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_llm.files import shown
from edge_llm.models.layer import Linear
from edge_llm.quant.shadow import FULL, SHADOWS, Treatment
from edge_llm.schemes.base import Facts, TensorSpec, check_keys


def beside_integers(linear: Linear, hot: int) -> list[TensorSpec]:
    """The tensors that follow the integers of ``linear`` with ``hot`` channels kept apart."""
    return [
        ("scale", "float32", (linear.rows,)),
        ("row_sum", "int32", (linear.rows,)),
        ("hot_index", "int32", (hot,)),
        ("hot_weight", "float16", (hot, linear.rows)),
    ]


def facts(record: Mapping[str, Any]) -> Facts:
    """The input scale, and which shadow is kept; a bundle that does not say keeps all of it."""
    check_keys(record, {"input_scale", "shadow"})
    input_scale, shadow = record.get("input_scale"), record.get("shadow", FULL)
    # the kernels work with the float32 reciprocal, which must be finite as well
    if type(input_scale) is not float or not 1e-30 <= input_scale <= 1e30:
        raise ValueError(f"the input scale `{shown(input_scale)}`")
    if shadow not in SHADOWS:
        raise ValueError(f"the shadow `{shown(shadow)}`")
    return {"input_scale": input_scale, "shadow": shadow}


def facts_of(treatment: Treatment) -> Facts:
    return {"input_scale": treatment.input_scale, "shadow": treatment.shadow}
