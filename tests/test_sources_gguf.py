"""Models out of GGUF files: the same model as the repository that llama.cpp's converter made the file of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf_files import I32, Of, floats, gguf_bytes, model_gguf, model_pairs, model_tensors, tokenizer_pairs
from model_files import SPECIALS, random_tensors, tiny_config, write_model
from stub_hub import COMMIT, Stub, environment, serving
from tokenizers import Tokenizer as Backend

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.errors import InvalidModel, InvalidTokenizer, UnsupportedModel
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.gguf import open_gguf
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.models import describe, load_config
from edge_llm.models.rope import frequencies
from edge_llm.models.weights import check_tensors
from edge_llm.opening.made_from import is_made_from
from edge_llm.opening.runner import load_runner
from edge_llm.sources import open_source
from edge_llm.sources.gguf import _ENDS
from edge_llm.sources.gguf_config import config_of
from edge_llm.sources.gguf_families import ARCHITECTURES
from edge_llm.sources.gguf_rope import divisors_of, lengths_of
from edge_llm.sources.gguf_tensors import GgufTensors
from edge_llm.sources.hub_gguf import choose, model_name
from edge_llm.sources.names import default_name
from edge_llm.sources.place import place_of

pytestmark = pytest.mark.thorough(file=14)

TEMPLATE = "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
ROOT = Path(__file__).resolve().parents[1]


def hostile_texts(count: int) -> list[str]:
    """Ordinary and hostile strings."""
    letters = list("abcDEF 0193456.,!?'\n\r\t sdlt\u00e9\u0301\u65e5\u672c\u8a9e\U0001f600\u2581\u200d\u0663\u2003<>|_$/\0")
    words = ["hello", "the", "world", " in", "<|im_end|>", "</s>", "<s>", "<unk>", "<0x41>", "\u2581\u2581", "don't", "I'LL"]
    rng = np.random.default_rng(0)
    fixed = ["", " ", "  a  b ", "\n\n x\ty", "def f(x):\n    return x+1\n", "x" * 200, "e\u0301\u03a9\u212b", *words]
    lengths = rng.integers(30, size=count)
    return fixed + ["".join(rng.choice(words if rng.random() < 0.1 else letters) for _ in range(length)) for length in lengths]


def same_tokens(one, other, count: int = 500) -> None:
    for text in hostile_texts(count):
        for special in (False, True):
            ids = one.encode(text, parse_special=special)
            assert ids == other.encode(text, parse_special=special), (text, special)
            assert one.decode(ids) == other.decode(ids), text


LAYER = "model.layers.0."
NOBODY = "http://127.0.0.1:1"


def edge_llm(home: Path, endpoint: str, edge_llm_home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with the hub at ``endpoint``."""
    around = environment(home, endpoint, EDGE_LLM_HOME=str(edge_llm_home), HF_HUB_OFFLINE="0") | more
    command = [sys.executable, "-m", "edge_llm", *words]
    return subprocess.run(command, env=around, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("qwen3", {"attention_bias": True}),
        ("mistral", {"sliding_window": 96}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True}),
    ],
)
def test_a_family_is_the_same_from_both(family, changes, tmp_path):
    raw = tiny_config(family, **changes)
    tensors = random_tensors(raw)
    folder = write_model(tmp_path / "hf", raw, tensors=tensors, chat_template=TEMPLATE)
    file = tmp_path / "m.gguf"
    file.write_bytes(model_gguf(raw, tensors, tokenizer__chat_template=TEMPLATE))
    with open_source(file) as mine, open_source(folder) as theirs:
        assert mine.config == theirs.config and sorted(mine.names()) == sorted(theirs.names())
        assert all(np.array_equal(mine.read(name), theirs.read(name)) for name in theirs.names())
        assert all(mine.shape(name) == theirs.shape(name) for name in theirs.names())
        one, other = mine.tokenizer(), theirs.tokenizer()
        assert (one.bos_id, one.eos_ids, one.add_bos) == (other.bos_id, other.eos_ids, other.add_bos)
        messages = [{"role": "user", "content": "hello"}]
        assert mine.template(one).render(messages) == theirs.template(other).render(messages)
        same_tokens(one, other, 150)
        assert mine.quantization == "F32" and mine.bits_per_weight == 32


def test_the_bundles_are_the_same_and_the_float_path_finds_the_file(tmp_path):
    raw = tiny_config("llama")
    tensors = random_tensors(raw)
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, tensors))
    write_model(tmp_path / "hf", raw, tensors=tensors)
    notices: list[str] = []
    made = [
        open_bundle(import_model(tmp_path / name, target=tmp_path / f"b-{name}", notice=notices.append))
        for name in ("m.gguf", "hf")
    ]
    assert (made[0].folder / WEIGHTS).read_bytes() == (made[1].folder / WEIGHTS).read_bytes()
    assert notices[0].startswith("F32, 32.0 bits per weight (") and "becomes weights of 8 bits" in notices[0]
    assert made[0].manifest["source"]["from"] == "F32" and "from" not in made[1].manifest["source"]
    runners = [load_runner(bundle, RuntimeConfig(float_path=True, context=32), 20)[0] for bundle in made]
    assert np.array_equal(*(runner.forward(runner.open(), list(range(20)), wanted=20) for runner in runners))


