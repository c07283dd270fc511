"""Bad model files as data: what is wrong, the error that says so, and a word of its message.

Ids are those of the catalogue of bad inputs: A safetensors, C config and index, D tokenizer and template.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any, NamedTuple

import numpy as np
from model_files import VOCAB_SIZE, byte_level_tokenizer, raw_safetensors

from edge_llm.errors import EdgeLLMError, InvalidModel, InvalidTokenizer, UnsupportedModel, UsageError

# ---- A: the bytes of one safetensors file


class BadFile(NamedTuple):
    id: str
    data: bytes
    message: str


def entry(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def header(data: bytes = bytes(8), /, **tensors: Any) -> bytes:
    return raw_safetensors(json.dumps(tensors).encode(), data)


A = entry()
GOOD = header(a=A)

FILES = [
    BadFile("A1-empty", b"", "0 bytes"),
    BadFile("A2-seven-bytes", b"\x02\0\0\0\0\0\0", "7 bytes"),
    BadFile("A3-no-header", struct.pack("<Q", 0), "not one JSON object"),
    BadFile("A4-one-brace", raw_safetensors(b"{"), "not one JSON object"),
    BadFile("A5-header-longer-than-file", struct.pack("<Q", 100) + b"{}", "truncated"),
    BadFile("A6-2^63", struct.pack("<Q", 1 << 63) + b"{}", "`9223372036854775808`"),
    BadFile("A6-2^64-1", b"\xff" * 8 + b"{}", "`18446744073709551615`"),
    BadFile("A7-above-100M", struct.pack("<Q", 100_000_001) + b"{}", "`100000001`"),
    BadFile("A9-not-utf8", raw_safetensors(b'{"\xff":1}'), "not UTF-8"),
    BadFile("A10-bom", raw_safetensors(b"\xef\xbb\xbf{}"), "not one JSON object"),
    BadFile("A10-leading-space", raw_safetensors(b" {}"), "not one JSON object"),
    BadFile("A11-list", raw_safetensors(b"[]"), "not one JSON object"),
    BadFile("A11-string", raw_safetensors(b'"{}"'), "not one JSON object"),
    BadFile("A11-number", raw_safetensors(b"1"), "not one JSON object"),
    BadFile("A12-100k-brackets", raw_safetensors(b'{"a":' + b"[" * 100_000 + b"}"), "nested"),
    BadFile("A12-depth-four", header(a=entry(shape=[[2]])), "nested|shape"),
    BadFile("A13-garbage-after-json", raw_safetensors(b"{}x}"), "Extra data"),
    BadFile("A13-newline-after-json", raw_safetensors(b"{}\n"), "not one JSON object"),
    BadFile("A14-twice-same-range", raw_safetensors(b'{"a":%b,"a":%b}' % ((json.dumps(A).encode(),) * 2), bytes(8)),
            "`a` comes twice"),
    BadFile("A15-twice-other-range",
            raw_safetensors(b'{"a":%b,"a":%b}' % (json.dumps(A).encode(), json.dumps(entry(offsets=(8, 16))).encode()),
                            bytes(16)), "`a` comes twice"),
    BadFile("A16-overlap", header(bytes(12), a=A, b=entry(offsets=(4, 12))), "overlaps"),
    BadFile("A16-same-range", header(a=A, b=A), "overlaps"),
    BadFile("A17-hole", header(bytes(20), a=A, b=entry(offsets=(12, 20))), "hole"),
    BadFile("A17-hole-at-start", header(bytes(12), a=entry(offsets=(4, 12))), "hole"),
    BadFile("A18-end-before-begin", header(a=entry(offsets=(8, 0))), "data_offsets"),
    BadFile("A19-negative-offset", header(a=entry(offsets=(-8, 0))), "data_offsets"),
    BadFile("A20-offset-beyond-file", header(a=A, b=entry(offsets=(8, 16))), "truncated"),
    BadFile("A20-huge-offsets", header(a=entry(offsets=(1 << 62, (1 << 62) + 8))), "hole"),
    BadFile("A20-offset-of-5000-digits", raw_safetensors(
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,%b]}}' % (b"9" * 5000)), "too many digits"),
    BadFile("A20-offset-of-4000-digits", raw_safetensors(
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,%b]}}' % (b"9" * 4000)), "data_offsets"),
    BadFile("A21-zip-behind", GOOD + b"PK\5\6" + bytes(18), "foreign bytes"),
    BadFile("A22-last-byte-missing", GOOD[:-1], "truncated"),
    BadFile("A23-size-is-not-shape", header(a=entry(shape=(3,))), "needs 12"),
    BadFile("A23-size-is-not-dtype", header(a=entry(dtype="F16")), "needs 4"),
    BadFile("A24-product-overflows", header(a=entry(shape=((1 << 63) - 1, 4))), "needs"),
    BadFile("A24-product-wraps-to-8", header(a=entry(shape=(1 << 62, 4, 1))), "needs"),
    BadFile("A24-dim-2^63", header(a=entry(shape=(1 << 63, 2))), "shape"),
    BadFile("A25-70-dims", header(a=entry(shape=(1,) * 69 + (2,))), "shape"),
    BadFile("A25-9-dims", header(a=entry(shape=(1,) * 8 + (2,))), "shape"),
    BadFile("A25-float-dim", header(a=entry(shape=(2.0,))), "shape"),
    BadFile("A25-string-dim", header(a=entry(shape=("2",))), "shape"),
    BadFile("A25-bool-dim", header(a=entry(shape=(True, 2))), "shape"),
    BadFile("A25-negative-dim", header(a=entry(shape=(-2,))), "shape"),
    BadFile("A25-two-negative-dims", header(a=entry(shape=(-2, -1))), "shape"),
    BadFile("A25-shape-is-a-number", header(a=entry(shape=2)), "shape"),
    BadFile("A26-unknown-dtype", header(a=entry(dtype="Q4_0")), "`Q4_0`"),
    BadFile("A26-lower-case-dtype", header(a=entry(dtype="f32")), "`f32`"),
    BadFile("A26-dtype-is-a-list", header(a=entry(dtype=["F32"])), "dtype"),
    BadFile("A26-sub-byte-odd", header(bytes(1), a=entry(shape=(1,), offsets=(0, 1), dtype="F4")), "needs 1"),
    BadFile("A27-metadata-number", header(b"", __metadata__={"a": 1}), "__metadata__"),
    BadFile("A27-metadata-list", header(b"", __metadata__=["a"]), "__metadata__"),
    BadFile("A28-empty-name", header(**{"": A}), "tensor name"),
    BadFile("A28-nul-in-name", header(**{"a\0b": A}), "tensor name"),
    BadFile("A28-newline-in-name", header(**{"a\nb": A}), "tensor name"),
    BadFile("A28-ansi-in-name", header(**{"\x1b[31m": A}), "tensor name"),
    BadFile("A28-bidi-in-name", header(**{"a\u202eb": A}), "tensor name"),
    BadFile("A28-1MiB-name", header(**{"n" * (1 << 20): A}), "tensor name"),
    BadFile("A28-lone-surrogate", raw_safetensors(b'{"\\ud800":%b}' % json.dumps(A).encode(), bytes(8)), "surrogate"),
    BadFile("entry-is-a-list", header(a=[1]), "exactly dtype"),
    BadFile("entry-lacks-a-key", header(a={"dtype": "F32", "shape": [2]}), "exactly dtype"),
    BadFile("entry-has-more-keys", header(a=entry(extra=1)), "exactly dtype"),
    BadFile("one-offset", header(a=entry(offsets=(0,))), "data_offsets"),
    BadFile("offsets-are-floats", header(a=entry(offsets=(0.0, 8.0))), "data_offsets"),
    BadFile("nan-in-header", raw_safetensors(b'{"a":NaN}'), "`NaN`"),
]  # fmt: skip


def empty_tensors(count: int, pad: int = 0) -> bytes:
    """A legal file of ``count`` tensors without elements, its header ``pad`` bytes longer than it must be."""
    entries = b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(count))
    return raw_safetensors(b"{" + entries + b"}" + b" " * pad)


# ---- C: changes to a good config.json (... removes a key)


class BadConfig(NamedTuple):
    id: str
    changes: dict[str, Any]
    error: type[EdgeLLMError]
    message: str
    family: str = "llama"


def rope(**values: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 64} | values}  # fmt: skip


CONFIGS = [
    BadConfig("C6-no-model-type", {"model_type": ...}, InvalidModel, "model_type"),
    BadConfig("C6-model-type-number", {"model_type": 3}, InvalidModel, "model_type"),
    BadConfig("C6-unknown", {"model_type": "gpt_neox"}, UnsupportedModel, "`gpt_neox`.*llama.*mistral.*qwen2, "),
    BadConfig("C6-path-as-model-type", {"model_type": "../llama"}, UnsupportedModel, "../llama"),
    BadConfig("C6-shared-module-as-model-type", {"model_type": "weights"}, UnsupportedModel, "`weights`"),
    BadConfig("C6-private-module-as-model-type", {"model_type": "_common"}, UnsupportedModel, "`_common`"),
    BadConfig("C6-another-head", {"architectures": ["LlamaForSequenceClassification"]}, UnsupportedModel,
              "`LlamaForSequenceClassification`"),
    BadConfig("C6-architectures-string", {"architectures": "LlamaForCausalLM"}, InvalidModel, "architectures"),
    BadConfig("C7-hidden-0", {"hidden_size": 0}, InvalidModel, "hidden_size.*`0`"),
    BadConfig("C7-hidden-negative", {"hidden_size": -1}, InvalidModel, "hidden_size.*`-1`"),
    BadConfig("C7-hidden-1e12", {"hidden_size": 10**12}, InvalidModel, "hidden_size.*`1000000000000`"),
    BadConfig("C7-hidden-1.5", {"hidden_size": 1.5}, InvalidModel, "hidden_size.*`1.5`"),
    BadConfig("C7-hidden-string", {"hidden_size": "4096"}, InvalidModel, "hidden_size.*`4096`"),
    BadConfig("C7-hidden-true", {"hidden_size": True}, InvalidModel, "hidden_size.*`True`"),
    BadConfig("C7-hidden-missing", {"hidden_size": ...}, InvalidModel, "lacks `hidden_size`"),
    BadConfig("C7-intermediate-0", {"intermediate_size": 0}, InvalidModel, "intermediate_size"),
    BadConfig("C8-layers-0", {"num_hidden_layers": 0}, InvalidModel, "num_hidden_layers"),
    BadConfig("C8-layers-1e9", {"num_hidden_layers": 10**9}, InvalidModel, "num_hidden_layers"),
    BadConfig("C9-heads-0", {"num_attention_heads": 0}, InvalidModel, "num_attention_heads"),
    BadConfig("C9-hidden-not-multiple", {"num_attention_heads": 3, "num_key_value_heads": 1}, InvalidModel, "multiple"),
    BadConfig("C9-kv-heads-0", {"num_key_value_heads": 0}, InvalidModel, "num_key_value_heads"),
    BadConfig("C9-kv-heads-more", {"num_key_value_heads": 8}, InvalidModel, "`4`.*`8`"),
    BadConfig("C9-kv-heads-do-not-divide", {"num_key_value_heads": 3}, InvalidModel, "`4`.*`3`"),
    BadConfig("C10-head-dim-20", {"head_dim": 20}, UnsupportedModel, "head_dim of `20`"),
    BadConfig("C10-head-dim-264", {"head_dim": 264}, UnsupportedModel, "head_dim of `264`"),
    BadConfig("C10-head-dim-from-hidden", {"hidden_size": 48}, UnsupportedModel, "head_dim of `12`"),
    BadConfig("C10-head-dim-0", {"head_dim": 0}, InvalidModel, "head_dim"),
    BadConfig("C11-vocab-0", {"vocab_size": 0}, InvalidModel, "vocab_size"),
    BadConfig("C11-vocab-2^40", {"vocab_size": 1 << 40}, InvalidModel, "vocab_size"),
    BadConfig("C12-theta-0", {"rope_theta": 0}, InvalidModel, "rope_theta.*`0`"),
    BadConfig("C12-theta-negative", {"rope_theta": -1.0}, InvalidModel, "rope_theta"),
    BadConfig("C12-theta-string", {"rope_theta": "1e4"}, InvalidModel, "rope_theta"),
    BadConfig("C12-theta-5000-bits", {"rope_theta": 1 << 5000}, InvalidModel, "rope_theta.*5001-bit"),
    BadConfig("C12-two-thetas", {"rope_parameters": {"rope_theta": 5e5}}, InvalidModel, "two values for rope_theta"),
    BadConfig("C12-unknown", {"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, UnsupportedModel, "`spiral`.*yarn"),
    BadConfig("C12-linear-old-layout", {"rope_scaling": {"type": "linear", "factor": 0}}, InvalidModel, "factor"),
    BadConfig("C12-dynamic-new-layout", {"rope_parameters": {"rope_type": "dynamic"}}, InvalidModel, "lacks `factor`"),
    BadConfig("C12-yarn-far", {"rope_scaling": {"rope_type": "yarn", "factor": -4.0}}, InvalidModel, "factor"),
    BadConfig("C12-null", {"rope_scaling": {"rope_type": None}}, UnsupportedModel, "`None`"),
    BadConfig("C12-type-list", {"rope_scaling": {"rope_type": ["llama3"]}}, UnsupportedModel, "llama3"),
    BadConfig("C12-scaling-list", {"rope_scaling": [8]}, InvalidModel, "rope_scaling"),
    BadConfig("C12-factor-0", rope(factor=0), InvalidModel, "factor"),
    BadConfig("C12-factor-missing", rope(factor=None), InvalidModel, "lacks `factor`"),
    BadConfig("C12-low-above-high", rope(low_freq_factor=4.0), InvalidModel, "low_freq_factor"),
    BadConfig("C12-original-0", rope(original_max_position_embeddings=0), InvalidModel, "original_max_position"),
    BadConfig("C12-partial-rotary", {"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor"),
    BadConfig("C13-context-0", {"max_position_embeddings": 0}, InvalidModel, "max_position_embeddings"),
    BadConfig("C13-context-2^62", {"max_position_embeddings": 1 << 62}, InvalidModel, "max_position_embeddings"),
    BadConfig("C14-eps-0", {"rms_norm_eps": 0}, InvalidModel, "rms_norm_eps"),
    BadConfig("C14-eps-negative", {"rms_norm_eps": -1e-5}, InvalidModel, "rms_norm_eps"),
    BadConfig("C14-eps-2", {"rms_norm_eps": 2.0}, InvalidModel, "rms_norm_eps"),
    BadConfig("C18-quantized", {"quantization_config": {"quant_method": "gptq"}}, UnsupportedModel, "quantization"),
    BadConfig("mish", {"hidden_act": "mish"}, UnsupportedModel, "`mish`"),
    BadConfig("tie-is-a-string", {"tie_word_embeddings": "true"}, InvalidModel, "tie_word_embeddings"),
    BadConfig("bias-is-a-number", {"attention_bias": 1}, InvalidModel, "attention_bias"),
    BadConfig("window-0", {"sliding_window": 0}, InvalidModel, "sliding_window", "mistral"),
    BadConfig("window-string", {"sliding_window": "4096"}, InvalidModel, "sliding_window", "mistral"),
    BadConfig("linear-attention-layers", {"use_sliding_window": True, "layer_types": ["linear_attention"] * 2},
              UnsupportedModel, "`linear_attention`", "qwen3"),
    BadConfig("layer-types-number", {"layer_types": 2}, InvalidModel, "layer_types", "mistral"),
]  # fmt: skip


class BadJSON(NamedTuple):
    id: str
    data: bytes
    message: str


JSONS = [
    BadJSON("C2-empty", b"", "Expecting value"),
    BadJSON("C2-list", b"[]", "a list"),
    BadJSON("C2-null", b"null", "null"),
    BadJSON("C2-string", b'"x"', "a string"),
    BadJSON("C2-truncated", b'{"model_type": "lla', "Unterminated"),
    BadJSON("C3-depth-100k", b"[" * 100_000, "nested"),
    BadJSON("C3-depth-100k-objects", b'{"a":' * 100_000, "nested"),
    BadJSON("C3-depth-65", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "nested deeper than 64"),
    BadJSON("C3-5000-digits", b'{"a": ' + b"1" * 5000 + b"}", "too many digits"),
    BadJSON("C4-nan", b'{"rope_theta": NaN}', "`NaN`"),
    BadJSON("C4-infinity", b'{"rope_theta": Infinity}', "`Infinity`"),
    BadJSON("C4-minus-infinity", b'{"rope_theta": -Infinity}', "`-Infinity`"),
    BadJSON("C4-1e999", b'{"rope_theta": 1e999}', "`1e999`"),
    BadJSON("C5-duplicate", b'{"hidden_size": 64, "hidden_size": 65}', "`hidden_size` comes twice"),
    BadJSON("C5-duplicate-inside", b'{"a": [{"b": 1, "b": 1}]}', "`b` comes twice"),
    BadJSON("utf-16", '{"a": 1}'.encode("utf-16"), "UTF-8"),
    BadJSON("latin-1", b'{"a": "\xe9"}', "UTF-8"),
    BadJSON("lone-surrogate", b'{"a": "\\ud800"}', "surrogate"),
    BadJSON("control-character", b'{"a": "\n"}', "control character"),
    BadJSON("two-documents", b"{}{}", "Extra data"),
    BadJSON("comment", b"{} // no", "Extra data"),
    BadJSON("trailing-comma", b'{"a": 1,}', "."),
    BadJSON("single-quotes", b"{'a': 1}", "."),
]


class BadIndex(NamedTuple):
    id: str
    weight_map: Any
    message: str


INDEXES = [
    BadIndex("missing", ..., "weight_map"),
    BadIndex("empty", {}, "weight_map"),
    BadIndex("list", ["a.safetensors"], "weight_map"),
    BadIndex("C19-passwd", {"a": "../../etc/passwd"}, r"\.\./\.\./etc/passwd"),
    BadIndex("C19-parent", {"a": "../a.safetensors"}, "plain"),
    BadIndex("C19-absolute", {"a": "/tmp/a.safetensors"}, "plain"),
    BadIndex("C19-backslash", {"a": "..\\a.safetensors"}, "plain"),
    BadIndex("C19-drive", {"a": "C:a.safetensors"}, "plain"),
    BadIndex("C19-nul", {"a": "a\0.safetensors"}, "plain"),
    BadIndex("C19-dot", {"a": "."}, "plain"),
    BadIndex("C19-hidden", {"a": ".safetensors"}, "plain"),
    BadIndex("C19-subfolder", {"a": "sub/a.safetensors"}, "plain"),
    BadIndex("C19-empty-name", {"a": ""}, "plain"),
    BadIndex("C19-number", {"a": 3}, "plain"),
    BadIndex("C19-null", {"a": None}, "plain"),
    BadIndex("C19-long", {"a": "x" * 300 + ".safetensors"}, "plain"),
    BadIndex("C20-missing-shard", {"a": "gone.safetensors"}, "`gone.safetensors`, which is missing"),
]

# ---- D: changes to a good tokenizer.json


class BadTokenizer(NamedTuple):
    id: str
    data: bytes
    message: str
    error: type[EdgeLLMError] = InvalidTokenizer


def tokenizer(**changes: Any) -> bytes:
    return json.dumps(byte_level_tokenizer() | changes).encode()


def tokenizer_model(**changes: Any) -> bytes:
    raw = byte_level_tokenizer()
    return tokenizer(model=raw["model"] | changes)


def tokenizer_vocab(**tokens: Any) -> bytes:
    return tokenizer_model(vocab=byte_level_tokenizer()["model"]["vocab"] | tokens)


def added(content: str, token: int = VOCAB_SIZE - 1) -> bytes:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return tokenizer(added_tokens=[{"id": token, "content": content, **flags}])


def split_by(regex: str) -> bytes:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]})


def replacing(*steps: tuple[str, str], regex: bool = False) -> bytes:
    kind = "Regex" if regex else "String"
    parts = [{"type": "Replace", "pattern": {kind: old}, "content": new} for old, new in steps]
    return tokenizer(normalizer={"type": "Sequence", "normalizers": parts})


def charsmap(longest: int) -> bytes:
    """SentencePiece's table with an empty trie and one text."""
    table = (4).to_bytes(4, "little") + bytes(4) + b"x" * longest + b"\0"
    return tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()})


LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GROWING = [
    BadTokenizer("D25-long-replacement", replacing(("a", "a" * 1000)), "600 times as long"),
    BadTokenizer("D25-chain-of-replacements", replacing(*[("a", "aaaaaaaa")] * 9), "600 times as long"),
    BadTokenizer("D25-regex-that-matches-nothing", replacing(("", "x" * 2000), regex=True), "600 times as long"),
    BadTokenizer("D25-empty-pattern", replacing(("", "x" * 2000)), "600 times as long"),
    BadTokenizer("D25-long-prepended", tokenizer(normalizer={"type": "Prepend", "prepend": "x" * 1_000_000}), "600 times"),
    BadTokenizer("D25-levels-of-bytes", tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [LEVEL] * 30}),
                 "600 times as long"),
    BadTokenizer("D25-nested-sequences", tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Sequence", "pretokenizers": [LEVEL] * 5}] * 6}), "600 times as long"),
    BadTokenizer("D25-many-steps", replacing(*[("a", "b")] * 1000), "1001 steps"),
    BadTokenizer("D25-long-affix", tokenizer_model(continuing_subword_prefix="x" * 1000, merges=[]),
                 "continuing_subword_prefix"),
    BadTokenizer("D25-table-of-long-texts", charsmap(100_000), "600 times as long|cannot be used"),
]


