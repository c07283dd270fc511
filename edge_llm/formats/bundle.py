"""The bundle: an imported model as a folder whose bytes are what the kernels multiply.

``manifest.json`` says what the model is and where each tensor lies, ``weights.bin`` holds the tensors block by block
in execution order, and small text files (tokenizer, chat template, generation defaults) stand beside them.  A block is
one layer, the embedding, the last norm or the output matrix; it starts on a 4096-byte boundary and its tensors on
64-byte boundaries, so a layer is one aligned read.  The layout follows from the model's shapes alone: the reader
computes it and refuses a manifest that says anything else.

Every byte is covered: tensors and side files by CRC32C, padding because it must be zero, the manifest because it
carries the checksum of its own text and has exactly one spelling.  Files are read with ``pread`` into owned, aligned
memory and never mapped, because a file that is cut under a mapping kills the process.

    with open_bundle(folder) as bundle:
        layer = bundle.read_block("layers.0")      # {"layers.0.qkv.tiles": int8 [P, KB, 16, 4], ...}

Plain dictionaries only: what a profile means is `edge_llm.quant.profile`'s business.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import ModelConfig, RopeScaling
from edge_llm.errors import CorruptBundle, ModelNotFound, StorageError, UnsupportedModel
from edge_llm.files import RegularFile
from edge_llm.strict_json import parse_object
from kernels.checksum import crc32c

FORMAT = "edge-llm-bundle"
VERSION = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.bin"
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""What the text side reads; the same names as in a Hugging Face folder."""
SOURCE_FILES = ("source/config.json", "source/model.safetensors")
"""Float weights in Hugging Face layout, when the import kept them."""

BLOCK_ALIGNMENT = 4096
TENSOR_ALIGNMENT = 64
MAX_MANIFEST_BYTES = 64 * 2**20
MAX_LAYERS = 4096
MAX_DIMENSION = 2**31 - 1
_DTYPES = {"int8": np.int8, "int32": np.int32, "float16": np.float16, "float32": np.float32}
_MANIFEST_KEYS = frozenset(
    ("format", "version", "model", "linears", "tensors", "files", "profile", "source", "created_with", "checksum")
)

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True)
class TensorRange:
    """Where a tensor lies in ``weights.bin``.  Up to ``end`` there is only zero padding that belongs to it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    end: int
    crc32c: int = 0


@dataclass(frozen=True)
class BlockRange:
    """A run of tensors that is read at once: ``offset`` and ``nbytes`` are multiples of 4096."""

    name: str
    offset: int
    nbytes: int
    tensors: tuple[TensorRange, ...]


@dataclass(frozen=True)
class LinearShape:
    """Output channels, input channels, and whether a bias is added."""

    rows: int
    columns: int
    bias: bool = False


def linear_shapes(config: ModelConfig) -> dict[str, LinearShape]:
    """Every INT8 linear of the model by its name, in execution order."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, LinearShape] = {}
    for layer in range(config.num_layers):
        shapes[f"layers.{layer}.qkv"] = LinearShape(config.qkv_size, hidden, config.qkv_bias)
        shapes[f"layers.{layer}.o"] = LinearShape(hidden, config.q_size, config.output_bias)
        shapes[f"layers.{layer}.gate_up"] = LinearShape(2 * inner, hidden, config.mlp_bias)
        shapes[f"layers.{layer}.down"] = LinearShape(hidden, inner, config.mlp_bias)
    shapes["output"] = LinearShape(config.vocab_size, hidden)
    return shapes


def tensor_layout(config: ModelConfig, hot: Mapping[str, int]) -> list[TensorRange]:
    """The whole of ``weights.bin`` in file order; ``hot`` gives the number of hot channels by linear (default 0).

    Order: embedding, layers, final_norm, output.  Tied embeddings are also the output matrix, whose hot channels are
    known last, so their one block stands where the output would.
    """
    ranges: list[TensorRange] = []
    offset = 0
    for block, tensors in _blocks(config, hot):
        offset = _align(offset, BLOCK_ALIGNMENT)
        for index, (name, dtype, shape) in enumerate(tensors):
            nbytes = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
            last = index == len(tensors) - 1
            end = _align(offset + nbytes, BLOCK_ALIGNMENT if last else TENSOR_ALIGNMENT)
            ranges.append(TensorRange(f"{block}.{name}" if name else block, dtype, shape, offset, nbytes, end))
            offset = end
    return ranges