def test_stories_has_the_same_weights_and_tokens_from_both(stories_folder, tmp_path):
    file = stories_folder.parent / "stories260k-f32.gguf"
    bundles = [import_model(source, target=tmp_path / name) for name, source in (("a", file), ("b", stories_folder))]
    assert (bundles[0] / WEIGHTS).read_bytes() == (bundles[1] / WEIGHTS).read_bytes()
    with open_source(file) as mine, open_source(stories_folder) as theirs:
        assert mine.config == theirs.config
        same_tokens(mine.tokenizer(), theirs.tokenizer(), 2500)


@pytest.mark.parametrize("lengths", [(1.0, 4.0, 8192), (1.0, 4.0, 4096), (2.0, 5.0, 8192), (1.0, 32.0, 2048)])
def test_llama_3s_scaled_frequencies_are_found_again(lengths, tmp_path):
    names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    scaling = {"rope_type": "llama3", "factor": 32.0} | dict(zip(names, lengths, strict=True))
    raw = tiny_config("llama", head_dim=64, rope_theta=500000.0, rope_scaling=scaling)
    tensors = random_tensors(raw)
    folder, pairs = write_model(tmp_path / "hf", raw, tensors=tensors), model_pairs(raw) | tokenizer_pairs()
    with open_source(folder) as theirs:
        expected = theirs.config
    right = divisors_of(500000.0, 64, 32.0, scaling)
    for divisors, fits in ((right, True), (right * 1.1, False), (right[:-1], False), (right[::-1], False)):
        file = tmp_path / "m.gguf"
        file.write_bytes(gguf_bytes(pairs, [*model_tensors(raw, tensors), floats("rope_freqs.weight", divisors)]))
        if fits:
            with open_source(file) as mine:
                assert "rope_freqs.weight" not in mine.names() and mine.config.rope_scaling.factor == 32
                waves = [frequencies(describe(one).layers[0].attention.rope) for one in (mine.config, expected)]
                np.testing.assert_allclose(*waves, rtol=1e-5)
                if lengths[0] == 1.0:
                    assert mine.config == expected
        else:
            with pytest.raises(UnsupportedModel, match="not scaled as those of Llama 3"):
                open_source(file)


@pytest.mark.filterwarnings("error")
def test_any_divisors_are_a_scaling_or_none_without_a_warning():
    rng = np.random.default_rng(0)
    for _ in range(500):
        head, theta = int(rng.choice([2, 4, 16, 64, 128])), float(rng.choice([1.0, 2.0, 1e4, 5e5, 1e18]))
        kinds = (
            rng.standard_normal(head // 2) * 10.0 ** rng.integers(-3, 30), np.abs(rng.standard_normal(head // 2)) + 1,
            rng.choice([0, 1, 2, 8, 1e30, 1e-30], head // 2),
        )  # fmt: skip
        divisors = kinds[rng.integers(3)].astype(np.float32).astype(np.float64)
        if (lengths := lengths_of(divisors, theta, head)) is not None:
            assert np.isfinite(divisors_of(theta, head, float(divisors.max()), lengths)).all()


def test_divisors_of_one_are_no_scaling(tmp_path):
    raw = tiny_config("llama")
    file = tmp_path / "m.gguf"
    file.write_bytes(
        gguf_bytes(
            model_pairs(raw) | tokenizer_pairs(),
            [*model_tensors(raw, random_tensors(raw)), floats("rope_freqs.weight", np.ones(8))],
        )
    )
    with open_source(file) as source:
        assert source.config.rope_scaling is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, None),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.type": "linear", "scaling.factor": 1.0}, None),
        ({"scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32},
            {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        ),
    ],
)  # fmt: skip
def test_how_positions_are_scaled_is_said_as_config_json_does(keys, said, tmp_path):
    raw = tiny_config("qwen2", num_hidden_layers=1)
    pairs = model_pairs(raw) | {f"qwen2.rope.{key}": value for key, value in keys.items()}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with open_gguf(tmp_path / "m.gguf") as model:
        assert config_of(model).get("rope_scaling") == said


def test_the_divisors_are_those_of_transformers():
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=2, max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip
    theirs = rope.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
    plain = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / divisors_of(500000.0, 64, 8.0), theirs, rtol=1e-5)


