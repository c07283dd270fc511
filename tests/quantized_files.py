"""Checkpoints as the tools for GPTQ, AWQ, FP8 and compressed-tensors write them, by slow packers of our own.

A packer takes the float tensors of a model and gives those of the checkpoint, what quantization_config says, and the floats
that the checkpoint stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from model_files import raw_safetensors, write_json, write_tokenizer
from modelslim_files import LINEARS

_DTYPES = {"f4": "F32", "f2": "F16", "i1": "I8", "i4": "I32", "i8": "I64", "u1": "F8_E4M3", "u2": "BF16"}
"""uint8 stands for the codes of 8-bit floats, uint16 for the bits of bfloat16."""


@dataclass
class Quantized:
    """A checkpoint; what a test changes before it is written."""

    tensors: dict[str, np.ndarray]
    settings: dict[str, Any]
    floats: dict[str, np.ndarray] = field(default_factory=dict)
    """Of the same model, all of them."""


def is_linear(name: str) -> bool:
    return name.removesuffix(".weight").endswith(LINEARS) and name.endswith(".weight")


def quantized(
    tensors: Mapping[str, np.ndarray],
    settings: dict[str, Any],
    pack: Callable[[str, np.ndarray], Any],
    chosen: Callable[[str], bool] = is_linear,
) -> Quantized:
    """``pack(module, weight)`` gives a module's tensors by their last names, and its floats."""
    made = Quantized({}, settings)
    for name, values in tensors.items():
        made.floats[name] = values
        if not chosen(name):
            made.tensors[name] = values
            continue
        module = name.removesuffix(".weight")
        parts, made.floats[name] = pack(module, values)
        made.tensors |= {f"{module}.{part}": array for part, array in parts.items()}
    return made