TOKENIZERS = [
    *GROWING,
    BadTokenizer("D1-empty", b"", "cannot be used"),
    BadTokenizer("D1-truncated", tokenizer()[:-100], "cannot be used"),
    BadTokenizer("D1-list", b"[]", "cannot be used"),
    BadTokenizer("D1-binary", b"\xff\xfe\0", "cannot be used"),
    BadTokenizer("D1-wrong-type", tokenizer_model(type="Magic"), "cannot be used"),
    BadTokenizer("D1-depth-100k", b"[" * 100_000, "cannot be used"),
    BadTokenizer("D2-merge-of-nothing", tokenizer_model(merges=["q q", "zz zz"]), "cannot be used"),
    BadTokenizer("D3-same-id", tokenizer_vocab(twin=65), "same id `65`"),
    BadTokenizer("D4-id-4e9", tokenizer_vocab(far=4_000_000_000), "`far` has the id `4000000000`"),
    BadTokenizer("D4-id-is-vocab-size", tokenizer_vocab(far=VOCAB_SIZE), f"`{VOCAB_SIZE}`"),
    BadTokenizer("D4-id-negative", tokenizer_vocab(far=-1), "cannot be used"),
    BadTokenizer("D4-id-2^32", tokenizer_vocab(far=1 << 32), "cannot be used"),
    BadTokenizer("D4-id-float", tokenizer_vocab(far=1.5), "cannot be used"),
    BadTokenizer("D4-no-tokens", tokenizer_model(vocab={}, merges=[]), "."),
    BadTokenizer("D4-only-added-tokens", tokenizer_model(vocab={}, merges=[]).replace(b'"special": true', b'"x": 0'), "."),
    BadTokenizer("D5-1MiB-added-token", added("x" * (1 << 20)), "1048576 characters"),
    BadTokenizer("D6-bad-regex", split_by("(a"), "cannot be used"),
    BadTokenizer("D6-bad-class", split_by("[z-a]"), "cannot be used"),
    BadTokenizer("D8-drops-what-it-does-not-know", tokenizer_model(vocab={"a": 0}, merges=[]), "drops"),
    BadTokenizer("no-decoder", tokenizer(decoder=None), "no decoder", UnsupportedModel),
    BadTokenizer("bpe-decoder", tokenizer(decoder={"type": "BPEDecoder", "suffix": "</w>"}),
                 "BPEDecoder", UnsupportedModel),
    BadTokenizer("regex-in-decoder",
                 tokenizer(decoder={"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}), "Replace",
                 UnsupportedModel),
]  # fmt: skip


class BadTemplate(NamedTuple):
    id: str
    source: str
    error: type[EdgeLLMError] = InvalidTokenizer
    message: str = "."


LOOP = "{% for i in range(100000) %}"
END = "{% endfor %}"

TEMPLATES = [
    BadTemplate("D15-open-block", "{% if %}", message="Expected an expression"),
    BadTemplate("D15-open-variable", "{{ messages"),
    BadTemplate("D15-unknown-tag", "{% do messages %}", message="do"),
    BadTemplate("D15-unknown-filter", "{{ messages | centre }}", message="centre"),
    BadTemplate("D15-unknown-test", "{{ messages is nice }}", message="nice"),
    BadTemplate("D16-raises", "{{ raise_exception('roles must alternate') }}", UsageError, "roles must alternate"),
    BadTemplate("D16-raises-a-lot", "{{ raise_exception('no ' * 100000) }}", UsageError, r"no no .{,600}$"),
    BadTemplate("D16-raises-a-list", "{{ raise_exception([['no'] * 1000] * 100000) }}", message="memory|time"),
    BadTemplate("D16-raises-lines", "{{ raise_exception('a\\nb\x1b[31m') }}", UsageError, r"a\\nb\\x1b\[31m"),
    BadTemplate("D17-range-1e10", "{% for i in range(10**10) %}x{% endfor %}", message="range"),
    BadTemplate("D17-nested-ranges", LOOP * 5 + "x" + END * 5, message="processor time|characters"),
    BadTemplate("D17-nested-silent", LOOP * 5 + END * 5, message="processor time"),
    BadTemplate("D17-range-as-list", "{{ (range(1000000) | list + range(1000000) | list) * 100 }}"),
    BadTemplate("D18-repeat", "{{ 'a' * 10**10 }}", message="memory"),
    BadTemplate("D18-repeat-from-left", "{{ 10**10 * 'a' }}", message="memory"),
    BadTemplate("D18-repeat-list", "{{ [1] * 10**10 }}", message="memory"),
    BadTemplate("D18-doubling-tilde", "{% set n = namespace(s='ab') %}" + LOOP + "{% set n.s = n.s ~ n.s %}" + END),
    BadTemplate("D18-doubling-plus", "{% set n = namespace(s='ab') %}" + LOOP + "{% set n.s = n.s + n.s %}" + END),
    BadTemplate("D18-doubling-replace",
                "{% set n = namespace(s='a') %}" + LOOP + "{% set n.s = n.s.replace('a', 'aa') %}" + END),
    BadTemplate("D18-doubling-replace-filter",
                "{% set n = namespace(s='a') %}" + LOOP + "{% set n.s = n.s | replace('a', 'aa') %}" + END),
    BadTemplate("D18-doubling-join",
                "{% set n = namespace(s='a') %}" + LOOP + "{% set n.s = n.s.join(['b', 'b', 'b']) %}" + END),
    BadTemplate("D18-doubling-set-block",
                "{% set n = namespace(s='ab') %}" + LOOP + "{% set x %}{{ n.s }}{{ n.s }}{% endset %}"
                "{% set n.s = x %}" + END),
    BadTemplate("D18-doubling-macro",
                "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set n = namespace(s='ab') %}" + LOOP
                + "{% set n.s = m(n.s) %}" + END),
    BadTemplate("D18-doubling-list", "{% set n = namespace(s=[1]) %}" + LOOP + "{% set n.s = n.s + n.s %}" + END),
    BadTemplate("D18-shared-lists", "{% set n = namespace(s=[1]) %}" + LOOP + "{% set n.s = [n.s, n.s] %}" + END),
    BadTemplate("D18-shared-dicts", "{% set n = namespace(s=1) %}" + LOOP + "{% set n.s = {1: n.s, 2: n.s} %}" + END),
    BadTemplate("D18-shared-dict-calls",
                "{% set n = namespace(s=1) %}" + LOOP + "{% set n.s = dict(a=n.s, b=n.s) %}" + END),
    BadTemplate("D18-shared-namespaces",
                "{% set n = namespace(s=1) %}" + LOOP + "{% set n.s = [namespace(a=n.s), namespace(a=n.s)] %}" + END),
    BadTemplate("D18-many-slices",
                "{% set big = 'a' * 1000000 %}{% set n = namespace(l=[]) %}" + LOOP
                + "{% set n.l = n.l + [big[i:]] %}" + END),
    BadTemplate("D18-power", "{{ 2 ** 100000 }}", message="digits"),
    BadTemplate("D18-squaring", "{% set n = namespace(x=3) %}" + LOOP + "{% set n.x = n.x * n.x %}" + END,
                message="processor time"),
    BadTemplate("D18-percent-width", "{{ '%1000000000d' % 1 }}", message="memory"),
    BadTemplate("D18-format-width", "{{ '{:1000000000}'.format(1) }}", message="memory"),
    BadTemplate("D18-format-precision", "{{ '{:.1000000000f}'.format(1.0) }}"),
    BadTemplate("D18-center", "{{ 'a'.center(10**10) }}", message="memory"),
    BadTemplate("D18-zfill", "{{ 'a'.zfill(10**10) }}", message="memory"),
    BadTemplate("D18-expandtabs", "{{ '\\t'.expandtabs(10**9) }}", message="memory"),
    BadTemplate("D18-to-bytes", "{{ (1).to_bytes(10**10) }}", message="memory"),
    BadTemplate("D18-division-of-huge-integers",
                "{{ ('f' * 4000000) | int(0, 16) // (('e' * 2000000) | int(0, 16)) }}", message="processor time"),
    BadTemplate("D18-in", "{% set a = 'a' * 1000000 %}" + LOOP + "{% set x = 'b' in a %}" + END, message="processor time"),
    BadTemplate("D18-equal",
                "{% set a = [1] * 1000000 %}{% set b = [1] * 1000000 %}" + LOOP + "{% if a == b %}{% endif %}" + END,
                message="processor time"),
    BadTemplate("D18-select", LOOP + "{% set x = range(1000) | select('odd') | list %}" + END, message="processor time"),
    BadTemplate("D18-indent-carriage-returns", "{{ ('a\\r' * 60000) | indent(1000) }}", message="memory|output"),
    BadTemplate("D18-tojson-separators",
                "{{ range(60000) | list | tojson(separators=(',' * 10000, ':')) }}", message="memory"),
    BadTemplate("D18-urlize", "{{ ('http://a.bc ' * 10000) | urlize(target='x' * 10000) }}", message="memory"),
    BadTemplate("D18-pprint", "{{ range(1000000) | list | pprint }}"),
    BadTemplate("D18-batch", "{{ [1] | batch(100000000, 'x') | list }}", message="memory"),
    BadTemplate("D18-indent", "{{ ('a\\n' * 1000000) | indent(10**9) }}", message="memory"),
    BadTemplate("D18-tojson-indent",
                "{% set n = namespace(s=1) %}{% for i in range(50) %}{% set n.s = [n.s] %}{% endfor %}"
                "{% set big = [n.s] * 10000 %}" + LOOP + "{{ big | tojson(indent=10**9) }}" + END),
    BadTemplate("D18-lipsum", "{{ lipsum(10**6) }}", message="processor time"),
    BadTemplate("D19-macro-recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", message="nested too deeply"),
    BadTemplate("D19-macro-branches",
                "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
                message="processor time"),
    BadTemplate("D19-recursive-loop",
                "{% for i in range(1000) recursive %}{{ loop(range(1000)) }}{% endfor %}"),
    BadTemplate("D19-20k-parentheses", "{{" + "(" * 20_000 + "1" + ")" * 20_000 + "}}", message="nested too deeply"),
    BadTemplate("D19-20k-brackets", "{{" + "[" * 20_000 + "]" * 20_000 + "}}", message="nested too deeply"),
    BadTemplate("D19-20k-not", "{{" + "not " * 20_000 + "1 }}", message="nested too deeply"),
    BadTemplate("D19-1MiB-of-tags", "{{1}}" * 200_000, message="memory|time"),
    BadTemplate("D19-1MiB-of-names", "{{" + "+".join(f"a{i}" for i in range(100_000)) + "}}", message="memory|time|nested"),
    BadTemplate("D19-5k-blocks", "{% if 1 %}" * 5000 + "{% endif %}" * 5000, message="nested too deeply"),
    BadTemplate("D19-30-loops", "{% for i in [1] %}" * 30 + END * 30),
    BadTemplate("D21-include", "{% include 'x' %}", message="other templates"),
    BadTemplate("D21-include-computed", "{% include messages[0].content %}", message="other templates"),
    BadTemplate("D21-import", "{% import 'x' as y %}", message="other templates"),
    BadTemplate("D21-from-import", "{% from 'x' import y %}", message="other templates"),
    BadTemplate("D21-extends", "{% extends 'x' %}", message="other templates"),
    BadTemplate("D22-append", "{{ messages.append(1) }}", message="append"),
    BadTemplate("D22-clear", "{{ messages.clear() }}", message="clear"),
    BadTemplate("D22-pop", "{{ messages[0].pop('role') }}", message="pop"),
    BadTemplate("D22-update", "{{ messages[0].update({'role': 'system'}) }}", message="update"),
    BadTemplate("D22-assign", "{% set messages[0].role = 'system' %}"),
    BadTemplate("D23-output-1GiB", LOOP + "{{ 'a' * 10000 }}" + END, message="output|too much text"),
    BadTemplate("D24-nothing", "", message="empty prompt"),
    BadTemplate("D24-nothing-for-this", "{% if tools %}x{% endif %}", message="empty prompt"),
    BadTemplate("undefined", "{{ missing.name }}", message="missing"),
    BadTemplate("division-by-zero", "{{ 1 / 0 }}", message="division"),
    BadTemplate("wrong-types", "{{ messages + 1 }}"),
    BadTemplate("sum-of-lists", "{{ ([[1] * 1000] * 100000) | sum(start=[]) }}", message="memory|time"),
    BadTemplate("D18-wide-container",
                "{% set n = namespace(s=['a'] * 2000) %}{% set n.s = [n.s] * 2000 %}{{ n.s }}", message="memory|output|time"),
]  # fmt: skip

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}{{ ''['__class__'].__mro__ }}",
    "{{ ().__class__.__base__ }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ messages | attr('__class__') }}",
    "{{ messages | map(attribute='__class__') | list | first | string }}{{ x.y }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ dict.mro() }}",
    "{{ dict.fromkeys.__globals__ }}{{ x.y }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ range.__self__.budget }}",
    "{{ raise_exception.__globals__ }}{{ x.y }}",
    "{{ strftime_now.__globals__['datetime'] }}{{ x.y }}",
    "{{ strftime_now.__wrapped__.__code__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ '{0.__class__}'.format(1).x.y }}",
    "{{ '{0.__class__.__init__.__globals__}'.format_map({}) }}",
    "{{ ('{0.__class__}' | string).format(1).x.y }}",
    "{{ '%(a)s' % {'a': messages.__class__} }}{{ x.y }}",
    "{{ namespace(__class__=1) }}{{ x.y }}",
    "{% macro m() %}{{ caller.__globals__.x }}{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% for m in messages %}{{ loop._iterator.gi_frame.f_globals }}{% endfor %}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% set x = messages | map('upper') %}{{ x.gi_frame.f_back.f_globals }}",
    "{{ (messages | select).gi_code.co_consts }}",
    "{{ missing._fail_with_undefined_error.__globals__ }}",
    "{{ ''.encode().__class__.x }}",
    "{{ (1).__class__.__base__ }}",
    "{{ messages[0].items().mapping.__class__ }}",
    "{{ messages[0].keys().__class__.__mro__ }}",
    "{{ _each.__globals__ }}",
    "{{ environment.budget }}",
    "{{ context.environment }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__dict__ }}",
]
"""Ways out of a sandbox; each must end in an error, or in nothing."""


def with_value(value: float) -> np.ndarray:
    """A float32 vector that is fine but for one element."""
    values = np.ones(3000, np.float32)
    values[2047] = value
    return values
