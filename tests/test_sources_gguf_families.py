"""GGUF files of every family: the same model as the folder that they were made of."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from families import family_folder
from gguf_families import IN_GGUF, family_gguf, family_pairs, family_tensors
from gguf_files import floats, gguf_bytes, tokenizer_pairs
from safetensors.numpy import load_file

from edge_llm.convert.importer import import_model
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.gguf import open_gguf
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.models import describe, families
from edge_llm.models.reference import FloatModel
from edge_llm.models.weights import check_tensors
from edge_llm.sources import open_source
from edge_llm.sources.gguf_config import config_of
from edge_llm.sources.gguf_families import ARCHITECTURE_OF, ARCHITECTURES, _share, architectures
from edge_llm.sources.lora_places import wish

TOKENS = list(range(20, 90))
"""More than any window, and than what the rotations were stretched from."""
SAID = {"query_pre_attn_scalar": 16, "swiglu_limit": 7.0}
"""What a file leaves to the name of its architecture."""
SAME = [name for name in IN_GGUF if name not in ("hunyuan, alpha", "phi3, long")]
"""Whose descriptions are equal; a base with an alpha in it, and divisors that are no short decimals, are in float32."""


@pytest.fixture(scope="module", params=IN_GGUF)
def both(request, tmp_path_factory):
    """A family's folder, and the GGUF file of it."""
    folder, _ = family_folder(tmp_path_factory.mktemp("family") / "hf", request.param)
    change(folder, SAID)
    file = folder.parent / "m.gguf"
    file.write_bytes(family_gguf(folder))
    return request.param, folder, file


def change(folder, values) -> None:
    config = folder / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps(raw | {key: value for key, value in values.items() if key in raw}))


def test_every_architecture_runs():
    assert set(ARCHITECTURE_OF) <= set(families())
    assert list(ARCHITECTURES) == architectures()


def test_a_family_is_the_same_from_both(both):
    name, folder, file = both
    with open_source(file) as mine, open_source(folder) as theirs:
        assert (mine.config.family, describe(mine.config).tied) == (theirs.config.family, describe(theirs.config).tied)
        if name in SAME:
            assert describe(mine.config) == describe(theirs.config)
        assert sorted(mine.names()) == sorted(theirs.names()) and not check_tensors(mine, describe(mine.config))
        for tensor in theirs.names():
            assert mine.shape(tensor) == theirs.shape(tensor)
            assert np.allclose(mine.read(tensor), theirs.read(tensor), rtol=1e-6, atol=1e-7), tensor
        found, wanted = (FloatModel(one, one.config).forward(TOKENS) for one in (mine, theirs))
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    assert found.argmax(-1).tolist() == wanted.argmax(-1).tolist()


@pytest.mark.parametrize("name", ["granite", "cohere2"])
def test_the_bundles_are_the_same(name, tmp_path):
    folder, _ = family_folder(tmp_path / "hf", name)
    (tmp_path / "m.gguf").write_bytes(family_gguf(folder))
    bundles = [import_model(source, target=tmp_path / source.stem[0]) for source in (tmp_path / "m.gguf", folder)]
    opened = [open_bundle(bundle) for bundle in bundles]
    assert opened[0].decoder == opened[1].decoder
    assert (bundles[0] / WEIGHTS).read_bytes() == (bundles[1] / WEIGHTS).read_bytes()
    assert opened[0].manifest["source"]["from"] == "F32"


# ---- what a file leaves to the name of its architecture, or says in another way


@cache
def config_json(name) -> dict:
    with TemporaryDirectory() as folder:
        return json.loads((family_folder(Path(folder), name)[0] / "config.json").read_text())


def config_by(tmp_path, name, **said):
    """The config.json of a file of the family ``name``; pairs ``said`` have ``__`` for dots, None takes one away."""
    raw = config_json(name)
    pairs = family_pairs(raw)
    arch = pairs["general.architecture"]
    pairs |= {f"{arch}.{key.replace('__', '.')}": value for key, value in said.items()}
    table = floats("token_embd.weight", np.zeros((raw["vocab_size"], raw["hidden_size"])))
    pairs = {key: value for key, value in pairs.items() if value is not None}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, [table]))
    with open_gguf(tmp_path / "m.gguf") as model:
        return config_of(model)


def letters(config) -> str:
    return "".join("l" if kind == "sliding_attention" else "g" for kind in config["layer_types"])


PATTERN = "attention__sliding_window_pattern"