WRONG = {
    "another architecture": ({"general.architecture": "gemma9"}, UnsupportedModel, "`gemma9`.*these do: llama, qwen2, qwen3"),
    "no architecture": ({"general.architecture": None}, InvalidModel, "lacks `general.architecture`"),
    "an adapter": (
        {"general.type": "adapter"}, UnsupportedModel, "m.gguf` is an adapter.*`edge-llm import MODEL --lora .*m.gguf` merges",
    ),
    "an adapter that names its model": (
        {"general.type": "adapter", "general.base_model.0.repo_url": "https://huggingface.co/org/tiny"},
        UnsupportedModel, "adapter .LoRA. of `org/tiny`.*`edge-llm import org/tiny --lora .*m.gguf` merges",
    ),
    "a projector": ({"general.type": "mmproj"}, UnsupportedModel, "of the type `mmproj`, not a model"),
    "no layers": ({"llama.block_count": 0}, InvalidModel, "block_count"),
    "10^9 layers": ({"llama.block_count": 10**9}, InvalidModel, "block_count"),
    "negative layers": ({"llama.block_count": Of(I32, -2)}, InvalidModel, "block_count"),
    "layers that are not there": ({"llama.block_count": 3}, InvalidModel, "no tensor|lacks|missing"),
    "no heads": ({"llama.attention.head_count": 0}, InvalidModel, "head_count"),
    "3 kv heads of 4": ({"llama.attention.head_count_kv": 3}, InvalidModel, "multiple"),
    "kv heads by layer": ({"llama.attention.head_count_kv": [1, 2]}, InvalidModel, "array of different values"),
    "part of a head turned": ({"llama.rope.dimension_count": 8}, UnsupportedModel, "rope.dimension_count"),
    "experts": ({"llama.expert_count": 8}, InvalidModel, "expert_used_count"),
    "not causal": ({"llama.attention.causal": False}, UnsupportedModel, "only causal models run"),
    "a rotation of another kind": ({"llama.rope.scaling.type": "spiral"}, UnsupportedModel, "m.gguf.*`spiral`"),
    "a tokenizer of another kind": ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModel, "kind `rwkv`"),
    "an unknown pre": ({"tokenizer.ggml.pre": "new"}, UnsupportedModel, "splits text by `new`"),
    "tokens as numbers": ({"tokenizer.ggml.tokens": [1, 2]}, InvalidModel, "must be an array of strings"),
    "types of another length": ({"tokenizer.ggml.token_type": [1, 1]}, InvalidTokenizer, "2 `tokenizer.ggml.token_type`"),
    "a token twice": (
        {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, InvalidTokenizer, "`a` twice",
    ),
    "more tokens than rows": ({"tokenizer.ggml.tokens": [str(i) for i in range(999)]}, InvalidTokenizer, "999 tokens"),
    "a merge of nothing": ({"tokenizer.ggml.merges": ["h nothing"]}, InvalidTokenizer, "merge `h nothing`"),
    "a merge twice": ({"tokenizer.ggml.merges": ["h e", "h e"]}, InvalidTokenizer, "merge `h e` twice"),
    "an end beyond": ({"tokenizer.ggml.eos_token_id": 5000}, InvalidTokenizer, "`5000`"),
    "no scores": ({"tokenizer.ggml.model": "llama"}, InvalidTokenizer, "no `tokenizer.ggml.scores`"),
    "a template of 2 MiB": ({"tokenizer.chat_template": "x" * (2 << 20)}, InvalidTokenizer, "chat template has"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_makes_no_sense_or_does_not_run_is_told(kind, tmp_path, edge_llm_home):
    changes, error, said = WRONG[kind]
    raw = tiny_config("llama")
    pairs = {key: value for key, value in (model_pairs(raw) | tokenizer_pairs() | changes).items() if value is not None}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with pytest.raises(error, match=said) as refused:
        import_model(tmp_path / "m.gguf", "m")
    assert "\n" not in str(refused.value)
    assert not any((edge_llm_home / "models").glob("*"))


def test_scores_without_order_and_scaled_tensors_are_refused(tmp_path):
    raw = tiny_config("llama")
    tensors, pairs = random_tensors(raw), model_pairs(raw) | tokenizer_pairs()
    same = pairs | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0] * len(pairs["tokenizer.ggml.tokens"])}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(same, model_tensors(raw, tensors)))
    with pytest.raises(UnsupportedModel, match="same score"):
        open_source(tmp_path / "m.gguf").tokenizer()
    scale = floats("blk.0.attn_q.scale", np.ones(1))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, [*model_tensors(raw, tensors), scale]))
    with pytest.raises(UnsupportedModel, match=r"attn_q.scale` changes what others mean"):
        open_source(tmp_path / "m.gguf")