def write_quantized(folder: Path, raw: Mapping[str, Any], made: Quantized) -> Path:
    """The folder of ``made``, a model with the config.json ``raw``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {**raw, "quantization_config": made.settings})
    write_tokenizer(folder)
    (folder / "model.safetensors").write_bytes(mixed_safetensors(made.tensors))
    return folder


def mixed_safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    header, parts, offset = {}, [], 0
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        place = [offset, offset + len(data)]
        header[name] = {"dtype": _DTYPES[array.dtype.str[1:]], "shape": list(array.shape), "data_offsets": place}
        parts.append(data)
        offset += len(data)
    return raw_safetensors(json.dumps(header).encode(), b"".join(parts))


def words(values: Any, bits: int) -> np.ndarray:
    """Whole numbers one behind the other, lowest bit first, in words int32."""
    whole = sum(int(value) << bits * place for place, value in enumerate(values))
    count = -(-len(values) * bits // 32)
    return np.frombuffer(whole.to_bytes(4 * count, "little"), "<i4")


def rounded(weight: np.ndarray, group: np.ndarray, bits: int, *, symmetric: bool, scale_type: Any = np.float16):
    """Codes [N, K] of 0 to 2^bits - 1, zero points and scales [N, G], and the floats: ``group`` is that of every column."""
    rows = len(weight)
    count, most = int(group.max()) + 1, 2**bits - 1
    zeros, scales = np.zeros((rows, count), int), np.zeros((rows, count), scale_type)
    for index in range(count):
        part = weight[:, group == index]
        if symmetric:
            scales[:, index] = np.abs(part).max(axis=1) / (most / 2)
            zeros[:, index] = 2 ** (bits - 1)
        else:
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            scales[:, index] = (high - low) / most
            zeros[:, index] = np.clip(np.rint(-low / scales[:, index].astype(np.float64)), 1, most)
    step = scales.astype(np.float64)
    codes = np.clip(np.rint(weight / step[:, group] + zeros[:, group]), 0, most).astype(int)
    floats = ((codes - zeros[:, group]) * step[:, group]).astype(np.float32)
    return codes, zeros, scales, floats


def groups_of(columns: int, size: int) -> np.ndarray:
    return np.arange(columns) // (columns if size == -1 else size)


def gptq(
    tensors: Mapping[str, np.ndarray],
    bits: int = 4,
    size: int = 16,
    *,
    form: str = "gptq",
    symmetric: bool = True,
    order: np.random.Generator | None = None,
    index: bool = True,
    chosen: Callable[[str], bool] = is_linear,
    **more: Any,
) -> Quantized:
    """``order``: groups are of channels in an order of its own; without ``index`` there is no g_idx."""

    def pack(module: str, weight: np.ndarray):
        group = groups_of(weight.shape[1], size)
        group = group if order is None else order.permutation(group)
        codes, zeros, scales, floats = rounded(weight, group, bits, symmetric=symmetric)
        stored = (zeros - (form == "gptq")) % 2**bits
        parts = {
            "qweight": np.stack([words(row, bits) for row in codes], axis=1),
            "qzeros": np.stack([words(column, bits) for column in stored.T]),
            "scales": scales.T,
        }
        return (parts | {"g_idx": group.astype(np.int32)} if index else parts), floats

    settings = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "desc_act": order is not None}
    return quantized(tensors, settings | {"checkpoint_format": form} | more, pack, chosen)


def awq(tensors: Mapping[str, np.ndarray], size: int = 16, **more: Any) -> Quantized:
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def in_words(values: np.ndarray) -> np.ndarray:
        return np.stack([np.concatenate([words(eight[order], 4) for eight in row.reshape(-1, 8)]) for row in values])

    def pack(module: str, weight: np.ndarray):
        codes, zeros, scales, floats = rounded(weight, groups_of(weight.shape[1], size), 4, symmetric=False)
        return {"qweight": in_words(codes.T), "qzeros": in_words(zeros.T), "scales": scales.T}, floats

    return quantized(tensors, {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm"} | more, pack)


def e4m3() -> np.ndarray:
    """The values of the 256 codes, told one by one."""
    found = []
    for code in range(256):
        sign, exponent, fraction = (-1) ** (code >> 7), code >> 3 & 15, code & 7
        size = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
        found.append(np.nan if code & 127 == 127 else sign * size)
    return np.array(found)


def fp8_codes(values: np.ndarray) -> np.ndarray:
    table = np.nan_to_num(e4m3(), nan=np.inf)
    return np.abs(values[..., None] - table).argmin(axis=-1).astype(np.uint8)


def fp8_scales(weight: np.ndarray, form: str, block: tuple[int, int] = (32, 48)) -> np.ndarray:
    rows, columns = weight.shape
    if form == "block":
        down, across = -(-rows // block[0]), -(-columns // block[1])
        found = np.zeros((down, across), np.float32)
        for a, b in np.ndindex(down, across):
            found[a, b] = np.abs(weight[a * block[0] :, b * block[1] :][: block[0], : block[1]]).max() / 448
        return found
    if form == "row":
        return (np.abs(weight).max(axis=1, keepdims=True) / 448).astype(np.float32)
    return np.float32(np.abs(weight).max() / 448).reshape((1,) if form == "one" else ())


def spread(scales: np.ndarray, shape: tuple[int, int], block: tuple[int, int] = (32, 48)) -> np.ndarray:
    """Scales of blocks, rows or all, for every weight."""
    if scales.ndim == 2 and scales.shape[1] > 1:
        return np.array([[scales[a // block[0], b // block[1]] for b in range(shape[1])] for a in range(shape[0])])
    return np.broadcast_to(scales, shape)


def fp8(tensors: Mapping[str, np.ndarray], form: str = "block", **more: Any) -> Quantized:
    def pack(module: str, weight: np.ndarray):
        scales = fp8_scales(weight, form)
        whole = spread(scales, weight.shape)
        codes = fp8_codes(weight / whole)
        name = "weight_scale_inv" if form == "block" else "weight_scale"
        beside = {} if form == "block" else {"input_scale": np.float32(0.01).reshape(())}
        return {"weight": codes, name: scales} | beside, (e4m3()[codes] * whole.astype(np.float64)).astype(np.float32)

    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    return quantized(tensors, settings | ({"weight_block_size": [32, 48]} if form == "block" else {}) | more, pack)


def scheme(bits: int, strategy: str, *, kind: str = "int", size: int | None = None, symmetric: bool = True, inputs: Any = None):
    """A group of config_groups."""
    weights = {"num_bits": bits, "type": kind, "symmetric": symmetric, "strategy": strategy, "group_size": size}
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}


TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
TENSOR = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}


def compressed(groups: list[Any], form: str, **more: Any) -> dict[str, Any]:
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    settings = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "config_groups": named}
    return settings | {"quantization_status": "compressed", "kv_cache_scheme": None} | more


def packed(
    tensors: Mapping[str, np.ndarray],
    bits: int = 4,
    size: int = 16,
    *,
    symmetric: bool = True,
    order: np.random.Generator | None = None,
    chosen: Callable[[str], bool] = is_linear,
    **more: Any,
) -> Quantized:
    """pack-quantized of compressed-tensors."""

    def pack(module: str, weight: np.ndarray):
        group = groups_of(weight.shape[1], size)
        group = group if order is None else order.permutation(group)
        codes, zeros, scales, floats = rounded(weight, group, bits, symmetric=symmetric, scale_type=np.float32)
        parts = {
            "weight_packed": np.stack([words(row, bits) for row in codes]),
            "weight_scale": scales,
            "weight_shape": np.array(weight.shape, np.int64),
        }
        if not symmetric:
            parts["weight_zero_point"] = np.stack([words(column, bits) for column in zeros.T], axis=1)
        return (parts if order is None else parts | {"weight_g_idx": group.astype(np.int32)}), floats

    strategy = "channel" if size == -1 else "group"
    one = scheme(bits, strategy, size=None if size == -1 else size, symmetric=symmetric)
    return quantized(tensors, compressed([one], "pack-quantized") | more, pack, chosen)


def int8(
    tensors: Mapping[str, np.ndarray],
    *,
    strategy: str = "channel",
    inputs: Any = TOKEN,
    input_scale: Callable[[str], Any] | None = None,
    symmetric: bool = True,
    form: str = "int-quantized",
    chosen: Callable[[str], bool] = is_linear,
) -> Quantized:
    """int-quantized of compressed-tensors: the largest weight of a row becomes 127 or -128."""

    def pack(module: str, weight: np.ndarray):
        largest = np.abs(weight).max(axis=1, keepdims=True) if strategy == "channel" else np.abs(weight).max().reshape(1)
        scales = (largest / 127.5).astype(np.float32)
        zeros = np.zeros(scales.shape, np.int8) if symmetric else np.full(scales.shape, 3, np.int8)
        codes = np.clip(np.rint(weight / scales.astype(np.float64)) + zeros, -128, 127).astype(np.int8)
        floats = ((codes.astype(int) - zeros) * scales.astype(np.float64)).astype(np.float32)
        parts = {"weight": codes, "weight_scale": scales} | ({} if symmetric else {"weight_zero_point": zeros})
        beside = {} if input_scale is None else {"input_scale": np.float32(input_scale(module)).reshape(1)}
        return parts | beside, floats

    one = scheme(8, strategy, symmetric=symmetric, inputs=inputs)
    return quantized(tensors, compressed([one], form), pack, chosen)


def float8(tensors: Mapping[str, np.ndarray], form: str = "row") -> Quantized:
    """float-quantized of compressed-tensors."""
    made = fp8(tensors, form)
    made.tensors = {name.replace("weight_scale_inv", "weight_scale"): array for name, array in made.tensors.items()}
    one = scheme(8, {"row": "channel", "block": "block"}.get(form, "tensor"), kind="float")
    one["weights"] |= {"block_structure": [32, 48]} if form == "block" else {}
    made.settings = compressed([one | {"input_activations": TOKEN | {"type": "float"}}], "float-quantized")
    return made
