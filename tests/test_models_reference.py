"""The float path against transformers and against itself."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from another_processor import run_on_another_processor
from model_files import VOCAB_SIZE, random_tensors, tiny_config, write_model

from edge_llm.config import ModelConfig
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import describe, load_config
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables, rope_tables
from edge_llm.models.weights import read_layer
from edge_llm.operations.scores import attend

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-all-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied-no-groups": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "head_dim": 8}),
    "llama3-scaling": ("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "llama3-rope-parameters": (
        "llama",
        {"rope_theta": ..., "rope_parameters": {"rope_theta": 500000.0, **LLAMA3, "factor": 32.0}},
    ),
    "mistral": ("mistral", {"head_dim": 32}),
    "mistral-window": ("mistral", {"sliding_window": 96}),
    "qwen2": ("qwen2", {}),
    "qwen2-untied": ("qwen2", {"tie_word_embeddings": False, "rope_theta": 1e6}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-bias": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 16}),
}


def load(folder: Path) -> tuple[FloatModel, ModelConfig]:
    with open_model_folder(folder) as source:
        config = load_config(source.config)
        return FloatModel(source, config), config


def tokens_of(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, count).tolist()


@pytest.fixture(scope="session")
def transformers_logits() -> Callable[[Path, list[int]], np.ndarray]:
    """Logits of the same folder through transformers, in float32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)

    def run(folder: Path, tokens: list[int]) -> np.ndarray:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logits: np.ndarray = model.eval()(torch.tensor([tokens])).logits[0].numpy()
        return logits

    return run


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_transformers(
    name: str, tiny_model: Callable[..., Path], transformers_logits: Callable[[Path, list[int]], np.ndarray]
) -> None:
    family, changes = MODELS[name]
    folder = tiny_model(family, **changes)
    tokens = tokens_of(90)
    theirs = transformers_logits(folder, tokens)
    ours = load(folder)[0].forward(tokens)
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error < 2e-5  # the bar is 1e-3; float32 rounding is far below
    assert ours.argmax(-1).tolist() == theirs.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_files_agree_with_transformers(
    dtype: str, tiny_model: Callable[..., Path], transformers_logits: Callable[[Path, list[int]], np.ndarray]
) -> None:
    folder = tiny_model("qwen2", dtype=dtype, shards=3)
    theirs = transformers_logits(folder, tokens_of(20))
    ours = load(folder)[0].forward(tokens_of(20))
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 2e-5


def test_real_model_agrees_with_transformers(
    stories_folder: Path, transformers_logits: Callable[[Path, list[int]], np.ndarray]
) -> None:
    tokens = tokens_of(300)
    theirs = transformers_logits(stories_folder, tokens)
    ours = load(stories_folder)[0].forward(tokens)
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 2e-5


def test_real_model_tells_its_story(stories_folder: Path) -> None:
    from edge_llm.text.tokenizer import Tokenizer

    model, config = load(stories_folder)
    tokenizer = Tokenizer.from_folder(stories_folder, config.vocab_size)
    cache = model.open_cache()
    new = tokenizer.encode("Once upon a time", add_bos=tokenizer.add_bos)
    told: list[int] = []
    for _ in range(58):
        new = [int(model.forward(new, cache, last_only=True)[-1].argmax())]
        told += new
    assert tokenizer.decode(told).startswith(
        ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red "
        "ball. She wanted to play with it, but it was too high."
    )


@pytest.mark.parametrize("pieces", [[1] * 40, [7, 1, 30, 2], [39, 1]])
def test_incremental_equals_whole(pieces: list[int], tiny_model: Callable[..., Path]) -> None:
    model, _ = load(tiny_model("qwen3"))
    tokens = tokens_of(40)
    cache, start, logits = model.open_cache(), 0, []
    for count in pieces:
        logits.append(model.forward(tokens[start : start + count], cache))
        start += count
    assert cache.length == 40
    np.testing.assert_allclose(np.concatenate(logits), model.forward(tokens), rtol=1e-4, atol=1e-5)


def test_truncated_cache_forgets(tiny_model: Callable[..., Path]) -> None:
    model, _ = load(tiny_model())
    cache = model.open_cache()
    model.forward(tokens_of(20), cache)
    cache.truncate(5)
    again = model.forward(tokens_of(20)[5:], cache)
    np.testing.assert_allclose(again, model.forward(tokens_of(20))[5:], rtol=1e-4, atol=1e-5)