LINEARS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"mlp_bias": True}], ids=["none", "attention", "mlp"])
@pytest.mark.parametrize("name", LINEARS)
def test_a_bias_that_is_not_there_is_zero_where_others_are(name, changes, tmp_path):
    """One more than the model has, or one less."""
    raw = tiny_config("llama", num_hidden_layers=1, **changes)
    tensors = random_tensors(raw)
    named = f"{LAYER}{LINEARS[name]}.bias"
    rows = tensors[f"{LAYER}{LINEARS[name]}.weight"].shape[0]
    biases = {one: values for one, values in tensors.items() if one.endswith(".bias")}
    if named in biases:
        del tensors[named], biases[named]
    else:
        tensors[named] = biases[named] = np.arange(rows, dtype=np.float32)
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, tensors))
    with open_source(tmp_path / "m.gguf") as source:
        mine = {one: source.read(one) for one in source.names() if one.endswith(".bias")}
        assert all(values.shape == source.shape(one) for one, values in mine.items())
        assert all(np.array_equal(mine.pop(one), values) for one, values in biases.items())
        assert not any(values.any() for values in mine.values()) and len(mine) + len(biases) in (0, 3, 4, 7)
        assert not check_tensors(source, describe(source.config))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *(("llama", name) for name in ("attn_norm", "ffn_norm", "attn_q_norm")),
        *(("qwen2", name) for name in ("attn_norm", "ffn_up", "attn_output")),
    ],
)
def test_a_bias_that_nothing_adds_is_refused(family, name, tmp_path):
    raw = tiny_config(family, num_hidden_layers=1)
    tensors = [*model_tensors(raw, random_tensors(raw)), floats(f"blk.0.{name}.bias", np.ones(64))]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), tensors))
    with pytest.raises(UnsupportedModel, match=rf"blk.0.{name}.bias` is added.*does not run here") as refused:
        open_source(tmp_path / "m.gguf")
    assert "\n" not in str(refused.value)


def fused(tensors: list[tuple], *kinds: str) -> list[tuple]:
    """The same with q, k and v in one tensor."""
    found = list(tensors)
    for layer in {one[0].split(".")[1] for one in tensors if one[0].startswith("blk.")}:
        for kind in kinds:
            names = [f"blk.{layer}.attn_{part}.{kind}" for part in "qkv"]
            parts = [one for name in names for one in found if one[0] == name]
            shape = (sum(one[2][0] for one in parts), *parts[0][2][1:])
            found = [one for one in found if one not in parts]
            found.append((f"blk.{layer}.attn_qkv.{kind}", parts[0][1], shape, b"".join(one[3] for one in parts)))
    return found


@pytest.mark.parametrize("kinds", [("weight", "bias"), ("weight",)])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_queries_keys_and_values_in_one_tensor_are_taken_apart(family, kinds, tmp_path):
    raw = tiny_config(family, **({"attention_bias": True} if family == "llama" else {}))
    tensors = random_tensors(raw)
    mine = fused(model_tensors(raw, tensors), *kinds)
    assert any(one[0] == "blk.0.attn_qkv.weight" for one in mine) and not any("attn_q.weight" in one[0] for one in mine)
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), mine))
    with open_source(tmp_path / "m.gguf") as source:
        assert sorted(source.names()) == sorted(tensors)
        assert all(np.array_equal(source.read(name), values) for name, values in tensors.items())
        assert all(source.shape(name) == values.shape for name, values in tensors.items())
    again = [*mine, floats("blk.0.attn_k.weight", tensors[f"{LAYER}self_attn.k_proj.weight"])]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), again))
    with pytest.raises(InvalidModel, match="attn_qkv.weight` and `blk.0.attn_k.weight` are the same tensor"):
        open_source(tmp_path / "m.gguf")
    short = [floats(one[0], np.ones((64, 64))) if one[0] == "blk.0.attn_qkv.weight" else one for one in mine]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), short))
    with pytest.raises(InvalidModel, match="has `64` rows; q, k and v are"):
        open_source(tmp_path / "m.gguf")


def test_rows_of_a_quantized_tensor_are_those_of_the_whole(tmp_path):
    blocks = np.random.default_rng(3).integers(0, 60, (6, 34), dtype=np.uint8)
    tensors = [("t", 8, (3, 64), blocks.tobytes()), ("v", 8, (64,), blocks[:2].tobytes())]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes({}, tensors))
    with open_gguf(tmp_path / "m.gguf") as model:
        whole = model.read("t")
        assert all(
            np.array_equal(model.read("t", range(start, stop)), whole[start:stop])
            for start in range(3) for stop in range(start + 1, 4)
        )  # fmt: skip
        with pytest.raises(UnsupportedModel, match="the vector `v` is Q8_0"):
            model.read("v", range(32))


@pytest.mark.parametrize("name", ["lm_head.weight", f"{LAYER}input_layernorm.weight", f"{LAYER}mlp.up_proj.weight"])
def test_two_tensors_that_are_the_same_one_are_refused(name, tmp_path):
    raw = tiny_config("llama")
    tensors = random_tensors(raw)
    again = floats(name, tensors[name] + 1)
    for order in (1, -1):
        mine = [*model_tensors(raw, tensors), again][::order]
        (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), mine))
        with pytest.raises(InvalidModel, match="are the same tensor"):
            open_source(tmp_path / "m.gguf")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_sampling_that_is_no_number_is_left_out(value, tmp_path):
    raw = tiny_config("llama", num_hidden_layers=1)
    keys = ("temp", "top_k", "top_p", "min_p", "penalty_repeat")
    pairs = model_pairs(raw) | tokenizer_pairs() | {f"general.sampling.{key}": value for key in keys}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(tmp_path / "m.gguf") as source:
        assert set(source.generation_config()) == {"bos_token_id", "eos_token_id"}
    assert len(open_bundle(import_model(tmp_path / "m.gguf", target=tmp_path / "bundle")).decoder.layers) == 1


