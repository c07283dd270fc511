"""What a weight scheme is, and what every weight can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from edge_llm.config import ACTIVATIONS, ROW, STATIC
from edge_llm.files import shown
from edge_llm.operations.host_call import HostExperts, HostWeight
from edge_llm.quant.scheme import LIMIT
from edge_llm.quant.shadow import FULL, NONE, SHADOWS, Treatment

if TYPE_CHECKING:
    from edge_llm.operations.linear import Linear

TensorSpec = tuple[str, str, tuple[int, ...]]
"""A tensor of a linear in a bundle: name, type, shape."""

Facts = Mapping[str, Any]
"""What a manifest says of one linear beside its shape, such as its input scale."""


class Weight(HostWeight, Protocol):
    """An opened weight W [N, K] with all that its product needs; its arrays do not change."""

    @property
    def rows(self) -> int:
        """Output channels N."""
        ...

    @property
    def columns(self) -> int:
        """Input channels K."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        ...

    def prepare(self, first: Self) -> None:
        """Find now what `add_to` needs: later other weights may be in the memory of the arrays.

        ``first`` is the same weight, as it was opened first: here or in other memory.
        """
        ...


class Scheme(Protocol):
    """One way to store and multiply the weight of a linear."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a constant of modules
        """As a manifest has it."""
        ...

    def tensors(self, linear: Linear, hot: int) -> list[TensorSpec]:
        """The tensors that ``linear`` with ``hot`` channels kept apart has in a bundle, in order; the bias comes after them."""
        ...

    def facts(self, record: Mapping[str, Any]) -> Facts:
        """What a manifest's ``record`` says of a linear, checked.  Raises ValueError that names the invalid value."""
        ...

    def facts_of(self, treatment: Treatment) -> Facts:
        """The same of a linear that import treats so."""
        ...

    def convert(self, weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
        """The arrays of `tensors` for a float matrix [N, K] with the hot channels int32 [H].

        Raises `InvalidModel`, with ``name``, for values that the scheme cannot hold.
        """
        ...

    def open(self, linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> Weight:
        """The weight in ``arrays``, which has a ``bias`` where ``linear`` has one; checked once."""
        ...

    def check(self, linear: Linear, name: str, array: np.ndarray) -> None:
        """Raises ValueError for a tensor ``name`` of `tensors` that holds what no ``linear`` can: it follows the tensor's name.

        It looks at vectors and parameters, and not at all the weights, which a bundle may have many of.
        """
        ...

    def cost(self, linear: Linear) -> float:
        """Microseconds of one core per row of the product of ``linear``, on the machine of `edge_llm.quant.shadow`."""
        ...


def check_keys(record: Mapping[str, Any], known: set[str]) -> None:
    """Raises ValueError that names the first key of ``record`` that is not ``known``."""
    odd = sorted(set(record) - known)
    if odd:
        raise ValueError(f"the unknown key `{shown(odd[0])}`")


def beside_integers(linear: Linear, hot: int) -> list[TensorSpec]:
    """The tensors that follow the integers of a ``linear`` that is multiplied as INT8, with ``hot`` channels kept apart."""
    return [
        ("scale", "float32", (linear.rows,)),
        ("row_sum", "int32", (linear.rows,)),
        ("hot_index", "int32", (hot,)),
        ("hot_weight", "float16", (hot, linear.rows)),
    ]


def fields_beside(linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> dict[str, Any]:
    """The fields of a weight beside its integers, out of the ``arrays`` and ``facts`` of ``linear`` in a bundle."""
    return {
        "rows": len(arrays["scale"]),
        "columns": linear.columns,
        "input_scale": facts["input_scale"],
        "row_scales": facts.get("activations", STATIC) == ROW,
        "turn": linear.turn,
        "input_offset": facts.get("input_offset", 0),
        "weight_scale": arrays["scale"],
        "row_sum": arrays["row_sum"],
        "hot_index": arrays["hot_index"],
        "hot_weight": arrays["hot_weight"],
        "bias": arrays.get("bias"),
        "residual": facts["shadow"] != NONE,
    }


def check_beside_integers(linear: Linear, name: str, array: np.ndarray) -> None:
    """`Scheme.check` of the tensors of `beside_integers`; any other ``name`` is taken as it is."""
    if name == "scale":
        check_finite(array)
        if array.min(initial=0) < 0:
            raise ValueError("holds a scale below 0")
    elif name == "row_sum":
        most = LIMIT * linear.columns
        if array.max(initial=0) > most or array.min(initial=0) < -most:
            raise ValueError(f"holds a sum that {linear.columns} weights of at most {LIMIT} do not have")
    elif name == "hot_index":
        # the kernels trust these numbers
        if len(array) and (array[0] < 0 or array[-1] >= linear.columns or (array[1:] <= array[:-1]).any()):
            raise ValueError(f"does not list ascending channels below {linear.columns}")
    elif name == "hot_weight":
        check_finite(array)


def check_finite(array: np.ndarray) -> None:
    """Raises ValueError unless all of ``array``, float16 or float32, is finite."""
    if not np.isfinite(array).all():
        raise ValueError("holds a value that is not finite")


def integer_facts(record: Mapping[str, Any]) -> Facts:
    """Of a linear that is multiplied as INT8: its static input scale, its shadow there, and the scales that it is made for.

    Where nothing is said the shadow is all of it, and the scale is the static one.
    """
    check_keys(record, {"input_scale", "shadow", "activations", "input_offset"})
    input_scale, shadow = record.get("input_scale"), record.get("shadow", FULL)
    activations = record.get("activations", STATIC)
    # the kernels work with the float32 reciprocal, which must be finite as well
    if type(input_scale) is not float or not 1e-30 <= input_scale <= 1e30:
        raise ValueError(f"the input scale `{shown(input_scale)}`")
    if shadow not in SHADOWS:
        raise ValueError(f"the shadow `{shown(shadow)}`")
    if activations not in ACTIVATIONS:
        raise ValueError(f"the activations `{shown(activations)}`")
    if activations == ROW and shadow == FULL:
        raise ValueError(f"the shadow `{shown(shadow)}`, which does not go with scales of rows")
    offset = record.get("input_offset", 0)
    if type(offset) is not int or not -128 <= offset <= 127:
        raise ValueError(f"the input offset `{shown(offset)}`")
    if offset and (shadow != NONE or activations != STATIC):
        raise ValueError(f"the input offset `{offset}`, which goes with a static scale and no shadow")
    return {"input_scale": input_scale, "shadow": shadow} | _beyond_scale(activations, offset)


def integer_facts_of(treatment: Treatment) -> Facts:
    """The same of a linear that import treats so."""
    beyond = _beyond_scale(treatment.activations, treatment.input_offset)
    return {"input_scale": treatment.input_scale, "shadow": treatment.shadow} | beyond


def _beyond_scale(activations: str, offset: int) -> dict[str, Any]:
    return ({} if activations == STATIC else {"activations": activations}) | ({"input_offset": offset} if offset else {})


@dataclass(frozen=True)
class BlockWeights:
    """The weights of one decoder layer, or of the head, by the names of its description."""

    linears: Mapping[str, Weight]
    gains: Mapping[str, np.ndarray]
    """Float32 gains of the norms, and ``k_offset`` [kv heads, head_dim], which is subtracted from every key."""
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The arrays that these are made of, by their names in the bundle without the layer's; empty for the head."""
    open: Callable[[Mapping[str, np.ndarray]], BlockWeights] | None = None
    """Makes the same of arrays of these names that lie elsewhere."""
    experts: HostExperts | None = None
    """The experts that are missing in `linears`, because they come from flash."""

    def moved(self, tensors: Mapping[str, np.ndarray]) -> BlockWeights:
        """The same weights in ``tensors``, copies of this block's."""
        assert self.open is not None, "the head is moved by its rows"
        return self.open(tensors)