_Spec = tuple[str, str, tuple[int, ...]]


def _blocks(config: ModelConfig, hot: Mapping[str, int]) -> Iterator[tuple[str, list[_Spec]]]:
    shapes = linear_shapes(config)
    table = LinearShape(config.vocab_size, config.hidden_size)
    embedding = "embedding", _linear_specs("", table, hot.get("output", 0) if config.tied_embeddings else 0)
    if not config.tied_embeddings:
        yield embedding
    for layer in range(config.num_layers):
        block = f"layers.{layer}"
        specs: list[_Spec] = [("attention_norm", "float32", (config.hidden_size,))]
        for part in ("qkv", "o", "gate_up", "down"):
            if part == "gate_up":
                specs.append(("mlp_norm", "float32", (config.hidden_size,)))
            specs += _linear_specs(f"{part}.", shapes[f"{block}.{part}"], hot.get(f"{block}.{part}", 0))
            if part == "qkv":
                norms = ("q_norm", "k_norm") if config.qk_norm else ()
                specs += [(norm, "float32", (config.head_dim,)) for norm in norms]
                specs.append(("k_offset", "float32", (config.num_kv_heads, config.head_dim)))
        yield block, specs
    yield "final_norm", [("", "float32", (config.hidden_size,))]
    if config.tied_embeddings:
        yield embedding
    else:
        yield "output", _linear_specs("", shapes["output"], hot.get("output", 0))