def test_unigram_and_its_spaces(tmp_path):
    raw = tiny_config("llama")
    words = ["<unk>", "</s>", "\u2581", "\u2581hello", "h", "e", "l", "o", "\u2581he", "llo", "\u2581world"]
    pairs = model_pairs(raw) | {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": [2, 3] + [1] * 9,
        "tokenizer.ggml.scores": [0.0, 0.0, -3.0, -2.0, -4.0, -4.0, -4.0, -4.0, -2.5, -2.5, -2.0],
        "tokenizer.ggml.eos_token_id": 1,
    }  # fmt: skip
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(tmp_path / "m.gguf") as source:
        tokenizer = source.tokenizer()
        ids = tokenizer.encode("hello world hello")
        assert [words[number] for number in ids] == ["\u2581hello", "\u2581world", "\u2581hello"]
        assert tokenizer.decode(ids) == "hello world hello" and tokenizer.eos_ids == {1}


BYTES = [f"<0x{number:02X}>" for number in range(256)]


def spaced_tokenizer(file: Path, kind: str, words: list[str], scores: list[float] | None = None, **more):
    """The tokenizer of a file with the pieces ``words`` after those for bytes."""
    raw = tiny_config("llama", num_hidden_layers=1, vocab_size=400)
    pairs = {key: value for key, value in model_pairs(raw).items() if "tokenizer" not in key} | {
        "tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *words],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.scores": [0.0] * 259 + (scores or [-float(number) for number in range(len(words))]),
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}  # fmt: skip
    file.write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(file) as source:
        return source.tokenizer()


@pytest.mark.parametrize("prefixed", [True, False])
def test_unigram_has_bytes_for_what_it_lacks_and_tokens_of_several_words(prefixed, tmp_path):
    words = ["\u2581", "\u2581\u2581", "a", "b", "\u2581a", "a\u2581b"]
    scores = [-5.0, -4.0, -6.0, -6.0, -4.0, -2.0]
    tokenizer = spaced_tokenizer(tmp_path / "m.gguf", "t5", words, scores, add_space_prefix=prefixed)
    for text in ("a a", "caf\u00e9 a", "\U0001f600", "a  b", "\u65e5\u672c a b", "x\ny"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 259 + 5 in tokenizer.encode("b a b")[-2:] and 259 + 1 in tokenizer.encode("b  b")


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_token_of_any_length_is_read_or_refused_soon(kind, tmp_path):
    for length in (100, 300_000):
        began = time.monotonic()
        try:
            tokenizer = spaced_tokenizer(tmp_path / "m.gguf", kind, ["\u2581", "a", "a" * length])
        except InvalidTokenizer as refused:
            assert f"{length} characters" in str(refused) and length > 1000
        else:
            assert tokenizer.decode(tokenizer.encode("a a")) == "a a"
        assert time.monotonic() - began < 50


def test_more_merges_than_any_model_has_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_llm.sources.gguf_tokenizer.MAX_MERGES", 3)
    raw = tiny_config("llama", num_hidden_layers=1)
    for count in (3, 4):
        merges = [f"h{number} nothing" for number in range(count)]
        (tmp_path / "m.gguf").write_bytes(model_gguf(raw, random_tensors(raw), tokenizer__ggml__merges=merges))
        with open_source(tmp_path / "m.gguf") as source, pytest.raises(InvalidTokenizer) as refused:
            source.tokenizer()
        assert ("has 4 merges; 3 are read" in str(refused.value)) is (count == 4)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "smollm", "gpt-4o", "tekken", "deepseek-v3", "falcon", "qwen35"])
def test_what_pre_splits_is_split_and_nothing_is_lost(pre, tmp_path):
    raw = tiny_config("llama")
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, random_tensors(raw), tokenizer__ggml__pre=pre))
    with open_source(tmp_path / "m.gguf") as source:
        backend = Backend.from_str(source.side_files()["tokenizer.json"].decode())
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("It's 12345 days")]
        digits = {"llama-bpe": "123", "gpt-4o": "123", "deepseek-v3": "123", "falcon": "123"}.get(pre, "1")
        assert digits in [piece.lstrip("\u0120") for piece in pieces] and "\u0120days" in pieces
        tokenizer = source.tokenizer()
        for text in hostile_texts(60):
            if pre not in ("qwen2", "qwen35"):  # which compose
                assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_control_token_that_is_known_for_it_ends_answers(tmp_path):
    raw, pairs = tiny_config("llama"), tokenizer_pairs()
    count = len(pairs["tokenizer.ggml.tokens"])
    tokens = [*pairs["tokenizer.ggml.tokens"], "<|eot_id|>", "<|end|>"]
    pairs |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [*pairs["tokenizer.ggml.token_type"], 3, 4]}
    pairs |= {"general.sampling.temp": 0.25, "general.sampling.top_k": 7}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(tmp_path / "m.gguf") as source:
        assert count in source.tokenizer().eos_ids and count + 1 not in source.tokenizer().eos_ids
        said = source.generation_config()
        assert said["temperature"] == 0.25 and said["top_k"] == 7


