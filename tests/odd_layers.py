"""Layers that no family here has, and that a description allows: what is true of every layer is tried on them too."""

from __future__ import annotations

import numpy as np

from edge_llm.operations.activation import Activate
from edge_llm.operations.attention import Attention, Rope
from edge_llm.operations.base import HIDDEN, FloatLinear, Gain, LayerWeights, Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.norm import Norm

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 48, 40, 6, 2, 16
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
EPS = 1e-5


def norm(name: str, reads: str = HIDDEN, writes: str = "normed", size: int = WIDTH) -> Norm:
    return Norm(Gain(name, f"{name}.weight", size), EPS, reads, writes)


def linear(name: str, rows: int, columns: int, reads: str, writes: str, adds: str = "", bias: bool = False) -> Linear:
    return Linear(name, (SourceRows(name, rows),), columns, reads, writes, adds, bias)


def qkv(reads: str = "normed", bias: bool = False) -> Linear:
    return linear("qkv", Q + 2 * KV, WIDTH, reads, "qkv", bias=bias)


def attention(q_norm: Gain | None = None, k_norm: Gain | None = None) -> Attention:
    return Attention(HEADS, KV_HEADS, HEAD_DIM, Rope(HEAD_DIM, 1e4), "qkv", "attended", q_norm, k_norm, EPS)


def o(adds: str = HIDDEN, reads: str = "attended") -> Linear:
    return linear("o", WIDTH, Q, reads, HIDDEN, adds)


def gate_up(reads: str = "normed", number: str = "", bias: bool = False) -> Linear:
    return linear(f"gate_up{number}", 2 * INNER, WIDTH, reads, f"gate_up{number}", bias=bias)


def swiglu(number: str = "", writes: str = "activated") -> GLU:
    return GLU(INNER, f"gate_up{number}", writes)


def down(number: str = "", adds: str = HIDDEN) -> Linear:
    return linear(f"down{number}", WIDTH, INNER, "activated", HIDDEN, adds)


MLP = (norm("mlp_norm"), gate_up(), swiglu(), down())

PLAIN_MLP = (
    norm("mlp_norm"), linear("up", INNER, WIDTH, "normed", "up", bias=True), Activate(INNER, "up", "activated", "relu_squared"),
    down(),
)  # fmt: skip

ODD: dict[str, tuple[Operation, ...]] = {
    "an MLP without a gate, by squared ReLU": (norm("attention_norm"), qkv(), attention(), o(), *PLAIN_MLP),
    "an MLP without a gate, by GELU": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"), linear("up", INNER, WIDTH, "normed", "up"),
        Activate(INNER, "up", "activated", "gelu_tanh"), down(),
    ),
    "a clamped gate": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"), gate_up(bias=True),
        GLU(INNER, "gate_up", "activated", "clamped_silu", 1.5), down(),
    ),
    "plain": (norm("attention_norm"), qkv(bias=True), attention(), o(), *MLP),
    "one norm, attention and MLP beside each other": (
        norm("norm"), qkv(), gate_up(bias=True), attention(), swiglu(), o(), down(),
    ),
    "one norm, the MLP after the attention was added": (norm("norm"), qkv(), attention(), o(), gate_up(), swiglu(), down()),
    "a norm before o, of another width, while the first is still read": (
        norm("norm"), qkv(), attention(), norm("o_norm", "attended", "attended_normed", Q), o(reads="attended_normed"),
        gate_up(), swiglu(), down(),
    ),
    "norms behind the sums": (
        qkv(HIDDEN), attention(), o(), norm("attention_norm", writes=HIDDEN), gate_up(HIDDEN), swiglu(), down(),
        norm("mlp_norm", writes=HIDDEN),
    ),
    "a norm whose rows are added": (norm("attention_norm"), qkv(), attention(), o(adds="normed"), *MLP),
    "a norm that is read and added by one linear": (
        norm("attention_norm"), qkv(), attention(), o(),
        norm("square_norm"), linear("square", WIDTH, WIDTH, "normed", HIDDEN, adds="normed"), *MLP,
    ),
    "two MLPs beside each other, whose products share a buffer": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"), gate_up(number="1"), gate_up(number="2"),
        swiglu("1"), down("1"), swiglu("2"), down("2"),
    ),
    "a linear in place": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"),
        linear("turn", WIDTH, WIDTH, "normed", "normed"), gate_up(), swiglu(), down(),
    ),
    "a linear called like a buffer that is still read": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"), gate_up(),
        linear("gate_up_more", WIDTH, WIDTH, "normed", "more"), linear("gate_up_", WIDTH, WIDTH, "more", HIDDEN, adds=HIDDEN),
        linear("more", WIDTH, WIDTH, "more", HIDDEN, adds="more"), swiglu(), down(),
    ),
    "gate and up that something else reads too": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"), gate_up(), swiglu(), down(),
        linear("wide", WIDTH, 2 * INNER, "gate_up", HIDDEN, adds=HIDDEN),
    ),
    "gate and up to which something is added": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"),
        linear("more", 2 * INNER, WIDTH, "normed", "more"),
        linear("gate_up", 2 * INNER, WIDTH, "normed", "gate_up", adds="more"), swiglu(), down(),
    ),
    "two MLPs after each other, whose gate and up share a buffer and are added to": (
        norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"),
        linear("more", 2 * INNER, WIDTH, "normed", "more"),
        linear("gate_up1", 2 * INNER, WIDTH, "normed", "gate_up", adds="more"), swiglu(), down("1"),
        linear("gate_up2", 2 * INNER, WIDTH, HIDDEN, "gate_up", adds="more"), swiglu(writes="activated2"),
        linear("down2", WIDTH, INNER, "activated2", HIDDEN, adds=HIDDEN),
    ),
    "normed heads": (
        norm("attention_norm"), qkv(), attention(Gain("q_norm", "q.weight", HEAD_DIM), Gain("k_norm", "k.weight", HEAD_DIM)),
        o(), *MLP,
    ),
}  # fmt: skip


def odd(name: str) -> Layer:
    return Layer("layer.", ODD[name])


def random_weights(layer: Layer, seed: int = 0) -> LayerWeights:
    """Float weights by the names of the description; rows that are about as long as what they read."""
    draw = np.random.default_rng(seed)
    linears = {}
    for one in layer.linears:
        weight = draw.standard_normal((one.rows, one.columns), np.float32) / np.float32(np.sqrt(one.columns))
        linears[one.name] = FloatLinear(weight, draw.standard_normal(one.rows, np.float32) if one.bias else None)
    gains = {gain.name: 1 + np.float32(0.2) * draw.standard_normal(gain.size, np.float32) for gain in layer.gains}
    return LayerWeights(linears, gains)
