"""Weight schemes: how a linear's weight is stored and multiplied, one file per scheme.

A manifest names the scheme of every linear; whoever opens, writes or multiplies a weight asks the scheme.  The sources of a
linear may have a scheme each (`edge_llm.schemes.parts`).
"""

from __future__ import annotations

import numpy as np

from edge_llm.operations.linear import Linear
from edge_llm.schemes import float16, int8, neurons, w4
from edge_llm.schemes.base import BlockWeights, Facts, Scheme, TensorSpec, Weight, check_finite
from edge_llm.schemes.blocks import KINDS, Blocks, is_in_blocks, parts_in_blocks
from edge_llm.schemes.joint import parts_of, schemes_in, takes_codes
from edge_llm.schemes.parts import Parts

__all__ = [
    "BlockWeights", "Facts", "Scheme", "TensorSpec", "Weight", "add_scheme", "check_tensor", "is_in_blocks", "is_known",
    "linear_tensors", "scheme_of", "schemes",
]  # fmt: skip

_SCHEMES: dict[str, Scheme] = {
    int8.NAME: int8, w4.NAME: w4, float16.NAME: float16, neurons.NAME: neurons, **{name: Blocks(name) for name in KINDS},
}  # fmt: skip


def schemes() -> tuple[str, ...]:
    """The names of all schemes that floats may become."""
    return tuple(name for name in _SCHEMES if name not in KINDS)


def is_known(scheme: str) -> bool:
    """Whether linears may have ``scheme``, which may name one for each of their sources."""
    return _SCHEMES.keys() >= set(schemes_in(scheme))


def scheme_of(linear: Linear) -> Scheme:
    """The scheme of a linear.  Raises ValueError for an unknown one, and for one that does not suit it."""
    if is_in_blocks(linear.scheme):
        parts_in_blocks(linear)
        return Blocks(linear.scheme)
    if linear.scheme in _SCHEMES and takes_codes(linear):
        return _SCHEMES[linear.scheme]
    return Parts(linear.scheme, parts_of(linear), _SCHEMES)


def linear_tensors(linear: Linear, hot: int) -> list[TensorSpec]:
    """Every tensor that ``linear`` with ``hot`` hot channels has in a bundle, in order."""
    bias = [("bias", "float32", (linear.rows,))] if linear.bias else []
    return [*scheme_of(linear).tensors(linear, hot), *bias]


def check_tensor(linear: Linear | None, name: str, array: np.ndarray) -> None:
    """Raises ValueError where a tensor, ``name`` of `linear_tensors`, holds what it cannot: it follows the tensor's name.

    Without a ``linear`` it is a vector of a norm or of an attention.  It takes no pass over all weights.
    """
    if linear is None or name == "bias":
        check_finite(array)
    else:
        scheme_of(linear).check(linear, name, array)


def add_scheme(scheme: Scheme) -> None:
    """Have linears of ``scheme.NAME`` stored and multiplied by ``scheme``, a module or object like those of this folder."""
    _SCHEMES[scheme.NAME] = scheme