@pytest.mark.parametrize(
    ("added", "ends"),
    [
        ({"<|im_end|>": 3, "<|endoftext|>": 3, "<|im_start|>": 3}, {"<|im_end|>", "<|endoftext|>"}),
        ({"<|end|>": 3, "<|return|>": 3}, {"<|end|>", "<|return|>"}),
        ({"<|end|>": 3, "<|return|>": 3, "<|call|>": 3}, {"<|return|>", "<|call|>"}),
        ({"<|end|>": 3, "<|flush|>": 3, "<|calls|>": 3}, {"<|flush|>", "<|calls|>"}),
        ({"<|end|>": 4, "<|return|>": 3, "<|call|>": 4}, {"<|return|>"}),
        ({"<end_of_turn>": 3, "<strike>": 4, "<|file_sep|>": 3}, {"<end_of_turn>"}),
    ],
)
def test_an_answer_ends_where_llama_cpp_ends_it_but_never_at_text(added, ends, tmp_path):
    raw, pairs = tiny_config("llama", num_hidden_layers=1), tokenizer_pairs()
    tokens = [text for text in pairs["tokenizer.ggml.tokens"] if text not in added]
    kinds = [3 if text in SPECIALS else 1 for text in tokens]
    pairs |= {"tokenizer.ggml.tokens": [*tokens, *added], "tokenizer.ggml.token_type": [*kinds, *added.values()]}
    pairs |= {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 0}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | pairs, model_tensors(raw, random_tensors(raw))))
    others = {text for text in SPECIALS if text not in added and text in _ENDS}
    with open_source(tmp_path / "m.gguf") as source:
        texts = {source.tokenizer().token_text(one) for one in source.generation_config()["eos_token_id"]}
        assert texts - {tokens[0]} == ends | others


def test_gemma_3s_names_and_norms_are_those_of_its_folder(tmp_path):
    """Its norms are stored as 1 + w; its rows of queries and keys are in order."""
    raw = tiny_config("llama", num_hidden_layers=1)
    mine = model_tensors(raw, random_tensors(raw))
    more = [floats(f"blk.0.{name}.weight", np.full(64, 1.25)) for name in ("post_attention_norm", "post_ffw_norm")]
    pairs = {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 32}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, [*mine, *more]))
    with open_gguf(tmp_path / "m.gguf") as model:
        tensors = GgufTensors(model, describe(load_config(raw)))
        norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
        assert {f"{LAYER}{name}.weight" for name in norms} < set(tensors.names())
        assert (tensors.read(f"{LAYER}post_feedforward_layernorm.weight") == 0.25).all()
        stored = {name: values for name, _, _, values in mine}
        assert tensors.read(f"{LAYER}self_attn.q_proj.weight").tobytes() == stored["blk.0.attn_q.weight"]
        assert np.array_equal(tensors.read("model.norm.weight") + 1, model.read("output_norm.weight"))


@pytest.mark.parametrize(
    ("said", "local"),
    [({}, "lllllglllllgl"), ({"sliding_window_pattern": 3}, "llgllgllgllgl"), ({"sliding_window": 0}, "g" * 13)],
)
def test_gemma_3s_layers_are_local_as_its_architecture_has_it(said, local, tmp_path):
    numbers = {
        "attention.head_count": 4, "attention.head_count_kv": 1, "attention.key_length": 256, "embedding_length": 640,
        "context_length": 32768, "feed_forward_length": 2048, "block_count": 13, "attention.sliding_window": 512,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
    } | {f"attention.{key}": value for key, value in said.items()}  # fmt: skip
    pairs = {"general.architecture": "gemma3"} | {f"gemma3.{key}": value for key, value in numbers.items()}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, [floats("token_embd.weight", np.zeros((8, 640)))]))
    with open_gguf(tmp_path / "m.gguf") as model:
        config = ARCHITECTURES["gemma3"].read(model, "gemma3")
    kinds = {"l": "sliding_attention", "g": "full_attention"}
    assert config["layer_types"] == [kinds[one] for one in local] and config["rope_local_base_freq"] == 10000.0
    assert (config["query_pre_attn_scalar"], config["head_dim"], config["rope_theta"]) == (256, 256, 1e6)
    assert config["hidden_activation"] == "gelu_pytorch_tanh" and config["tie_word_embeddings"]


def test_one_command_imports_a_file_and_show_names_its_quantization(tmp_path, edge_llm_home):
    raw = tiny_config("llama")
    file = tmp_path / "Tiny-1B.Q4_1-00001-of-00001.gguf"
    file.write_bytes(model_gguf(raw, random_tensors(raw), general__file_type=3))
    before = edge_llm(tmp_path, NOBODY, edge_llm_home, "show", str(file))
    assert before.returncode == 1 and f"run `edge-llm import {file}` first" in before.stderr
    done = edge_llm(tmp_path, NOBODY, edge_llm_home, "import", str(file), "--fast")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith("Q4_1, 32.0 bits per weight (")
    assert default_name(file) == "Tiny-1B.Q4_1"
    shown = edge_llm(tmp_path, NOBODY, edge_llm_home, "show", "Tiny-1B.Q4_1")
    assert "from Q4_1" in " ".join(shown.stdout.split())
    answer = edge_llm(tmp_path, NOBODY, edge_llm_home, "run", str(file), "hello", "-n", "2")
    assert answer.returncode == 0, answer.stderr


