"""Descriptions: what a layer says of itself, and what is refused before anything is read or computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from model_files import FAMILIES as LLAMA_LIKE
from model_files import random_tensors, tiny_config
from odd_layers import (
    HEAD_DIM,
    INNER,
    KV,
    MLP,
    ODD,
    WIDTH,
    Q,
    attention,
    down,
    gate_up,
    linear,
    norm,
    o,
    odd,
    qkv,
    swiglu,
)

from edge_llm.models import add_family, describe, families, load_config
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer

HEADS = (norm("attention_norm"), qkv(), attention(), o())


def layer(*operations: Operation) -> Layer:
    return Layer("layer.", operations)


# ---- what a description says ----


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_a_layer_of_a_family(family: str) -> None:
    decoder = describe(load_config(tiny_config(family)))
    first = decoder.layers[0]
    assert [one.name for one in first.linears] == ["qkv", "o", "gate_up", "down"]
    heads = ["q_norm", "k_norm"] if family == "qwen3" else []
    assert [gain.name for gain in first.gains] == ["attention_norm", *heads, "mlp_norm"]
    assert first.projection is first.linear("qkv")
    assert [one.prefix for one in decoder.layers] == ["model.layers.0.", "model.layers.1."]
    assert decoder.attentions == (first.attention,) * 2
    assert [one.bias for one in first.linears] == [family == "qwen2", False, False, False]


def test_what_a_layer_says_of_its_buffers() -> None:
    plain = odd("plain")
    assert plain.widths == {
        HIDDEN: WIDTH, "normed": WIDTH, "qkv": Q + 2 * KV, "attended": Q, "gate_up": 2 * INNER, "activated": INNER,
    }  # fmt: skip
    attention_norm, projection, heads, out, mlp_norm, both, product, last = plain.operations
    assert plain.writer("normed", projection) is attention_norm
    assert plain.writer("normed", both) is mlp_norm
    assert plain.writer(HIDDEN, attention_norm) is None
    assert plain.writer(HIDDEN, mlp_norm) is out
    assert list(plain.readers(attention_norm)) == [projection]
    assert list(plain.readers(out)) == [mlp_norm, last]
    assert list(plain.readers(last)) == []
    assert [plain.is_result(one) for one in plain.operations] == [False] * 7 + [True]
    assert plain.gives_only(projection, heads) and plain.gives_only(both, product) and not plain.gives_only(out, last)
    assert plain.multipliers(attention_norm) == (projection,)
    assert plain.multipliers(product) == (last,)
    assert plain.multipliers(out) == plain.multipliers(last) == ()


def test_what_an_operation_reads_and_multiplies_with() -> None:
    assert o().read_by == ("attended", HIDDEN)
    assert qkv().read_by == ("normed",)
    assert norm("a").gains == (Gain("a", "a.weight", WIDTH),)
    normed = attention(Gain("q", "q.weight", HEAD_DIM), Gain("k", "k.weight", HEAD_DIM))
    assert [gain.name for gain in normed.gains] == ["q", "k"]
    assert attention().gains == o().gains == swiglu().gains == ()


CHANGES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in LLAMA_LIKE),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", {"num_hidden_layers": 5, "num_key_value_heads": 1}),
]


@pytest.mark.parametrize(("family", "changes"), CHANGES)
def test_parameters_are_those_of_the_tensors(family: str, changes: dict[str, Any]) -> None:
    raw = tiny_config(family, **changes)
    weights = {name: values.size for name, values in random_tensors(raw).items() if not name.endswith(".bias")}
    assert describe(load_config(raw)).parameters == sum(weights.values())


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_the_linears_of_a_model_are_in_execution_order(family: str) -> None:
    decoder = describe(load_config(tiny_config(family, num_hidden_layers=11)))
    linears = decoder.linears()
    parts = ("qkv", "o", "gate_up", "down")
    assert list(linears) == [*(f"layers.{index}.{part}" for index in range(11) for part in parts), "output"]
    assert linears["layers.10.down"] is decoder.layers[10].linear("down")
    assert linears["output"] is decoder.output


def test_a_model_is_described_once() -> None:
    config = load_config(tiny_config())
    assert describe(config) is describe(load_config(tiny_config()))
    assert describe(config) is not describe(replace(config, context=128))


def test_like_layers_share_their_operations() -> None:
    decoder = describe(load_config(tiny_config(num_hidden_layers=4)))
    assert len({id(layer.operations) for layer in decoder.layers}) == 1
    names = {name: "int8" for name in decoder.linears()}
    assert decoder.with_schemes(names).layers == decoder.layers
    mixed = decoder.with_schemes(names | {"layers.2.o": "float16"})
    assert [one is other for one, other in zip(mixed.layers, decoder.layers, strict=True)] == [True, True, False, True]
    assert [linear.name for linear in mixed.layers[2].linears if linear.scheme == "float16"] == ["o"]


def test_a_family_may_come_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_llm.models._ADDED", {})
    llama = describe(load_config(tiny_config()))

    class Deeper:
        config = staticmethod(lambda raw: replace(load_config(tiny_config()), family="deeper"))
        decoder = staticmethod(lambda config: replace(llama, layers=3 * llama.layers))

    add_family("deeper", Deeper())
    assert "deeper" in families()
    found: Decoder = describe(load_config({"model_type": "deeper"}))
    assert len(found.layers) == 6


# ---- what is refused ----


@pytest.mark.parametrize("name", ODD)
def test_odd_layers_are_layers(name: str) -> None:
    assert odd(name).projection.name == "qkv"


@pytest.mark.parametrize(("missing", "unread"), [(0, "normed"), (1, "qkv"), (2, "attended"), (5, "gate_up"), (6, "activated")])
def test_a_read_of_a_buffer_that_nothing_wrote(missing: int, unread: str) -> None:
    plain = list(odd("plain").operations)
    del plain[missing]
    with pytest.raises(ValueError, match=rf"layer `layer\.` reads the buffer `{unread}` before anything writes it"):
        layer(*plain)


def test_an_added_buffer_must_be_written_too() -> None:
    with pytest.raises(ValueError, match=r"layer `layer\.` reads the buffer `more` before anything writes it"):
        layer(*HEADS[:3], o(adds="more"))


def test_a_buffer_must_be_written_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="reads the buffer `gate_up` before"):
        layer(*HEADS, norm("mlp_norm"), swiglu(), gate_up(), down())


@pytest.mark.parametrize(
    "twice",
    [
        (norm("attention_norm", writes="other"),),
        (linear("qkv", WIDTH, WIDTH, HIDDEN, HIDDEN),),
        (norm("o", writes="other"),),
        (norm("a", writes="other"), linear("a", WIDTH, WIDTH, "other", HIDDEN)),
    ],
)
def test_two_of_one_name(twice: tuple[Operation, ...]) -> None:
    with pytest.raises(ValueError, match="have one name"):
        layer(*HEADS, *twice)


def test_a_norm_of_heads_called_like_another() -> None:
    heads = attention(Gain("attention_norm", "q.weight", HEAD_DIM), Gain("k", "k.weight", HEAD_DIM))
    with pytest.raises(ValueError, match="have one name"):
        layer(norm("attention_norm"), qkv(), heads, o())


def test_the_same_operation_twice() -> None:
    with pytest.raises(ValueError, match="the same operation twice"):
        layer(*HEADS, norm("mlp_norm"), gate_up(), swiglu(), down(), linear("gate_up2", 2 * INNER, WIDTH, "normed", "gate_up"),
              swiglu(), down("2"))  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (linear("a", WIDTH, WIDTH + 4, HIDDEN, HIDDEN), rf"`hidden` of layer `layer\.` is {WIDTH} wide, not {WIDTH + 4}"),
        (linear("a", WIDTH + 4, WIDTH, HIDDEN, HIDDEN), f"`hidden` .* is {WIDTH} wide, not {WIDTH + 4}"),
        (linear("a", 2 * WIDTH, WIDTH, HIDDEN, "other", adds=HIDDEN), f"`hidden` .* is {WIDTH} wide, not {2 * WIDTH}"),
        (linear("a", WIDTH, WIDTH, "attended", HIDDEN), f"`attended` .* is {Q} wide, not {WIDTH}"),
        (linear("a", Q + 4, WIDTH, HIDDEN, "attended"), f"`attended` .* is {Q} wide, not {Q + 4}"),
        (norm("a", "attended", "other", WIDTH), f"`attended` .* is {Q} wide, not {WIDTH}"),
        (GLU(Q, "attended", "other"), f"`attended` .* is {Q} wide, not {2 * Q}"),
    ],
)
def test_a_buffer_has_one_width(operation: Operation, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(*HEADS, operation)


def test_an_attention_needs_the_projection_of_one_linear() -> None:
    narrow = linear("qkv", Q + KV, WIDTH, "normed", "qkv")
    with pytest.raises(ValueError, match=r"does not read the q \| k \| v of one linear"):
        layer(norm("attention_norm"), narrow, attention(), o())
    wide = linear("up", Q + 2 * KV, WIDTH, HIDDEN, "wide")
    with pytest.raises(ValueError, match=r"does not read the q \| k \| v of one linear"):
        layer(wide, norm("attention_norm", "wide", "qkv", Q + 2 * KV), attention(), o())
    with pytest.raises(ValueError, match="reads the buffer `qkv` before anything writes it"):
        layer(attention(), o())


def test_a_projection_is_for_the_attention_alone() -> None:
    other = linear("other", WIDTH, Q + 2 * KV, "qkv", HIDDEN)
    with pytest.raises(ValueError, match="not for its attention alone"):
        layer(*HEADS, other)
    with pytest.raises(ValueError, match="not for its attention alone"):
        layer(norm("attention_norm"), linear("before", Q + 2 * KV, WIDTH, "normed", "more"),
              linear("qkv", Q + 2 * KV, WIDTH, "normed", "qkv", adds="more"), attention(), o())  # fmt: skip


def test_a_layer_has_one_attention_or_none_and_a_model_has_some() -> None:
    alone = layer(*MLP)
    assert alone.attentions == alone.fixed == ()
    with pytest.raises(ValueError, match="layer `layer.` has no attention"):
        _ = alone.attention
    with pytest.raises(ValueError, match="no layer has an attention"):
        replace(describe(load_config(tiny_config())), layers=(Layer("layer.", MLP),))
    with pytest.raises(ValueError, match="has two attentions"):
        layer(*HEADS, linear("qkv2", Q + 2 * KV, WIDTH, "normed", "qkv"), replace(attention(), writes="others"))


def test_queries_and_keys_are_normed_together() -> None:
    for norms in ((Gain("q", "q.weight", HEAD_DIM), None), (None, Gain("k", "k.weight", HEAD_DIM))):
        with pytest.raises(ValueError, match="both its queries and its keys"):
            attention(*norms)