@pytest.mark.parametrize(
    ("name", "said", "wanted"),
    [
        ("gemma2", {}, "lglglg"),
        ("gemma2", {"attention__sliding_window": None}, "lglglg"),
        ("gemma3_text", {PATTERN: 3}, "llgllg"),
        ("olmo3", {PATTERN: None}, "lllgll"),
        ("olmo3", {PATTERN: [True, False] * 3}, "lglglg"),
        ("olmo3", {"block_count": 9, "nextn_predict_layers": 2, PATTERN: None}, "lllglll"),
        ("exaone4", {PATTERN: None}, "lllgll"),
        ("exaone4", {"block_count": 64, PATTERN: None, "attention__sliding_window": None}, "lllg" * 16),
        ("cohere2", {}, "lllgll"),
        ("cohere2", {PATTERN: 2}, "lglglg"),
    ],
)
def test_layers_are_local_as_their_architecture_has_it(name, said, wanted, tmp_path):
    config = config_by(tmp_path, name, **said)
    assert letters(config) == wanted and config["num_hidden_layers"] == len(wanted)
    given = said.get("attention__sliding_window", 16)
    assert config["sliding_window"] == (4096 if given is None else given)


@pytest.mark.parametrize(
    ("name", "said", "wanted"),
    [
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}, {"attn_logit_softcapping": 50.0}),
        ("gemma2", {"final_logit_softcapping": 0.0}, {"final_logit_softcapping": None}),
        ("gemma2", {}, {"query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh"}),
        (
            "gemma2",
            {"block_count": 46, "embedding_length": 64, "attention__key_length": 32, "attention__value_length": 32},
            {"query_pre_attn_scalar": 16, "head_dim": 32},
        ),
        ("olmo3", {"attention__sliding_window": 0}, {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}),
        ("granite", {"attention__scale": None}, {"attention_multiplier": 0.25}),
        ("granite", {"residual_scale": None}, {"residual_multiplier": 1.0}),
        ("granite", {"embedding_scale": 0.0}, {"embedding_multiplier": 1.0}),
        ("phi3", {"attention__sliding_window": 0}, {"sliding_window": None}),
        ("phi3", {"rope__dimension_count": 12}, {"partial_rotary_factor": 0.75}),
        ("phi3", {"rope__dimension_count": None}, {"partial_rotary_factor": 1.0}),
        ("exaone4", {"attention__sliding_window": None}, {"sliding_window": None}),
        (
            "ministral3",
            {"attention__temperature_scale": None, "rope__scaling__type": None, "rope__scaling__factor": None},
            {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None, "rope_theta": 1e6},
        ),
        ("ernie4_5", {}, {"use_bias": False}),
        ("smollm3", {}, {"no_rope_layer_interval": 4, "attention_bias": False, "mlp_bias": False}),
    ],
)
def test_what_is_not_said_is_what_llama_cpp_has(name, said, wanted, tmp_path):
    config = config_by(tmp_path, name, **said)
    assert {key: config[key] for key in wanted} == wanted


@pytest.mark.parametrize(("factor", "wanted"), [(None, None), (1.0, 1.0), (1.13862943611, None)])
def test_yarns_own_factor_is_said_where_it_is_not_the_usual_one(factor, wanted, tmp_path):
    said = {} if factor is None else {"rope__scaling__yarn_attn_factor": factor}
    assert config_by(tmp_path, "olmo3", **said)["rope_scaling"].get("attention_factor") == wanted


@pytest.mark.parametrize(
    ("name", "said", "error", "told"),
    [
        ("granite", {"rope__scaling__finetuned": False}, UnsupportedModel, "whose heads do not turn"),
        ("granite", {"logit_scale": None}, InvalidModel, "lacks `granite.logit_scale`"),
        ("granite", {"logit_scale": 0.0}, InvalidModel, "granite.logit_scale"),
        ("gemma2", {"rope__freq_base_swa": 5e4}, UnsupportedModel, "turn by `50000`"),
        ("glm4", {"rope__dimension_sections": [4, 2, 2, 0]}, UnsupportedModel, "by places in a picture"),
        ("cohere2", {"rope__dimension_count": 8}, UnsupportedModel, "rope.dimension_count` is `8`"),
        ("cohere2", {"attention__sliding_window": None}, InvalidModel, "lacks `cohere2.attention.sliding_window`"),
        ("exaone4", {"nextn_predict_layers": 6}, InvalidModel, "nextn_predict_layers` is `6` of 6 layers"),
        ("olmo3", {PATTERN: [True, False]}, InvalidModel, "says of 2 layers, there are 6"),
        ("ministral3", {"rope__scaling__original_context_length": None, "rope__scaling__type": "none"}, InvalidModel, "lacks"),
    ],
)
def test_what_makes_no_sense_or_does_not_run_is_told(name, said, error, told, tmp_path):
    with pytest.raises(error, match=told) as refused:
        config_by(tmp_path, name, **said)
    assert "\n" not in str(refused.value)