def split_model(folder: Path) -> list[Path]:
    """A tiny model in two files."""
    raw = tiny_config("llama", num_hidden_layers=1)
    tensors = model_tensors(raw, random_tensors(raw))
    paths = [folder / f"ms-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        said = model_pairs(raw) | tokenizer_pairs() if number == 0 else {}
        path.write_bytes(gguf_bytes(said | {"split.no": number, "split.count": 2}, tensors[number::2]))
    return paths


def test_a_split_model_is_the_same_by_any_of_its_parts(tmp_path):
    paths = split_model(tmp_path)
    assert {place_of(str(path)) for path in paths} == {place_of(paths[0])} and place_of(paths[0]).folder == paths[0]
    assert {default_name(path) for path in paths} == {"ms"}
    sources = [open_source(path) for path in paths]
    assert sources[0].digest() == sources[1].digest() and sources[0].place == sources[1].place == str(paths[0])
    bundle = import_model(paths[1], "m")
    assert all(is_made_from(place_of(path), bundle) for path in paths)


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_missing_part_is_told_alike_by_run_and_import(lacking, tmp_path, edge_llm_home):
    paths = split_model(tmp_path)
    paths[lacking].unlink()
    for words in (("import", str(paths[1 - lacking])), ("run", str(paths[1 - lacking]), "hello", "--yes")):
        done = edge_llm(tmp_path, NOBODY, edge_llm_home, *words)
        said = f"`{paths[lacking].name}`, a part of the model, is missing; download it too"
        assert done.returncode == 1 and said in done.stderr, done.stderr


def test_a_file_that_is_replaced_during_the_import_is_noticed(tmp_path):
    raw = tiny_config("llama")
    file = tmp_path / "m.gguf"
    file.write_bytes(model_gguf(raw, random_tensors(raw)))
    with open_source(file) as source:
        shutil.copy(file, tmp_path / "copy")
        (tmp_path / "copy").replace(file)
        with pytest.raises(InvalidModel, match="changed during the import"):
            source.check_unchanged()


NAMES = [
    "README.md", "mmproj-model-f16.gguf", "x-Q4_K_M.gguf", "x-UD-Q4_K_M.gguf", "x-Q4_K_S.gguf", "x-Q8_0.gguf", "x-f16.gguf",
    "big/x-Q6_K-00001-of-00002.gguf", "big/x-Q6_K-00002-of-00002.gguf", "x-Q5_K_M-00001-of-00002.gguf", "x-imatrix.dat",
]  # fmt: skip


def test_a_file_of_a_repository_is_chosen_by_its_quantization():
    assert choose("o/x", NAMES, "Q4_K_M") == ["x-Q4_K_M.gguf"] and choose("o/x", NAMES, "q8_0") == ["x-Q8_0.gguf"]
    assert choose("o/x", NAMES, "UD-Q4_K_M") == ["x-UD-Q4_K_M.gguf"] and choose("o/x", NAMES, "F16") == ["x-f16.gguf"]
    assert choose("o/x", NAMES, "Q6_K") == [f"big/x-Q6_K-0000{number}-of-00002.gguf" for number in (1, 2)]
    assert choose("o/x", NAMES, "x-Q4_K_S.gguf") == ["x-Q4_K_S.gguf"]
    with pytest.raises(UnsupportedModel, match="no GGUF file `Q2_K`; there is: .*Q4_K_M, Q4_K_S"):
        choose("o/x", NAMES, "Q2_K")
    with pytest.raises(UnsupportedModel, match="lacks `x-Q5_K_M-00002-of-00002.gguf`"):
        choose("o/x", NAMES, "Q5_K_M")
    assert model_name("org/Tiny-GGUF", "Q4_K_M") == "Tiny-Q4_K_M" and model_name("org/t", "a/t-Q6_K.gguf") == "t-Q6_K"


@pytest.mark.parametrize(
    ("named", "gguf", "revision"),
    [
        ("org/x:Q4_K_M", "Q4_K_M", None),
        ("hf.co/org/x:Q8_0", "Q8_0", None),
        ("https://huggingface.co/org/x/blob/main/x-Q4_K_M.gguf", "x-Q4_K_M.gguf", None),
        ("https://huggingface.co/org/x/resolve/v1/a/x-Q4_K_M.gguf?download=true", "a/x-Q4_K_M.gguf", "v1"),
        ("hf.co/org/x:latest", "", None),
        ("org/x", "", None),
    ],
)
def test_a_file_of_the_hub_is_named_by_tag_or_page(named, gguf, revision):
    place = place_of(named)
    assert (place.repository, place.gguf, place.revision) == ("org/x", gguf, revision)


def test_a_file_is_fetched_from_the_hub_with_its_size_and_found_again(tmp_path, edge_llm_home):
    raw = tiny_config("llama")
    data = model_gguf(raw, random_tensors(raw), general__file_type=15)
    files = {"README.md": b"#", "tiny-Q4_K_M.gguf": data, "tiny-Q8_0.gguf": bytes(99)}
    with serving(Stub(files, "org/tiny-GGUF", large=("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"))) as stub:
        done = edge_llm(tmp_path, stub.endpoint, edge_llm_home, "import", "org/tiny-GGUF:Q4_K_M", "--fast")
        assert done.returncode == 0, done.stderr
        assert not stub.asked("GET", "Q8_0") and not stub.asked("GET", "README")
    lines = done.stderr.splitlines()
    assert any(line.startswith("tiny-Q4_K_M.gguf, ") and line.endswith("kB") for line in lines)
    assert any(line.startswith("download ") for line in lines)
    source = json.loads((edge_llm_home / "models" / "tiny-Q4_K_M" / "manifest.json").read_text())["source"]
    assert source["path"] == f"org/tiny-GGUF:Q4_K_M@{COMMIT}" and source["from"] == "Q4_K_M" and source["kind"] == "hub"
    offline = {"HF_HUB_OFFLINE": "1"}
    again = edge_llm(tmp_path, NOBODY, edge_llm_home, "import", "org/tiny-GGUF:Q4_K_M", "--fast", **offline)
    assert again.returncode == 0 and "already imported" in again.stderr
    answer = edge_llm(tmp_path, NOBODY, edge_llm_home, "run", "org/tiny-GGUF:Q4_K_M", "hello", "-n", "2", **offline)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (["a-Q2_K.gguf", "b-Q8_0.gguf", "c-Q4_K_M.gguf"], "c-Q4_K_M.gguf"),
        (["a-Q2_K.gguf", "b-q8_0.gguf"], "b-q8_0.gguf"),
        (["mmproj-a-Q4_K_M.gguf", "mtp-Q4_K_M.gguf", "eagle3-Q8_0.gguf", "b-F16.gguf", "c-Q6_K.gguf"], "b-F16.gguf"),
    ],
)
def test_a_file_is_chosen_where_none_is_named_as_llama_cpp_does(there, taken):
    assert choose("o/x", there) == [taken]


