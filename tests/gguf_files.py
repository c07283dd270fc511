"""GGUF files written by a writer of our own, right ones and any wrong one, and tiny models in them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from model_files import MERGES, SPECIALS, byte_level_tokenizer

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
Tensor = tuple[str, int, tuple[int, ...], bytes]
"""Name, ggml's number of the type, shape as rows and columns, and data."""


class Of:
    """A value of a type that is said; of `ARRAY`, of elements of the type ``inner``."""

    def __init__(self, kind: int, value: Any, inner: int = U32) -> None:
        self.kind, self.value, self.inner = kind, value, inner


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> Of:
    if isinstance(value, Of):
        return value
    kinds = {bool: BOOL, int: U32, float: F32, str: STRING, bytes: STRING}
    if type(value) in kinds:
        return Of(kinds[type(value)], value)
    inner = kinds[type(value[0])] if value else STRING
    return Of(ARRAY, value, I32 if inner == U32 else inner)


def value_bytes(kind: int, value: Any, inner: int = U32) -> bytes:
    if kind == STRING:
        return string(value)
    if kind == ARRAY:
        return struct.pack("<IQ", inner, len(value)) + b"".join(value_bytes(inner, one) for one in value)
    return struct.pack(f"<{FORMATS[kind]}", value)


def pair_bytes(key: str | bytes, value: Any) -> bytes:
    one = typed(value)
    return string(key) + struct.pack("<I", one.kind) + value_bytes(one.kind, one.value, one.inner)


def tensor_entry(name: str | bytes, kind: int, sizes: Sequence[int], offset: int) -> bytes:
    """``sizes`` as the file has them: fastest first."""
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def header(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def gguf_bytes(pairs: Mapping[str, Any], tensors: Sequence[Tensor] = (), alignment: int = 32, version: int = 3) -> bytes:
    """A whole file."""
    table, data = b"", b""
    for name, kind, shape, raw in tensors:
        table += tensor_entry(name, kind, shape[::-1], len(data))
        data += raw + bytes(-len(raw) % alignment)
    head = header(len(tensors), len(pairs), version) + b"".join(pair_bytes(key, value) for key, value in pairs.items()) + table
    return head + bytes(-len(head) % alignment) + data


def floats(name: str, values: np.ndarray) -> Tensor:
    return name, 0, values.shape, values.astype("<f4").tobytes()


_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor of a Hugging Face folder."""
    if name in _WHOLE:
        return _WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    stem, _, suffix = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER[stem]}.{suffix}"


def in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's converter turns them for Llama."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def tokenizer_pairs() -> dict[str, Any]:
    """The byte-level tokenizer of the tiny models."""
    vocab = byte_level_tokenizer()["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__) + list(SPECIALS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(vocab) + [3] * len(SPECIALS),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": len(vocab),
        "tokenizer.ggml.eos_token_id": len(vocab) + 1,
        "tokenizer.ggml.eot_token_id": len(vocab) + 3,
        "tokenizer.ggml.add_bos_token": False,
    }


def model_pairs(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of the model whose config.json is ``raw``."""
    arch = "llama" if raw["model_type"] == "mistral" else raw["model_type"]
    said = {
        "context_length": raw["max_position_embeddings"],
        "embedding_length": raw["hidden_size"],
        "block_count": raw["num_hidden_layers"],
        "feed_forward_length": raw["intermediate_size"],
        "attention.head_count": raw["num_attention_heads"],
        "attention.head_count_kv": raw["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": raw["rms_norm_eps"],
        "rope.freq_base": raw["rope_theta"],
    }
    if raw.get("head_dim"):
        said |= {"attention.key_length": raw["head_dim"], "attention.value_length": raw["head_dim"]}
    if raw.get("sliding_window"):
        said |= {"attention.sliding_window": raw["sliding_window"]}
    return {"general.architecture": arch, "general.file_type": 0} | {f"{arch}.{key}": value for key, value in said.items()}


def model_tensors(raw: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> list[Tensor]:
    found = []
    for name, values in tensors.items():
        turned = {"q_proj": raw["num_attention_heads"], "k_proj": raw["num_key_value_heads"]}.get(name.split(".")[-2])
        if turned and raw["model_type"] in ("llama", "mistral"):
            values = in_pairs(values, turned)
        found.append(floats(gguf_name(name), values))
    return found


def model_gguf(raw: Mapping[str, Any], tensors: Mapping[str, np.ndarray], **more: Any) -> bytes:
    """The GGUF file of a tiny model; ``more`` pairs have ``__`` for dots."""
    pairs = model_pairs(raw) | tokenizer_pairs() | {key.replace("__", "."): value for key, value in more.items()}
    return gguf_bytes(pairs, model_tensors(raw, tensors))