def test_attention_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((33, 4, 8), (2, 40, 8), (2, 40, 8)))
    whole = attend(q, k, v, 7)
    monkeypatch.setattr("edge_llm.operations.scores._QUERY_BLOCK", 5)
    np.testing.assert_allclose(attend(q, k, v, 7), whole, rtol=1e-5, atol=1e-6)


def test_observe_sees_the_input_of_every_linear(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("llama", mlp_bias=True)
    with open_model_folder(folder) as source:
        config = load_config(source.config)
        layer = describe(config).layers[1]
        weights = read_layer(source, layer)
    x = np.random.default_rng(0).standard_normal((9, config.hidden_size), np.float32)
    tables = RopeTables(9)
    seen: dict[str, np.ndarray] = {}
    y = layer_forward(x, layer, weights, tables, layer.attention.float_kv(), seen.__setitem__)
    assert {name: a.shape for name, a in seen.items()} == {
        "qkv": (9, 64), "o": (9, 64), "gate_up": (9, 64), "down": (9, 112),
    }  # fmt: skip
    down = weights.linears["down"]
    assert down.bias is not None
    o = seen["o"] @ weights.linears["o"].weight.T
    np.testing.assert_allclose(y, x + o + seen["down"] @ down.weight.T + down.bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(y, layer_forward(x, layer, weights, tables, None))


def test_rope_tables_are_plain_angles() -> None:
    cos, sin = rope_tables(describe(load_config(tiny_config())).layers[0].attention.rope, 100)
    assert cos.shape == sin.shape == (100, 8)
    assert cos.dtype == sin.dtype == np.float32
    assert cos[3, 0] == np.float32(np.cos(3.0))
    assert sin[99, 4] == np.float32(np.sin(99 * 10000 ** (-0.5)))


def digest_of_tables() -> str:
    from edge_llm.operations.attention import Rope
    from edge_llm.operations.rope_kinds import Llama3

    ropes = [
        Rope(8, 1e4), Rope(64, 1e6), Rope(128, 5e5), Rope(128, 5e5, Llama3(8.0, 1.0, 4.0, 8192)), Rope(96, 1e11),
    ]  # fmt: skip
    tables = [table for rope in ropes for positions in (1, 127, 129, 32768) for table in rope_tables(rope, positions)]
    return hashlib.sha256(b"".join(table.tobytes() for table in tables)).hexdigest()


def test_rope_tables_are_the_same_on_every_processor() -> None:
    digest = digest_of_tables()
    assert digest == "a04993a73f3c3a056ca87df73f112ca2673ac818dc44442ecbdaac3f7f2adc8c"
    script = f"import hashlib\nfrom edge_llm.models.rope import rope_tables\n{inspect.getsource(digest_of_tables)}"
    assert run_on_another_processor(f"{script}\nprint(digest_of_tables())").strip() == digest


def test_rope_tables_do_not_depend_on_their_length() -> None:
    rope = describe(load_config(tiny_config())).layers[0].attention.rope
    whole = rope_tables(rope, 300)
    for positions in (1, 128, 129, 256):
        for table, long_table in zip(rope_tables(rope, positions), whole, strict=True):
            np.testing.assert_array_equal(table, long_table[:positions])


def test_tables_grow_with_the_sequence(tiny_model: Callable[..., Path]) -> None:
    model, _ = load(tiny_model("llama", max_position_embeddings=8192, num_hidden_layers=1))
    first = model._tables.positions
    cache = model.open_cache()
    for _ in range(2):
        logits = model.forward(tokens_of(first // 2 + 1), cache, last_only=True)
    assert logits.shape == (1, VOCAB_SIZE)
    assert model._tables.positions > first


def test_refuses_what_it_cannot_place(tiny_model: Callable[..., Path]) -> None:
    model, config = load(tiny_model())
    with pytest.raises(UsageError, match=f"`{VOCAB_SIZE}`"):
        model.forward([VOCAB_SIZE])
    with pytest.raises(UsageError, match="`-1`"):
        model.forward([3, -1])
    with pytest.raises(UsageError, match="at least one token"):
        model.forward([])
    cache = model.open_cache()
    model.forward(tokens_of(config.context), cache)
    with pytest.raises(ContextOverflow):
        model.forward([1], cache)


def test_tied_output_is_the_embedding(tmp_path: Path) -> None:
    raw = tiny_config("llama", tie_word_embeddings=True)
    model, _ = load(write_model(tmp_path, raw, tensors=random_tensors(raw)))
    assert model.output is model.embedding