def test_a_repository_of_gguf_files_alone_is_imported_by_its_name(tmp_path, edge_llm_home):
    """From two parts, and again without a network."""
    folder = tmp_path / "split"
    folder.mkdir()
    parts = {f"tiny-Q4_K_M-0000{part}-of-00002.gguf": path.read_bytes() for part, path in enumerate(split_model(folder), 1)}
    files = {"README.md": b"#", "config.json": b"{}", "pytorch_model.bin": b"x", "tiny-Q8_0.gguf": bytes(99), **parts}
    with serving(Stub(files, "org/tiny-GGUF", large=(*parts, "tiny-Q8_0.gguf"))) as stub:
        done = edge_llm(tmp_path, stub.endpoint, edge_llm_home, "import", "org/tiny-GGUF", "--fast")
        assert done.returncode == 0, done.stderr
        assert not stub.asked("GET", "Q8_0") and not stub.asked("GET", "README")
        asked = edge_llm(tmp_path, stub.endpoint, edge_llm_home, "pull", "org/tiny-GGUF")
    size = sum(map(len, parts.values())) / 1000
    assert f"{next(iter(parts))}, {size:.0f} kB" in done.stderr and "download 100%" not in done.stderr
    assert any(line.startswith("download ") and " kB" in line for line in done.stderr.splitlines())
    assert asked.stdout.strip().endswith(f"/{COMMIT}/{next(iter(parts))}")
    source = json.loads((edge_llm_home / "models" / "tiny-GGUF" / "manifest.json").read_text())["source"]
    assert source["path"] == f"org/tiny-GGUF@{COMMIT}" and source["kind"] == "hub"
    offline = {"HF_HUB_OFFLINE": "1"}
    again = edge_llm(tmp_path, NOBODY, edge_llm_home, "import", "org/tiny-GGUF", "--fast", **offline)
    assert again.returncode == 0 and "already imported" in again.stderr
    answer = edge_llm(tmp_path, NOBODY, edge_llm_home, "run", "org/tiny-GGUF", "hello", "-n", "2", **offline)
    assert answer.returncode == 0, answer.stderr


def test_what_does_not_run_is_told_before_it_is_downloaded(tmp_path, edge_llm_home):
    about = {"gguf": {"architecture": "gemma9", "total": 5}}
    with serving(Stub({"x-Q4_K_M.gguf": bytes(500)}, "org/x", large=("x-Q4_K_M.gguf",), info=about)) as stub:
        done = edge_llm(tmp_path, stub.endpoint, edge_llm_home, "import", "org/x:Q4_K_M")
        assert not stub.asked("GET", "resolve")
    assert done.returncode == 1 and "the architecture `gemma9`, which does not run" in done.stderr