def test_the_share_of_a_head_that_turns_gives_its_channels_back():
    for head in range(8, 257, 8):
        for turned in range(2, head + 1, 2):
            assert int(head * _share(turned, head)) == turned


def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    folder, _ = family_folder(tmp_path / "hf", "glm4")
    raw, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    said = family_pairs(raw) | {"glm4.block_count": 7, "glm4.nextn_predict_layers": 1}
    more = [floats(f"blk.6.{name}.weight", np.ones((4, 4))) for name in ("attn_q", "nextn.eh_proj", "nextn.enorm")]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(said | tokenizer_pairs(), [*family_tensors(raw, tensors), *more]))
    with open_source(tmp_path / "m.gguf") as source:
        assert sorted(source.names()) == sorted(tensors)
        assert not check_tensors(source, describe(source.config))


@pytest.mark.parametrize(("name", "without"), [("glm4", "attn_k.bias"), ("granite, untied, with biases", "ffn_up.bias")])
def test_a_bias_that_is_not_there_is_zero(name, without, tmp_path):
    folder, _ = family_folder(tmp_path / "hf", name)
    raw, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    mine = [one for one in family_tensors(raw, tensors) if not one[0].endswith(without)]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(family_pairs(raw) | tokenizer_pairs(), mine))
    with open_source(tmp_path / "m.gguf") as source:
        assert sorted(source.names()) == sorted(tensors)
        part = {"attn_k.bias": "self_attn.k_proj.bias", "ffn_up.bias": "mlp.up_proj.bias"}[without]
        assert not source.read(f"model.layers.1.{part}").any()


# ---- adapters


@pytest.mark.parametrize("name", ["granite", "smollm3", "ministral3", "gemma2", "phi3", "glm4", "hunyuan", "olmo2"])
def test_a_gguf_adapter_of_a_family_changes_what_it_was_trained_for(name, tmp_path):
    folder, _ = family_folder(tmp_path / "hf", name)
    raw, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    random = np.random.default_rng(0)
    up = {
        tensor: random.standard_normal((values.shape[0], 3), np.float32)
        for tensor, values in tensors.items()
        if values.ndim == 2 and ".layers.1." in tensor
    }
    norm = {"model.layers.1.post_attention_layernorm.weight": random.standard_normal(raw["hidden_size"], np.float32)}
    mine = [(f"{one[0]}.lora_b", *one[1:]) for one in family_tensors(raw, up) if one[0].startswith("blk.")]
    down = {one[0]: random.standard_normal((3, tensors[tensor].shape[1]), np.float32)
            for tensor, one in zip(up, mine, strict=True)}  # fmt: skip
    mine += [floats(own.replace("lora_b", "lora_a"), values) for own, values in down.items()]
    mine += [one for one in family_tensors(raw, norm) if one[0].startswith("blk.")]
    said = {"general.architecture": family_pairs(raw)["general.architecture"]}
    said |= {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 6.0}
    (tmp_path / "a.gguf").write_bytes(gguf_bytes(said, mine))
    wanted = tensors | norm
    wanted |= {
        tensor: tensors[tensor] + 2 * values @ lower for (tensor, values), lower in zip(up.items(), down.values(), strict=True)
    }
    with open_source(folder, lora=[wish(str(tmp_path / "a.gguf"))]) as opened:
        for tensor, values in wanted.items():
            np.testing.assert_allclose(opened.read(tensor), values, rtol=1e-5, atol=1e-5, err_msg=tensor)


def test_phi_3s_tokens_take_the_spaces_behind_them(tmp_path):
    """As its tokenizer.json has it: a line's end behind `<|end|>` is no token."""
    raw = config_json("phi3")
    words = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|end|>", "<|user|>", "\u2581", "a", "\u2581a"]
    marks = [f"<0x{number:02X}>" for number in range(256)]
    said = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [*words, *marks],
        "tokenizer.ggml.token_type": [2, 3, 3, 3, 3, 3, 1, 1, 1] + [6] * 256,
        "tokenizer.ggml.scores": [0.0] * 6 + [-3.0, -2.0, -1.0] + [0.0] * 256,
    }  # fmt: skip
    table = floats("token_embd.weight", np.zeros((raw["vocab_size"], raw["hidden_size"])))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(family_pairs(raw) | said, [table]))
    with open_source(tmp_path / "m.gguf") as source:
        tokenizer = source.tokenizer()
    ids = tokenizer.encode("<|user|>\na<|end|>\n <|endoftext|>\n", parse_special=True)
    assert [tokenizer.token_text(one) for one in ids] == ["<|user|>", "\u2581a", "<|end|>", "<|endoftext|>", "\u2581", "<0x0A>"]
