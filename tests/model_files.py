"""Tiny models on disk, written with a writer of our own: real folders for the real loaders, made in milliseconds."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import describe, load_config
from edge_llm.models.weights import layer_shapes
from edge_llm.operations.layer import Layer

SPECIALS = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ t", "Ġt he", "Ġ a", "i n", "e r")
VOCAB_SIZE = 256 + len(MERGES) + len(SPECIALS) + 6
"""Of the tiny models: bytes, merges, control tokens and a few rows that no token uses."""

_WIDTH = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "I8": 1, "U8": 1}


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray], dtype: str = "F32", metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors file that holds ``tensors`` converted to ``dtype``."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[bytes] = []
    offset = 0
    for name, array in tensors.items():
        part = to_dtype(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    return raw_safetensors(json.dumps(header).encode(), b"".join(parts))


def raw_safetensors(header: bytes, data: bytes = b"") -> bytes:
    """A file of exactly this header and data, right or wrong."""
    return struct.pack("<Q", len(header)) + header + data


def to_dtype(array: np.ndarray, dtype: str) -> bytes:
    """The bytes of ``array`` in a safetensors dtype; BF16 rounds half to even."""
    if dtype == "BF16":
        bits = array.astype("<f4").view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8", "I8": "i1", "U8": "u1"}
    return array.astype(kinds[dtype]).tobytes()


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False, "tie_word_embeddings": True},
    "qwen3": {"head_dim": 24, "attention_bias": False, "use_sliding_window": False},
}
"""What a tiny config of each family that is like Llama has beside the common part; `tiny_config` overrides any of it."""


def tiny_config(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """A small config.json of ``family``: 2 layers, 4 heads on 2 kv heads, hidden 64; None removes a key."""
    config = {
        "model_type": family,
        "architectures": [{"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
                          + "ForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 256 + len(MERGES),
        "eos_token_id": 256 + len(MERGES) + 1,
        "torch_dtype": "float32",
    } | FAMILIES[family] | changes  # fmt: skip
    return {key: value for key, value in config.items() if value is not ...}


def random_tensors(raw: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights for a config.json; norms near one, biases clearly not zero.

    Tests depend on the values, so the order in which they are drawn is written here, and is not the description's.
    """
    decoder = describe(load_config(raw))
    table = (decoder.vocab_size, decoder.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {decoder.embedding.source: table}
    for layer in decoder.layers:
        shapes |= _drawn(layer)
    shapes[decoder.norm.gain.source] = (decoder.hidden_size,)
    if not decoder.tied:
        shapes[f"{decoder.output.sources[0].source}.weight"] = table
    rng = np.random.default_rng(seed)
    return {name: _random(rng, name, shape) for name, shape in shapes.items()}


_DRAWN = (
    "input_layernorm.weight",
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    "post_attention_layernorm.weight",
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    *(f"self_attn.{part}_proj.bias" for part in "qkvo"),
    *(f"mlp.{part}_proj.bias" for part in ("gate", "up", "down")),
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
)
"""A layer's tensors in the order in which their values are drawn."""


def _drawn(layer: Layer) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a layer's tensors as `_DRAWN` has them."""
    shapes = layer_shapes(layer)
    return {name: shapes[name] for name in sorted(shapes, key=lambda name: _DRAWN.index(name.removeprefix(layer.prefix)))}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.standard_normal(shape, np.float32)
    if name.endswith("norm.weight"):
        return 1 + np.float32(0.2) * values
    if name.endswith(".bias"):
        return np.float32(0.5) * values
    return values * np.float32(1.5 / np.sqrt(shape[-1]))


def write_model(
    folder: Path,
    config: dict[str, Any] | None = None,
    *,
    tensors: Mapping[str, np.ndarray] | None = None,
    dtype: str = "F32",
    shards: int = 1,
    seed: int = 0,
    tokenizer: bool = True,
    chat_template: str | None = None,
) -> Path:
    """A whole Hugging Face folder with random weights and a byte-level tokenizer; returns ``folder``."""
    raw = tiny_config() if config is None else config
    values = random_tensors(raw, seed) if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", raw)
    write_weights(folder, values, dtype=dtype, shards=shards)
    if tokenizer:
        write_tokenizer(folder)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return folder


def write_weights(folder: Path, tensors: Mapping[str, np.ndarray], *, dtype: str = "F32", shards: int = 1) -> None:
    """``model.safetensors``, or ``shards`` files and their index."""
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype, {"format": "pt"}))
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        part = {name: tensors[name] for name in names[i::shards]}
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        (folder / file).write_bytes(safetensors_bytes(part, dtype))
        weight_map |= dict.fromkeys(part, file)
    total = sum(array.size for array in tensors.values()) * _WIDTH[dtype]
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def write_tokenizer(folder: Path, specials: Sequence[str] = SPECIALS) -> None:
    """A byte-level BPE tokenizer (GPT-2's kind), and the two configs that name its bos and eos."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", byte_level_tokenizer(specials))
    write_json(
        folder / "tokenizer_config.json",
        {"bos_token": specials[0], "eos_token": specials[1], "add_bos_token": False},
    )
    ends = [256 + len(MERGES) + 1, 256 + len(MERGES) + 3]
    write_json(folder / "generation_config.json", {"eos_token_id": ends, "do_sample": False})


def byte_level_tokenizer(specials: Sequence[str] = SPECIALS) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE: 256 bytes (ids 0 to 255 in byte order), `MERGES`, then the specials."""
    vocab = {char: byte for byte, char in enumerate(byte_alphabet())}
    for merge in MERGES:
        vocab[merge.replace(" ", "")] = len(vocab)
    added = [
        {"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, text in enumerate(specials)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": list(MERGES)},
    }  # fmt: skip


def byte_alphabet() -> list[str]:
    """GPT-2's visible character for every byte."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def inject_outliers(source: Path, folder: Path, factor: float, share: float = 0.01) -> Path:
    """A copy of the model in ``source`` whose norms give ``share`` of the channels ``factor`` times larger activations.

    The matching input columns of the next linears are divided by the same factor, so the float model is the same to
    rounding.
    """
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with open_model_folder(source) as opened:
        tensors = {name: opened.read(name).copy() for name in opened.names()}
    hidden = tensors["model.norm.weight"].shape[0]
    rng = np.random.default_rng(3)
    for name in [name for name in tensors if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight"))]:
        channels = rng.choice(hidden, max(1, round(share * hidden)), replace=False)
        layer, norm, _ = name.rsplit(".", 2)
        parts = ("self_attn.q", "self_attn.k", "self_attn.v") if norm == "input_layernorm" else ("mlp.gate", "mlp.up")
        tensors[name][channels] *= factor
        for part in parts:
            tensors[f"{layer}.{part}_proj.weight"][:, channels] /= factor
    write_weights(folder, tensors)
    return folder
