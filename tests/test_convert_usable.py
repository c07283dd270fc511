"""What an import accepts, runs; what no run could use is refused at once, or left out and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import random_tensors, tiny_config, write_json, write_model

from edge_llm.cli.main import run
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.convert.importer import Outliers, import_model
from edge_llm.decoding.defaults import generation_defaults
from edge_llm.engine.engine import Engine
from edge_llm.errors import EdgeLLMError, InvalidModel
from edge_llm.formats.description import decode_description, encode_description, model_record
from edge_llm.models import describe, load_config
from edge_llm.models.rope import rope_tables
from edge_llm.opening.load import load_engine
from edge_llm.paths import models_folder

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}<|im_start|>bot:"


def answers(folder: Path, **runtime: Any) -> int:
    """Tokens that the imported model answers to `Hi` the way `edge-llm run` asks it."""
    engine = load_engine(folder, RuntimeConfig(threads=1, **runtime))
    return len(engine.answer(request(engine)).tokens)


def request(engine: Engine) -> Any:
    params = GenerationParams(**(asdict(engine.defaults) | {"max_tokens": 1, "ignore_eos": True}))
    if engine.template.is_default:
        return engine.text_request("Hi", params)
    return engine.chat_request([{"role": "user", "content": "Hi"}], params)


def nothing_left() -> bool:
    return not models_folder().exists() or list(models_folder().iterdir()) == []


# --- config.json -------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.sampled_from([1e300, 5e-324, 1e-46, 1e18, 1, 0.999])
)


@given(theta=NUMBERS, eps=NUMBERS, factor=NUMBERS, low=NUMBERS, high=NUMBERS, original=st.integers(0, 1 << 28))
def test_a_config_that_is_accepted_can_be_stored_and_computed_with(
    theta: float, eps: float, factor: float, low: float, high: float, original: int
) -> None:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
               "original_max_position_embeddings": original}  # fmt: skip
    for changes in ({"rope_theta": theta}, {"rms_norm_eps": eps}, {"rope_scaling": scaling}):
        try:
            config = load_config(tiny_config("llama", **changes))
        except InvalidModel:
            continue
        described = json.loads(json.dumps([encode_description(describe(config)), model_record(config)]))
        assert decode_description(*described, most_layers=100).decoder == describe(config)
        assert np.float32(config.norm_eps) > 0
        with np.errstate(all="raise", under="ignore"):
            cos, sin = rope_tables(describe(config).layers[0].attention.rope, 512)
        assert np.isfinite(cos).all() and np.isfinite(sin).all()


@pytest.mark.parametrize("theta", [1e300, 1e-300, 0.5])
def test_a_theta_that_no_run_could_use_is_refused(theta: float) -> None:
    with pytest.raises(InvalidModel, match="rope_theta must be a number from 1 to"):
        load_config(tiny_config("llama", rope_theta=theta))


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["plain", "template"])
@pytest.mark.parametrize("context", [1, 2, 3, 24])
def test_a_context_that_is_accepted_holds_a_prompt_and_an_answer(
    tiny_model: Callable[..., Path], context: int, template: str | None
) -> None:
    source = tiny_model("llama", max_position_embeddings=context, chat_template=template)
    try:
        folder = import_model(source, "m", outliers=Outliers("none"))
    except InvalidModel as refused:
        assert f"a context of `{context}` tokens has no room" in str(refused)
        assert nothing_left()
        assert context < 3 or template
    else:
        assert answers(folder) == answers(folder, float_path=True) == 1
        assert context >= 3


# --- generation_config.json --------------------------------------------------------------------------------------

UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"do_sample": True, "temperature": 1e300}, "temperature must be between 0 and 100, got `1e+300`"),
    ({"do_sample": True, "top_p": 7}, "top_p must be between 0 and 1, got `7`"),
    ({"do_sample": True, "top_k": 1.5}, "top_k must be a whole number"),
    ({"do_sample": True, "top_k": "5"}, "top_k must be a whole number"),
    ({"do_sample": True, "min_p": [0.5]}, "min_p must be a number"),
    ({"do_sample": True, "temperature": True}, "temperature must be a number"),
    ({"do_sample": True, "temperature": 10**400}, "temperature must be a number, got `a 1329-bit integer`"),
    ({"do_sample": "no"}, "do_sample must be true or false, got `no`"),
    ({"repetition_penalty": 0}, "repetition_penalty must be between 0.01 and 100, got `0`"),
    ({"repetition_penalty": "x\x1b[2J"}, "repetition_penalty must be a number, got `x\\x1b[2J`"),
]


@pytest.mark.parametrize(("raw", "reason"), UNUSABLE, ids=lambda value: str(value)[:40])
def test_a_default_that_cannot_be_used_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: dict[str, Any], reason: str
) -> None:
    source = write_model(tmp_path / "model", tiny_config("llama", num_hidden_layers=1))
    write_json(source / "generation_config.json", raw)
    said: list[str] = []
    folder = import_model(source, "m", outliers=Outliers("none"), notice=said.append)
    assert [line for line in said if line.startswith(f"generation_config.json: {reason}")]
    assert answers(folder) == 1
    assert run(["show", "m"]) == 0
    assert reason in capsys.readouterr().out


TEXTS = st.sampled_from(["", "x", "0.5", "\x1b"])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.lists(st.integers(), max_size=2))
NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@given(raw=st.fixed_dictionaries({}, optional={"do_sample": VALUES, **dict.fromkeys(NAMES, VALUES)}))
def test_every_default_is_used_or_named(raw: dict[str, Any]) -> None:
    found = generation_defaults(raw)
    greedy = raw.get("do_sample") is not None and raw["do_sample"] == 0
    asked = [name for name in NAMES if raw.get(name) is not None and not (greedy and name != NAMES[-1])]
    for name in asked:
        named = any(line.startswith(f"{name} must be") for line in found.left_out)
        assert named or getattr(found.params, name) == getattr(found.served, name) == raw[name]
    assert all(line.isprintable() for line in found.left_out)


def test_the_defaults_of_a_good_author_are_used() -> None:
    raw = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "eos_token_id": 7}
    found = generation_defaults(raw)
    assert found.left_out == ()
    assert found.params == found.served
    assert found.params == GenerationParams(
        temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05, loop_guard=True
    )


# --- weights -----------------------------------------------------------------------------------------------------

TENSORS = [
    "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight",
    *(f"model.layers.0.{name}_proj.weight" for name in ("self_attn.k", "self_attn.v", "mlp.up", "mlp.down")),
]  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_one_enormous_weight_is_refused_or_runs(tmp_path: Path, name: str) -> None:
    raw = tiny_config("llama", num_hidden_layers=1)
    for value in (3e38, -1e15):
        tensors = random_tensors(raw)
        tensors[name] = tensors[name].copy()
        tensors[name].flat[5] = value
        source = write_model(tmp_path / f"{value:g}", raw, tensors=tensors)
        try:
            folder = import_model(source, "m", overwrite=True)
        except EdgeLLMError as refused:
            assert "weights" in str(refused) or "float16" in str(refused)
        else:
            assert value < 3e38
            assert answers(folder) == 1


# --- shapes ------------------------------------------------------------------------------------------------------

SHAPES = st.fixed_dictionaries(
    {
        "hidden_size": st.sampled_from([1, 2, 17, 64]),
        "intermediate_size": st.sampled_from([1, 5, 33, 112]),
        "num_attention_heads": st.sampled_from([2, 6]),
        "num_key_value_heads": st.sampled_from([1, 2]),
        "head_dim": st.sampled_from([8, 24, 56]),
        "max_position_embeddings": st.sampled_from([3, 16, 17, 64]),
        "tie_word_embeddings": st.booleans(),
        "rms_norm_eps": st.sampled_from([1e-20, 1e-5, 1.0]),
        "rope_theta": st.sampled_from([1, 1e4, 1e18]),
    }
)


@settings(max_examples=6, deadline=None)
@given(shape=SHAPES, family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]))
def test_a_shape_that_is_accepted_runs(tmp_path_factory: pytest.TempPathFactory, shape: dict[str, Any], family: str) -> None:
    folder = tmp_path_factory.mktemp("shape")
    source = write_model(folder / "model", tiny_config(family, num_hidden_layers=1, **shape))
    bundle = import_model(source, target=folder / "bundle", outliers=Outliers("none"))
    assert answers(bundle) == answers(bundle, float_path=True) == 1
