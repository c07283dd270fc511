"""The gradient of the float path is that of torch, and half the mean square of gradient times error is a divergence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import random_tensors, tiny_config, write_model

from edge_llm.convert.gradient import drawn_gradient, draws, layer_gradient
from edge_llm.models import describe
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.operations.arithmetic import SAME_BITS, rms_norm_gradient
from edge_llm.operations.base import NUMPY, LayerWeights
from edge_llm.operations.linear import Linear
from edge_llm.sources import open_source

TOKENS = np.random.default_rng(3).integers(0, 250, 33)


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tiny_config(request.param)
    return write_model(tmp_path_factory.mktemp("gradient") / request.param, raw, tensors=random_tensors(raw))


def back_through(folder: Path, at_states: np.ndarray, arithmetic: Any = NUMPY) -> dict[str, np.ndarray]:
    """Per linear the gradient at its product, and at the embeddings, of one at the states behind the last norm."""
    with open_source(folder) as source:
        model = FloatModel(source, source.config)
    tables, states = RopeTables(64), [model.embedding[TOKENS]]
    for layer, weights in zip(model.decoder.layers, model.layers, strict=True):
        states.append(layer_forward(states[-1], layer, weights, tables))
    gradient = rms_norm_gradient(states[-1], model.final_norm, model.decoder.norm.eps, at_states)
    found = {}
    for index in reversed(range(len(model.layers))):
        layer, weights = model.decoder.layers[index], model.layers[index]

        def observe(name: str, x: np.ndarray, at_output: np.ndarray, index: int = index) -> None:
            found[f"layers.{index}.{name}"] = at_output

        gradient = layer_gradient(states[index], layer, weights, tables, gradient, observe, arithmetic)
    return found | {"embedding": gradient}


@pytest.mark.parametrize("arithmetic", [NUMPY, SAME_BITS], ids=["numpy", "same bits"])
def test_the_gradient_at_every_linear_is_that_of_torch(folder: Path, arithmetic: Any) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    outputs = {}

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            output.retain_grad()
            outputs[name] = output

        return hook

    for name, module in model.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(keep(name))
    embedded = model.model.embed_tokens(torch.tensor(TOKENS)[None]).detach().requires_grad_()
    states = model.model(inputs_embeds=embedded).last_hidden_state[0]
    at_states = np.random.default_rng(0).standard_normal(states.shape).astype(np.float32)
    (states * torch.tensor(at_states)).sum().backward()
    found = back_through(folder, at_states, arithmetic)
    parts = {"qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "o": ["self_attn.o_proj"],
             "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}  # fmt: skip
    expected = {"embedding": embedded.grad[0].numpy()}
    for index in range(2):
        for name, of in parts.items():
            gradients = [outputs[f"layers.{index}.{part}"].grad[0].numpy() for part in of]
            expected[f"layers.{index}.{name}"] = np.concatenate(gradients, axis=1)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, atol=2e-5 * np.abs(wanted).max(), err_msg=name)


def test_half_the_mean_square_of_gradient_times_error_is_the_divergence(folder: Path) -> None:
    """A small error at one linear, drawn anew for every token and output: what it does is what the gradient says."""
    with open_source(folder) as source:
        model = FloatModel(source, source.config)
    tables = RopeTables(64)
    embedded = model.embedding[TOKENS]
    layers = list(zip(model.decoder.layers, model.layers, strict=True))

    def states_with(error: np.ndarray | None, name: str) -> list[np.ndarray]:
        states = [embedded]
        for layer, weights in layers:

            def apply(linear: Linear, parts: Any, x: np.ndarray, last: bool = layer is layers[-1][0]) -> np.ndarray:
                y = x @ parts.weight.T + (0 if parts.bias is None else parts.bias)
                return y + error if error is not None and last and linear.name == name else y

            states.append(layer_forward(states[-1], layer, weights, tables, apply=apply))
        return states

    def log_likely(states: np.ndarray) -> np.ndarray:
        scale = np.sqrt(np.mean(states * states, axis=1, keepdims=True) + model.decoder.norm.eps)
        logits = (states / scale * model.final_norm) @ model.output.T.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    plain = states_with(None, "")
    normed = (plain[-1] / np.sqrt(np.mean(plain[-1] ** 2, axis=1, keepdims=True) + model.decoder.norm.eps)) * model.final_norm
    random = np.random.default_rng(1)
    draws_of = 400
    squares: dict[str, list[float]] = {}
    errors = {
        linear.name: 0.003 * random.standard_normal((len(TOKENS), linear.rows)).astype(np.float32)
        for linear in layers[-1][0].linears
    }
    drawn = np.random.default_rng(5)
    for _ in range(draws_of):
        at_states = drawn_gradient(normed.astype(np.float32), model.output, drawn)
        gradient = rms_norm_gradient(plain[-1], model.final_norm, model.decoder.norm.eps, at_states)

        def observe(name: str, _x: np.ndarray, at_output: np.ndarray) -> None:
            # errors of different outputs and tokens are independent, so that only their squares are left on average
            squares.setdefault(name, []).append(float(np.square(at_output * errors[name], dtype=np.float64).sum()))

        layer_gradient(plain[-2], *layers[-1], tables, gradient, observe)
    for name, error in errors.items():
        theirs = log_likely(states_with(error, name)[-1])
        wanted = log_likely(plain[-1])
        divergence = float((np.exp(wanted) * (wanted - theirs)).sum())
        predicted = 0.5 * float(np.mean(squares[name]))
        assert predicted == pytest.approx(divergence, rel=0.35), name


def test_the_draws_are_the_same_every_time_and_follow_what_is_predicted() -> None:
    random = np.random.default_rng(0)
    states, output = random.standard_normal((64, 8), np.float32), random.standard_normal((19, 8), np.float32)
    first, second = (drawn_gradient(states, output, draws()) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    generator = draws()
    mean = np.mean([drawn_gradient(states, output, generator) for _ in range(2000)], axis=0)
    assert np.abs(mean).max() < 0.25 * np.abs(first).max()  # the mean gradient of a log-probability is 0


def test_a_layer_keeps_its_weights(folder: Path) -> None:
    with open_source(folder) as source:
        model = FloatModel(source, source.config)
    decoder = describe(model.config)
    weights: LayerWeights = model.layers[0]
    before = {name: one.weight.copy() for name, one in weights.linears.items()}
    x = model.embedding[TOKENS]
    layer_gradient(x, decoder.layers[0], weights, RopeTables(64), x, lambda *_: None)
    assert all(np.array_equal(before[name], one.weight) for name, one in weights.linears.items())
