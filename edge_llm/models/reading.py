"""What becomes of a text's last states, as the model's author trained it: a vector, or of a pair of texts a score."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from edge_llm.operations.base import Gain

MEAN, FIRST, LAST = "mean", "cls", "lasttoken"
POOLINGS = (MEAN, FIRST, LAST)
SIGMOID, IDENTITY = "sigmoid", "identity"
TANH = "tanh"
STEPS = ("", TANH, "gelu_erf", "gelu_tanh", "relu", "silu")
"""Activations of the steps behind a pooling; empty: none."""
_MAX_HEAD = 8


@dataclass(frozen=True)
class Prompt:
    """A text that stands before every text of a kind, such as ``query: ``."""

    name: str
    text: str


@dataclass(frozen=True)
class Dense:
    """``norm(activation(W x + b))`` in float32; what is left out is not done."""

    weight: Gain
    """[channels behind it, channels before it]."""
    bias: Gain | None = None
    activation: str = ""
    """One of `STEPS`."""
    norm: Gain | None = None
    """Gain of a layer norm."""
    norm_bias: Gain | None = None
    eps: float = 0.0

    def __post_init__(self) -> None:
        if self.weight.rows < 1 or self.activation not in STEPS:
            rows = self.weight.rows
            raise ValueError(f"the step `{self.weight.name}` has {rows} rows and the activation `{self.activation}`")
        if any(one.shape != (self.weight.rows,) for one in (self.bias, self.norm, self.norm_bias) if one is not None):
            raise ValueError(f"bias or norm of the step `{self.weight.name}` do not have its {self.weight.rows} channels")
        if (self.norm is not None) != (self.eps > 0) or (self.norm_bias is not None and self.norm is None):
            raise ValueError(f"the step `{self.weight.name}` has a norm without an epsilon, or parts of one")

    @property
    def tensors(self) -> tuple[Gain, ...]:
        """What a bundle keeps for it."""
        return tuple(one for one in (self.weight, self.bias, self.norm, self.norm_bias) if one is not None)


@dataclass(frozen=True)
class Reading:
    """What becomes of a text's last hidden states: pooled, through ``head``, and made as long as 1, or taken as a score."""

    pooling: str = MEAN
    """The mean of all, the first, or the last."""
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    """The name of the prompt that texts get where none is asked for; empty: none."""
    head: tuple[Dense, ...] = ()
    score: str = ""
    """What makes the number that the head gives of a pair of texts its score, `SIGMOID` or `IDENTITY`; empty: it makes
    vectors of texts."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"the pooling `{self.pooling}`")
        widths = [(one.weight.size, one.weight.rows) for one in self.head]
        if any(before[1] != after[0] for before, after in pairwise(widths)) or len(widths) > _MAX_HEAD:
            raise ValueError(f"the steps behind the pooling do not fit each other: {widths}")
        names = [one.name for one in self.tensors]
        if len(set(names)) < len(names):
            raise ValueError(f"two tensors behind the pooling have one name: {names}")
        if self.score not in ("", SIGMOID, IDENTITY) or (self.score and (not widths or widths[-1][1] != 1)):
            raise ValueError(f"a score by `{self.score}` of {widths}")

    @property
    def tensors(self) -> tuple[Gain, ...]:
        """What a bundle keeps for the head."""
        return tuple(tensor for one in self.head for tensor in one.tensors)

    def size(self, hidden: int) -> int:
        """Numbers of a vector, of a model of ``hidden`` channels."""
        return self.head[-1].weight.rows if self.head else hidden

    def prompt(self, name: str) -> str | None:
        """The text of the prompt ``name``; None where there is none of that name."""
        return next((one.text for one in self.prompts if one.name == name), None)


def pooled(states: np.ndarray, pooling: str) -> np.ndarray:
    """Of the ``states`` float32 [T, hidden] of a text the mean, the first or the last: float64 [hidden]."""
    if pooling == MEAN:
        return np.asarray(states.mean(axis=0, dtype=np.float64))
    return np.asarray(states[0 if pooling == FIRST else -1], np.float64)


def score_by(named: object) -> str:
    """How a score is made of what a head gives, by the name of a class of torch; None: as sentence-transformers does.

    Raises ValueError for any other.
    """
    if named is None:
        return SIGMOID
    name = named.rpartition(".")[2].lower() if isinstance(named, str) else ""
    if name not in (SIGMOID, IDENTITY):
        raise ValueError(f"scores are made by `{SIGMOID}` or `{IDENTITY}` here")
    return name


def dense(name: str, module: str, columns: int, rows: int, *, bias: bool = True, **more: Any) -> Dense:
    """A step behind the pooling of the module ``module``; ``more`` are further fields."""
    added = Gain(f"{name}_bias", f"{module}.bias", rows, whole_name=True) if bias else None
    return Dense(Gain(name, f"{module}.weight", columns, rows=rows, whole_name=True), added, **more)
