"""Activations: what the gate of a gated product goes through before it meets the up half, or the inside of a plain MLP.

y = linear(x, weight, pool, gate=GELU_TANH)
pointwise.activate(x, RELU, pool, out=x)
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("silu", "gelu_tanh", "gelu_erf", "relu", "relu_squared", "clamped_silu", "soft_cap")
"""In the order of the native numbers, which begin at 1."""
LIMITED = ("clamped_silu", "soft_cap")


@dataclass(frozen=True)
class Activation:
    """A function of a number g, or of a gate g and an up value u.

    silu            g / (1 + exp(-g))
    gelu_tanh       g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2
    gelu_erf        g (1 + erf(g / sqrt(2))) / 2
    relu            max(g, 0)
    relu_squared    max(g, 0)^2
    clamped_silu    (clamp(u, -limit, limit) + 1) h / (1 + exp(-1.702 h)) with h = min(g, limit): of a gate only
    soft_cap        limit tanh(g / limit): of a plain activation only

    As a gate each but clamped_silu is multiplied by u.  Raises ValueError for another name, and for a limit that does not fit.
    """

    name: str
    limit: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"no activation `{self.name}`; there are {', '.join(NAMES)}")
        if (self.name in LIMITED) != (self.limit > 0):
            raise ValueError(f"`limit` is positive for {' and '.join(LIMITED)}, else 0; got `{self.limit}` for `{self.name}`")

    @property
    def number(self) -> int:
        """Of the native kernels."""
        return NAMES.index(self.name) + 1


SILU = Activation("silu")
GELU_TANH = Activation("gelu_tanh")
GELU_ERF = Activation("gelu_erf")
RELU = Activation("relu")
RELU_SQUARED = Activation("relu_squared")


def clamped_silu(limit: float) -> Activation:
    """The gate of gpt-oss, whose limit is 7."""
    return Activation("clamped_silu", limit)


def soft_cap(limit: float) -> Activation:
    """What keeps logits within a limit."""
    return Activation("soft_cap", limit)


def numbers(gate: Activation | None, swiglu: bool = False) -> tuple[int, float]:
    """Number and limit for the native kernels; `swiglu` is the gate `SILU`."""
    if gate is None:
        return int(swiglu), 0.0
    if swiglu and gate != SILU:
        raise ValueError(f"`swiglu` is the gate `silu`; got `{gate.name}` beside it")
    return gate.number, gate.limit