def _linear_specs(prefix: str, shape: LinearShape, hot: int) -> list[_Spec]:
    rows, columns = shape.rows, shape.columns
    specs: list[_Spec] = [
        (prefix + "tiles", "int8", (-(-rows // 16), -(-columns // 4), 16, 4)),
        (prefix + "scale", "float32", (rows,)),
        (prefix + "row_sum", "int32", (rows,)),
        (prefix + "hot_index", "int32", (hot,)),
        (prefix + "hot_weight", "float16", (hot, rows)),
    ]
    if shape.bias:
        specs.append((prefix + "bias", "float32", (rows,)))
    return specs


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def aligned_empty(nbytes: int, alignment: int = BLOCK_ALIGNMENT) -> np.ndarray:
    """Uninitialized uint8 [nbytes] whose first byte lies on a multiple of ``alignment``."""
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


# --- manifest text ----------------------------------------------------------------------------------------------


def encode_manifest(fields: Mapping[str, Any]) -> bytes:
    """The one spelling of a manifest: a key or a list element per line, checksum of all the rest as the last field."""
    body = _encode_body(fields)
    return body[:-2] + f',\n"checksum": "{crc32c(body):08x}"\n}}\n'.encode()


def _encode_body(fields: Mapping[str, Any]) -> bytes:
    lines = []
    for key, value in fields.items():
        if isinstance(value, list | tuple) and value:
            text = "[\n " + ",\n ".join(_dump(item) for item in value) + "\n]"
        elif isinstance(value, dict) and value:
            text = "{\n " + ",\n ".join(f"{_dump(k)}: {_dump(v)}" for k, v in value.items()) + "\n}"
        else:
            text = _dump(value)
        lines.append(f"{_dump(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}").encode()


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def _decode_manifest(text: bytes, path: Path) -> dict[str, Any]:
    fields = _parse_json(text, path)
    if fields.get("format") != FORMAT:
        raise _corrupt(f"`{path}` is not the manifest of an edge-llm bundle")
    if encode_manifest({key: value for key, value in fields.items() if key != "checksum"}) != text:
        raise _corrupt(f"`{path}` was changed after it was written (checksum does not match)")
    version = fields.get("version")
    if type(version) is int and version > VERSION:
        raise UnsupportedModel(
            f"`{path.parent}` was made by a newer edge-llm (bundle version `{version}`, this one reads up to "
            f"{VERSION}); upgrade edge-llm, or import the model again"
        )
    if version != VERSION:
        raise _corrupt(f"`{path}` has the bundle version `{version}`, which never existed")
    return fields


def _parse_json(text: bytes, path: Path) -> dict[str, Any]:
    try:
        return parse_object(text, str(path), error=CorruptBundle)
    except CorruptBundle as error:
        raise _corrupt(str(error)) from None


def _corrupt(what: str) -> CorruptBundle:
    return CorruptBundle(f"{what}; import the model again with `edge-llm import SOURCE --overwrite`")


# --- reading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bundle:
    """An open bundle: what the model is, and its tensors on demand.  Reading from several threads is fine."""

    folder: Path
    manifest: Mapping[str, Any]
    config: ModelConfig
    tensors: Mapping[str, TensorRange]
    blocks: Mapping[str, BlockRange]
    """By name in file order: ``embedding``, ``layers.0`` ..., ``final_norm``, ``output`` (absent when tied)."""
    input_scales: Mapping[str, float]
    """Static activation scale of every linear by its name."""
    size: int
    """Bytes of ``weights.bin``."""
    _file: RegularFile = dataclasses.field(repr=False)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close ``weights.bin``; arrays that were read stay valid."""
        self._file.close()

    def read(self, name: str) -> np.ndarray:
        """One tensor in memory of its own; `CorruptBundle` when its bytes are not what was written."""
        tensor = self.tensors[name]
        buffer = aligned_empty(tensor.end - tensor.offset)
        _fill(self._file, buffer, tensor.offset, tensor.name)
        return self._checked(tensor, buffer)

    def read_block(self, name: str, out: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """All tensors of a block by their full names, in one read.

        The arrays are views of one buffer: ``out`` (uint8, at least the block's ``nbytes``, 4096-aligned) or a new one.
        """
        block = self.blocks[name]
        if out is None:
            out = aligned_empty(block.nbytes)
        if out.dtype != np.uint8 or out.ndim != 1 or len(out) < block.nbytes or out.ctypes.data % TENSOR_ALIGNMENT:
            raise ValueError(f"out must be aligned uint8 [{block.nbytes}] or longer, got {out.dtype} {out.shape}")
        buffer = out[: block.nbytes]
        _fill(self._file, buffer, block.offset, name)
        return {
            tensor.name: self._checked(tensor, buffer[tensor.offset - block.offset : tensor.end - block.offset])
            for tensor in block.tensors
        }

    def read_all(self, progress: Progress | None = None, threads: int | None = None) -> dict[str, np.ndarray]:
        """Every tensor by name, one buffer per block, read and checked by several threads.

        ``progress`` is called with (bytes done, bytes in all).
        """
        buffers = {name: aligned_empty(block.nbytes) for name, block in self.blocks.items()}
        arrays: dict[str, np.ndarray] = {}

        def load(item: tuple[BlockRange, TensorRange]) -> tuple[TensorRange, np.ndarray]:
            block, tensor = item
            part = buffers[block.name][tensor.offset - block.offset : tensor.end - block.offset]
            _fill(self._file, part, tensor.offset, tensor.name)
            return tensor, self._checked(tensor, part)

        items = [(block, tensor) for block in self.blocks.values() for tensor in block.tensors]
        items.sort(key=lambda item: item[1].nbytes, reverse=True)  # the longest first, so that threads end together
        done = 0
        with ThreadPoolExecutor(threads or min(8, len(os.sched_getaffinity(0)))) as pool:
            for tensor, array in pool.map(load, items):
                arrays[tensor.name] = array
                done += tensor.end - tensor.offset
                if progress is not None:
                    progress(done, self.size)
        return {name: arrays[name] for name in self.tensors}

    def verify(self) -> None:
        """Read everything once, a block at a time; `CorruptBundle` names the first thing that is damaged."""
        for name in self.blocks:
            self.read_block(name)
        for record in self.manifest["files"]:
            _read_checked(self.folder, record)

    def has_file(self, name: str) -> bool:
        """True if the bundle has the side file ``name`` (one of `SIDE_FILES` or `SOURCE_FILES`)."""
        return any(record["name"] == name for record in self.manifest["files"])

    def read_file(self, name: str) -> bytes:
        """The bytes of a side file, checked."""
        record = next((r for r in self.manifest["files"] if r["name"] == name), None)
        if record is None:
            raise _corrupt(f"the bundle `{self.folder}` has no `{name}`")
        return _read_checked(self.folder, record)

    def float_source(self) -> Path | None:
        """Folder of the float weights that this bundle was made from; None when they are not there any more."""
        where = self.manifest["source"]["float"]
        folder = None if where is None else self.folder / where  # an absolute path stands for itself
        return folder if folder is not None and (folder / "config.json").is_file() else None

    @property
    def generation_config(self) -> dict[str, Any]:
        """The model author's sampling defaults (Hugging Face `generation_config.json`), empty when there are none."""
        if not self.has_file("generation_config.json"):
            return {}
        return _parse_json(self.read_file("generation_config.json"), self.folder / "generation_config.json")

    def input_scale(self, linear: str) -> float:
        """Static activation scale of ``linear``."""
        return self.input_scales[linear]

    def columns(self, linear: str) -> int:
        """Input channels of ``linear``, or the hidden size for ``embedding``."""
        return self.config.hidden_size if linear == "embedding" else linear_shapes(self.config)[linear].columns

    def _checked(self, tensor: TensorRange, part: np.ndarray) -> np.ndarray:
        data = part[: tensor.nbytes]
        if crc32c(data) != tensor.crc32c:
            raise _corrupt(f"tensor `{tensor.name}` in `{self.folder / WEIGHTS}` is damaged (checksum does not match)")
        if part[tensor.nbytes :].any():
            raise _corrupt(f"the padding after tensor `{tensor.name}` in `{self.folder / WEIGHTS}` is damaged")
        array = data.view(_DTYPES[tensor.dtype]).reshape(tensor.shape)
        if tensor.name.endswith("hot_index"):
            self._check_hot(tensor.name, array)
        return array

    def _check_hot(self, name: str, index: np.ndarray) -> None:
        # the kernels trust these numbers, so a crafted file must not get past here
        columns = self.columns(name.removesuffix(".hot_index"))
        if len(index) and (index[0] < 0 or index[-1] >= columns or (np.diff(index) <= 0).any()):
            raise _corrupt(f"tensor `{name}` does not list ascending channels below {columns}")


def open_bundle(folder: Path) -> Bundle:
    """Open the bundle at ``folder`` and check all of it but the tensors' bytes, which are checked as they are read.

    Raises `ModelNotFound` (no bundle there), `CorruptBundle`, `UnsupportedModel` (made by a newer version) or
    `StorageError`.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    config = _model_config(manifest["model"])
    input_scales = _input_scales(manifest["linears"], config)
    ranges = _tensor_ranges(manifest["tensors"], config)
    _check_files(manifest["files"], folder)
    _check_source(manifest["source"], folder)
    file = _open(folder / WEIGHTS)
    size = ranges[-1].end
    if file.size != size:
        file.close()
        last = next((tensor.name for tensor in ranges if tensor.end > file.size), ranges[-1].name)
        how = f"is cut: tensor `{last}` is incomplete" if file.size < size else f"has extra bytes after tensor `{last}`"
        raise _corrupt(f"`{folder / WEIGHTS}` {how} ({file.size} bytes instead of {size})")
    bundle = Bundle(
        folder=folder,
        manifest=types.MappingProxyType(manifest),
        config=config,
        tensors=types.MappingProxyType({tensor.name: tensor for tensor in ranges}),
        blocks=types.MappingProxyType(_group(ranges)),
        input_scales=types.MappingProxyType(input_scales),
        size=size,
        _file=file,
    )
    weakref.finalize(bundle, file.close)
    return bundle


def _group(ranges: list[TensorRange]) -> dict[str, BlockRange]:
    groups: dict[str, list[TensorRange]] = {}
    for tensor in ranges:
        parts = tensor.name.split(".")
        groups.setdefault(".".join(parts[:2]) if parts[0] == "layers" else parts[0], []).append(tensor)
    return {
        name: BlockRange(name, group[0].offset, group[-1].end - group[0].offset, tuple(group)) for name, group in groups.items()
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ModelNotFound(f"no bundle at `{folder}`; `edge-llm list` shows what is imported")
    if not path.exists():
        raise ModelNotFound(f"`{folder}` has no {MANIFEST}, so it is no imported model; try `edge-llm import {folder}`")
    fields = _decode_manifest(_read_small(path, MAX_MANIFEST_BYTES), path)
    if set(fields) != _MANIFEST_KEYS:
        odd = ", ".join(f"`{key}`" for key in sorted(_MANIFEST_KEYS ^ set(fields)))
        raise _corrupt(f"`{path}` lacks or has unknown fields: {odd}")
    wanted = {"model": dict, "linears": dict, "tensors": list, "files": list, "profile": dict, "source": dict}
    for key, kind in wanted.items():
        if not isinstance(fields[key], kind):
            raise _corrupt(f"`{key}` in `{path}` is not a {kind.__name__}")
    return fields


_COUNTS = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


def _read_checked(folder: Path, record: dict[str, Any]) -> bytes:
    path = folder / record["name"]
    data = _read_small(path, record["bytes"])
    if crc32c(data) != record["crc32c"]:
        raise _corrupt(f"`{path}` was changed after it was written (checksum does not match)")
    return data


def _read_small(path: Path, limit: int) -> bytes:
    with _open(path) as file:
        if file.size > limit:
            raise _corrupt(f"`{path}` has {file.size} bytes; at most {limit} are read")
        data = np.empty(file.size, np.uint8)
        _fill(file, data, 0, path.name)
    return data.tobytes()


def _model_config(raw: dict[str, Any]) -> ModelConfig:
    values = dict(raw)
    scaling = values.get("rope_scaling")
    if scaling is not None:
        values["rope_scaling"] = _fields_of(RopeScaling, scaling, "rope_scaling")
    config: ModelConfig = _fields_of(ModelConfig, values, "model")
    for name in (*_COUNTS, "context"):
        if not 1 <= getattr(config, name) <= MAX_DIMENSION:
            raise _corrupt(f"`{name}` in the manifest is `{getattr(config, name)}`")
    if config.num_layers > MAX_LAYERS:
        raise _corrupt(f"`num_layers` in the manifest is `{config.num_layers}`")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise _corrupt("the heads in the manifest do not divide")
    if not config.norm_eps > 0 or not config.rope_theta > 0:
        raise _corrupt("`norm_eps` and `rope_theta` in the manifest must be above 0")
    return config


def _fields_of(kind: type, raw: object, where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if not isinstance(raw, dict) or set(raw) != set(fields):
        raise _corrupt(f"`{where}` in the manifest does not have the fields of a {kind.__name__}")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        hint = str(fields[name].type)
        good = (
            (hint == "str" and type(value) is str)
            or (hint == "bool" and type(value) is bool)
            or (hint == "int" and type(value) is int)
            or (hint == "float" and type(value) in (int, float) and math.isfinite(value))
            or (hint.startswith("RopeScaling") and (value is None or isinstance(value, RopeScaling)))
        )
        if not good:
            raise _corrupt(f"`{where}.{name}` in the manifest is `{str(value)[:60]}`, not a {hint}")
        values[name] = float(value) if hint == "float" else value
    return kind(**values)


def _input_scales(raw: dict[str, Any], config: ModelConfig) -> dict[str, float]:
    shapes = linear_shapes(config)
    if list(raw) != list(shapes):
        raise _corrupt("the linears in the manifest are not those of the model")
    scales: dict[str, float] = {}
    for name, shape in shapes.items():
        record = raw[name]
        if not isinstance(record, dict) or set(record) != {"rows", "columns", "input_scale"}:
            raise _corrupt(f"linear `{name}` in the manifest is malformed")
        scale = record["input_scale"]
        if (record["rows"], record["columns"]) != (shape.rows, shape.columns):
            raise _corrupt(f"linear `{name}` in the manifest does not have the model's shape")
        if type(scale) is not float or not _is_scale(scale):
            raise _corrupt(f"linear `{name}` in the manifest has the input scale `{str(scale)[:60]}`")
        scales[name] = scale
    return scales


def _is_scale(value: float) -> bool:
    # the kernels work with the float32 reciprocal, which must be finite as well
    return 1e-30 <= value <= 1e30


def _tensor_ranges(raw: list[Any], config: ModelConfig) -> list[TensorRange]:
    hot: dict[str, int] = {}
    for record in raw:
        if not isinstance(record, dict) or set(record) != {"name", "dtype", "shape", "offset", "bytes", "crc32c"}:
            raise _corrupt("the tensor table in the manifest is malformed")
        name, shape = record["name"], record["shape"]
        if isinstance(name, str) and name.endswith(".hot_index"):
            if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
                raise _corrupt(f"tensor `{name[:80]}` in the manifest is malformed")
            linear = name.removesuffix(".hot_index")
            hot["output" if linear == "embedding" and config.tied_embeddings else linear] = shape[0]
    shapes = linear_shapes(config)
    for name, count in hot.items():
        if name in shapes and count > shapes[name].columns:
            raise _corrupt(f"linear `{name}` has more hot channels than channels")
    layout = tensor_layout(config, hot)
    if len(layout) != len(raw):
        raise _corrupt(f"the manifest lists {len(raw)} tensors, the model has {len(layout)}")
    return [_matching(record, expected) for record, expected in zip(raw, layout, strict=True)]


def _matching(record: dict[str, Any], expected: TensorRange) -> TensorRange:
    crc = record["crc32c"]
    if record != _record(dataclasses.replace(expected, crc32c=crc)) or type(crc) is not int or not 0 <= crc < 2**32:
        raise _corrupt(f"tensor `{expected.name}` in the manifest is not where and what it must be")
    return dataclasses.replace(expected, crc32c=crc)


def _record(tensor: TensorRange) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "offset": tensor.offset,
        "bytes": tensor.nbytes,
        "crc32c": tensor.crc32c,
    }


def _check_files(raw: list[Any], folder: Path) -> None:
    names: set[str] = set()
    for record in raw:
        if not isinstance(record, dict) or set(record) != {"name", "bytes", "crc32c"}:
            raise _corrupt("the file table in the manifest is malformed")
        name = record["name"]
        if name not in SIDE_FILES + SOURCE_FILES or name in names:
            raise _corrupt(f"the manifest lists the file `{str(name)[:80]}`")
        if type(record["bytes"]) is not int or type(record["crc32c"]) is not int:
            raise _corrupt(f"the file `{name}` in the manifest is malformed")
        names.add(name)
        path = folder / name
        if not path.is_file() or path.stat().st_size != record["bytes"]:
            raise _corrupt(f"`{path}` is missing or does not have {record['bytes']} bytes")
        if name in SIDE_FILES:  # small, and read by path later on
            _read_checked(folder, record)
    if "tokenizer.json" not in names:
        raise _corrupt("the manifest lists no `tokenizer.json`")


def _check_source(raw: dict[str, Any], folder: Path) -> None:
    where = raw.get("float")
    good = {"kind", "path", "digest", "float"} <= set(raw) and all(v is None or type(v) is str for v in raw.values())
    if not good or (where is not None and where != "source" and not Path(where).is_absolute()):
        raise _corrupt(f"`source` in the manifest of `{folder}` is malformed")


def _open(path: Path) -> RegularFile:
    try:
        return RegularFile(path, error=CorruptBundle)
    except ModelNotFound:
        raise _corrupt(f"`{path}` is missing") from None


def _fill(file: RegularFile, buffer: np.ndarray, offset: int, what: str) -> None:
    """Fill ``buffer`` (uint8 [n]) from ``offset``; a read error is tried once more before it is raised."""
    try:
        try:
            file.read_into(buffer, offset)
        except StorageError:
            file.read_into(buffer, offset)
    except CorruptBundle:
        raise _corrupt(f"`{file.path}` was cut while it was open: `{what}` is incomplete") from None


# --- writing ----------------------------------------------------------------------------------------------------


class BundleWriter:
    """Writes a bundle into ``folder`` (existing, empty); nothing is a bundle before `finish` has returned.

    ``add`` takes the tensors in the order of `tensor_layout`.  Every failed write raises `StorageError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tensors: list[TensorRange] = []
        self._files: list[dict[str, Any]] = []
        self._offset = 0
        self._block = ""
        self._out = _Output(folder / WEIGHTS)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()

    def add(self, name: str, array: np.ndarray) -> None:
        """Append one tensor."""
        array = np.ascontiguousarray(array)
        parts = name.split(".")
        block = ".".join(parts[:2]) if parts[0] == "layers" else parts[0]
        offset = _align(self._offset, TENSOR_ALIGNMENT if block == self._block else BLOCK_ALIGNMENT)
        data = array.reshape(-1).view(np.uint8)
        self._out.write(bytes(offset - self._offset))
        self._out.write(data)
        crc = crc32c(data)
        self._tensors.append(TensorRange(name, array.dtype.name, array.shape, offset, array.nbytes, 0, crc))
        self._offset = offset + array.nbytes
        self._block = block

    def add_file(self, name: str, chunks: Iterable[bytes | np.ndarray]) -> None:
        """Write the side file ``name`` (one of `SIDE_FILES` or `SOURCE_FILES`) from pieces: bytes or uint8 [n]."""
        if name not in SIDE_FILES + SOURCE_FILES:
            raise ValueError(f"a bundle has no file {name!r}")
        path = self.folder / name
        with storage_errors(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        crc, size = 0, 0
        with _Output(path) as out:
            for chunk in chunks:
                out.write(chunk)
                crc = combine_crc32c(crc, crc32c(chunk), len(chunk))
                size += len(chunk)
            out.sync()
        if path.parent != self.folder:
            sync_folder(path.parent)
        self._files.append({"name": name, "bytes": size, "crc32c": crc})

    def finish(
        self,
        config: ModelConfig,
        input_scales: Mapping[str, float],
        *,
        profile: Mapping[str, Any],
        source: Mapping[str, str | None],
        created_with: str,
    ) -> None:
        """Make everything durable, the manifest last.  The caller publishes the folder with a rename."""
        self._out.write(bytes(_align(self._offset, BLOCK_ALIGNMENT) - self._offset))
        self._out.sync()
        self._out.close()
        tensors = self._laid_out(config)
        linears = {
            name: {"rows": shape.rows, "columns": shape.columns, "input_scale": float(input_scales[name])}
            for name, shape in linear_shapes(config).items()
        }
        fields = {
            "format": FORMAT,
            "version": VERSION,
            "created_with": created_with,
            "source": dict(source),
            "model": dataclasses.asdict(config),
            "files": self._files,
            "linears": linears,
            "tensors": [_record(tensor) for tensor in tensors],
            "profile": dict(profile),
        }
        with _Output(self.folder / MANIFEST) as out:
            out.write(encode_manifest(fields))
            out.sync()
        sync_folder(self.folder)

    def _laid_out(self, config: ModelConfig) -> list[TensorRange]:
        hot = {t.name.removesuffix(".hot_index"): t.shape[0] for t in self._tensors if t.name.endswith(".hot_index")}
        if config.tied_embeddings:
            hot["output"] = hot.get("embedding", 0)
        layout = tensor_layout(config, hot)
        written = [dataclasses.replace(tensor, end=0, crc32c=0) for tensor in self._tensors]
        wanted = [dataclasses.replace(tensor, end=0) for tensor in layout]
        if written != wanted:
            wrong = next((w.name for w, t in zip(wanted, written, strict=False) if w != t), "the end")
            raise ValueError(f"tensors were not added in the model's order and shapes; first difference: {wrong}")
        return self._tensors


class _Output:
    """A new file of mode 0600 that is written from front to back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage_errors(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._close = weakref.finalize(self, os.close, self._fd)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes | np.ndarray) -> None:
        """Append bytes, or an array uint8 [n]."""
        view = memoryview(data) if isinstance(data, bytes) else data.data
        with storage_errors(self._path):
            while view:
                view = view[os.write(self._fd, view[: 2**30]) :]

    def sync(self) -> None:
        with storage_errors(self._path):
            os.fsync(self._fd)

    def close(self) -> None:
        self._close()


class storage_errors:  # noqa: N801  (a context manager, read as a phrase)
    """Turn an `OSError` inside the block into a `StorageError` that names ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(
                    f"no space left for `{self._path}`; free some, or set EDGE_LLM_HOME to a folder on another disk"
                ) from None
            raise StorageError(f"cannot write `{self._path}`: {error.strerror or error}") from None


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    with storage_errors(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


_CRC32C_POLYNOMIAL = 0x82F63B78


def combine_crc32c(first: int, second: int, second_length: int) -> int:
    """CRC32C of two pieces in a row from the CRC32C of each (zlib's crc32_combine with the Castagnoli polynomial)."""
    power = _CRC32C_POLYNOMIAL, *(1 << bit for bit in range(31))  # the matrix of one zero bit
    for _ in range(3):
        power = _square(power)  # of one zero byte
    while second_length:
        if second_length & 1:
            first = _times(power, first)
        power = _square(power)
        second_length >>= 1
    return first ^ second


def _times(matrix: tuple[int, ...], vector: int) -> int:
    total = 0
    for bit, row in enumerate(matrix):
        if vector >> bit & 1:
            total ^= row
    return total


def _square(matrix: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_times(matrix, row) for row in matrix)
