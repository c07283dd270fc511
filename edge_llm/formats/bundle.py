"""The bundle: an imported model as a folder whose bytes are what the kernels multiply.

``manifest.json`` says what the model is and where each tensor lies, ``weights.bin`` holds the tensors block by block
in execution order, and small text files (tokenizer, chat template, generation defaults) stand beside them.  The
layout (`edge_llm.formats.layout`) follows from the model's shapes alone: the reader computes it and refuses a manifest
(`edge_llm.formats.manifest`) that says anything else.  `edge_llm.formats.bundle_writer` writes bundles.

Every byte is covered: tensors and side files by CRC32C, padding because it must be zero, the manifest because it
carries the checksum of its own text and has exactly one spelling.  Files are read with ``pread`` into owned, aligned
memory and never mapped, because a file that is cut under a mapping kills the process.

    with open_bundle(folder) as bundle:
        layer = bundle.read_block("layers.0")      # {"layers.0.qkv.tiles": int8 [P, KB, 16, 4], ...}

Plain dictionaries only: what a profile means is `edge_llm.quant.profile`'s business.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import stat
import types
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import ROW, STATIC, ModelConfig
from edge_llm.errors import CorruptBundle, ModelNotFound, StorageError
from edge_llm.files import RegularFile, is_folder, status
from edge_llm.formats.checksum import combine_crc32c
from edge_llm.formats.huge_pages import huge_memory
from edge_llm.formats.layout import (
    BLOCK_ALIGNMENT,
    DTYPES,
    TENSOR_ALIGNMENT,
    BlockRange,
    TensorRange,
    group_blocks,
    group_units,
)
from edge_llm.formats.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SIDE_FILES,
    WEIGHTS,
    check_files,
    check_source,
    corrupt,
    decode_manifest,
    described_model,
    linear_facts,
    linear_schemes,
    parse_json,
    tensor_ranges,
    turned_as_said,
)
from edge_llm.kernels.checksum import crc32c
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.operations.linear import Linear
from edge_llm.progress import CountProgress
from edge_llm.quant.shadow import NONE
from edge_llm.schemes import Facts, check_tensor

READ_BYTES = 4 << 20
"""What a thread reads at a time: its checksum is computed while it is still in the cache."""


def aligned_empty(nbytes: int, alignment: int = BLOCK_ALIGNMENT) -> np.ndarray:
    """Uninitialized uint8 [nbytes] whose first byte lies on a multiple of ``alignment``."""
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


@dataclass(frozen=True)
class Bundle:
    """An open bundle: what the model is, and its tensors on demand.  Reading from several threads is fine."""

    folder: Path
    manifest: Mapping[str, Any]
    config: ModelConfig
    tensors: Mapping[str, TensorRange]
    blocks: Mapping[str, BlockRange]
    """By name in file order: ``embedding``, ``layers.0`` ..., ``final_norm``, ``output`` (absent when tied)."""
    decoder: Decoder
    """The model's layers, each linear with its weight scheme."""
    facts: Mapping[str, Facts]
    """What the manifest says of every linear beside its shape: what its scheme wants to know."""
    size: int
    """Bytes of ``weights.bin``."""
    _file: RegularFile = dataclasses.field(repr=False)
    _opened: Bundle | None = dataclasses.field(default=None, repr=False)
    """What this is a view of; it keeps the file open."""

    @property
    def activations(self) -> str:
        """The scales that it was made for, one of `ACTIVATIONS`; where no linear has a static one, those of rows."""
        is_static = any("input_scale" in facts for facts in self.facts.values())
        return ROW if not is_static or any(facts.get("activations") == ROW for facts in self.facts.values()) else STATIC

    def with_static_scales(self) -> Bundle:
        """The same, for a device whose activations have one scale for all rows."""
        facts = {name: {key: fact for key, fact in one.items() if key != "activations"} for name, one in self.facts.items()}
        return dataclasses.replace(self, facts=types.MappingProxyType(facts), _opened=self)

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

    def read_panels(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """A tensor in runs along its first dimension: (number of the first, the run), each valid until the next is taken.

        All of it must be taken: only then its checksum is known, and `CorruptBundle` raised when it does not match.
        """
        tensor = self.tensors[name]
        panel = math.prod(tensor.shape[1:]) * np.dtype(DTYPES[tensor.dtype]).itemsize
        count = max(1, READ_BYTES // panel)
        buffer = aligned_empty(min(count * panel, tensor.nbytes))
        checksum = 0
        for first in range(0, tensor.shape[0], count):
            run = buffer[: min(count, tensor.shape[0] - first) * panel]
            _fill(self._file, run, tensor.offset + first * panel, tensor.name)
            checksum = combine_crc32c(checksum, crc32c(run), len(run)) if first else crc32c(run)
            yield first, run.view(DTYPES[tensor.dtype]).reshape(-1, *tensor.shape[1:])
        if checksum != tensor.crc32c:
            raise self.damaged(tensor)

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
            tensor.name: self._checked(tensor, _part(buffer, block, tensor)) for tensor in block.tensors
        }

    def read_all(self, progress: CountProgress | None = None, threads: int | None = None) -> dict[str, np.ndarray]:
        """Every tensor by name, blocks side by side in one piece of memory, read and checked in pieces by several threads.

        ``progress`` is called with (bytes done, bytes in all).
        """
        buffers = self._room()
        pieces = [(block, start) for block in self.blocks.values() for start in range(0, block.nbytes, READ_BYTES)]
        checksums: dict[str, int] = {}

        def read(piece: tuple[BlockRange, int]) -> list[tuple[str, int, int]]:
            block, start = piece
            return self._read_piece(block, start, buffers[block.name])

        with ThreadPoolExecutor(threads or min(8, len(os.sched_getaffinity(0)))) as pool:
            for (block, start), parts in zip(pieces, pool.map(read, pieces), strict=True):
                for name, checksum, nbytes in parts:
                    before = checksums.get(name)
                    checksums[name] = checksum if before is None else combine_crc32c(before, checksum, nbytes)
                if progress is not None:
                    progress(min(block.offset + start + READ_BYTES, block.offset + block.nbytes), self.size)
        return {
            tensor.name: self.checked(tensor, _part(buffers[block.name], block, tensor), checksums.get(tensor.name, 0))
            for block in self.blocks.values()
            for tensor in block.tensors
        }

    def _room(self) -> dict[str, np.ndarray]:
        """A buffer for every block."""
        sizes = (-(-block.nbytes // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT for block in self.blocks.values())
        ends = list(itertools.accumulate(sizes))
        memory = huge_memory(ends[-1] if ends else 0)
        starts = dict(zip(self.blocks, [0, *ends], strict=False))
        return {name: memory[starts[name] : starts[name] + block.nbytes] for name, block in self.blocks.items()}

    def _read_piece(self, block: BlockRange, start: int, buffer: np.ndarray) -> list[tuple[str, int, int]]:
        """Fill ``buffer`` (the block's) from byte ``start`` on; name, checksum and bytes of the tensors' parts in it."""
        stop = min(start + READ_BYTES, block.nbytes)
        _fill(self._file, buffer[start:stop], block.offset + start, block.name)
        parts = []
        for tensor in block.tensors:
            first = max(start, tensor.offset - block.offset)
            end = min(stop, tensor.offset - block.offset + tensor.nbytes)
            if first < end:
                parts.append((tensor.name, crc32c(buffer[first:end]), end - first))
        return parts

    def verify(self) -> None:
        """Read everything once, a block at a time; `CorruptBundle` names the first thing that is damaged."""
        for name in self.blocks:
            self.read_block(name)
        for record in self.manifest["files"]:
            _read_checked(self.folder, record)

    def has_file(self, name: str) -> bool:
        """True if the bundle has the side file ``name`` (one of `SIDE_FILES` or `SOURCE_FILES`, or `FOLDS`)."""
        return any(record["name"] == name for record in self.manifest["files"])

    def read_file(self, name: str) -> bytes:
        """The bytes of a side file, checked."""
        record = next((r for r in self.manifest["files"] if r["name"] == name), None)
        if record is None:
            raise corrupt(f"the bundle `{self.folder}` has no `{name}`")
        return _read_checked(self.folder, record)

    def side_files(self) -> dict[str, bytes]:
        """The side files that it has, by their names."""
        return {name: self.read_file(name) for name in SIDE_FILES if self.has_file(name)}

    def float_source(self) -> Path | None:
        """Place of the float weights that this bundle was made from; None when they are not there any more."""
        where = self.manifest["source"]["float"]
        folder = None if where is None else self.folder / where  # an absolute path stands for itself
        if folder is None:
            return None
        return folder if status(folder / "config.json" if is_folder(folder) else folder) is not None else None

    @property
    def generation_config(self) -> dict[str, Any]:
        """The model author's sampling defaults (Hugging Face `generation_config.json`), empty when there are none."""
        if not self.has_file("generation_config.json"):
            return {}
        return parse_json(self.read_file("generation_config.json"), self.folder / "generation_config.json")

    @property
    def shadows(self) -> dict[str, str]:
        """Which shadow every linear keeps: none, cold or full; one without INT8 needs none."""
        return {name: facts.get("shadow", NONE) for name, facts in self.facts.items()}

    def columns(self, linear: str) -> int:
        """Input channels of ``linear``, or the hidden size for ``embedding``."""
        return self.decoder.hidden_size if linear == "embedding" else self._linears[linear].columns

    @functools.cached_property
    def units(self) -> Mapping[str, BlockRange]:
        """The units of weights inside the blocks of layers, such as ``layers.3.experts.17``, by their names."""
        return {name: unit for block in self.blocks.values() for name, unit in group_units(block).items()}

    @functools.cached_property
    def _linears(self) -> dict[str, Linear]:
        return self.decoder.linears()

    def _checked(self, tensor: TensorRange, part: np.ndarray) -> np.ndarray:
        return self.checked(tensor, part, crc32c(part[: tensor.nbytes]))

    def damaged(self, tensor: TensorRange) -> CorruptBundle:
        """The error for a ``tensor`` whose bytes are not what was written."""
        return corrupt(f"tensor `{tensor.name}` in `{self.folder / WEIGHTS}` is damaged (checksum does not match)")

    def checked(self, tensor: TensorRange, part: np.ndarray, crc: int) -> np.ndarray:
        """The array that ``part`` (uint8, the tensor's bytes and padding, with the checksum ``crc``) holds.

        A view of ``part``.  Raises `CorruptBundle` when the bytes are not those that were written, or hold what cannot be.
        """
        data = part[: tensor.nbytes]
        if crc != tensor.crc32c:
            raise self.damaged(tensor)
        if part[tensor.nbytes :].any():
            raise corrupt(f"the padding after tensor `{tensor.name}` in `{self.folder / WEIGHTS}` is damaged")
        array = data.view(DTYPES[tensor.dtype]).reshape(tensor.shape)
        self.check_values(tensor, array)
        return array

    def check_values(self, tensor: TensorRange, array: np.ndarray) -> None:
        """Raises `CorruptBundle` where all of ``tensor``, or whole panels of it, hold what no import writes.

        A file that was crafted has checksums that are right, and kernels trust what they are given.
        """
        owner, _, name = tensor.name.rpartition(".")
        try:
            check_tensor(self.decoder.table if owner == "embedding" else self._linears.get(owner), name, array)
        except ValueError as error:
            raise corrupt(f"tensor `{tensor.name}` in `{self.folder / WEIGHTS}` {error}") from None


def _part(buffer: np.ndarray, block: BlockRange, tensor: TensorRange) -> np.ndarray:
    """The bytes of ``tensor`` and its padding in the ``buffer`` of its block."""
    return buffer[tensor.offset - block.offset : tensor.end - block.offset]


def open_bundle(folder: Path) -> Bundle:
    """Open the bundle at ``folder`` and check all of it but the tensors' bytes, which are checked as they are read.

    Raises `ModelNotFound` (no bundle there), `CorruptBundle`, `UnsupportedModel` (made by a newer version) or
    `StorageError`.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    config = described_model(manifest)
    described = describe(config)
    schemes = linear_schemes(manifest["linears"], described)
    decoder = turned_as_said(manifest, described.with_schemes(schemes))
    facts = linear_facts(manifest["linears"], decoder)
    ranges = tensor_ranges(manifest["tensors"], decoder)
    check_files(manifest["files"])
    for record in manifest["files"]:
        _check_file(folder, record)
    check_source(manifest["source"], folder)
    file = _open(folder / WEIGHTS)
    size = ranges[-1].end
    if file.size != size:
        file.close()
        last = next((tensor.name for tensor in ranges if tensor.end > file.size), ranges[-1].name)
        how = f"is cut: tensor `{last}` is incomplete" if file.size < size else f"has extra bytes after tensor `{last}`"
        raise corrupt(f"`{folder / WEIGHTS}` {how} ({file.size} bytes instead of {size})")
    bundle = Bundle(
        folder=folder,
        manifest=types.MappingProxyType(manifest),
        config=config,
        tensors=types.MappingProxyType({tensor.name: tensor for tensor in ranges}),
        blocks=types.MappingProxyType(group_blocks(ranges)),
        decoder=decoder,
        facts=types.MappingProxyType(facts),
        size=size,
        _file=file,
    )
    weakref.finalize(bundle, file.close)
    return bundle


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the bundle at ``folder``, its outer shape checked, whatever became of the other files.

    Raises what `open_bundle` raises.
    """
    path = folder / MANIFEST
    if not is_folder(folder):
        raise ModelNotFound(f"no bundle at `{folder}`; `edge-llm list` shows what is imported")
    if status(path) is None:
        raise ModelNotFound(f"`{folder}` has no {MANIFEST}, so it is not an imported model; try `edge-llm import {folder}`")
    return decode_manifest(_read_small(path, MAX_MANIFEST_BYTES), path)


def _check_file(folder: Path, record: dict[str, Any]) -> None:
    path = folder / record["name"]
    found = status(path)
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_size != record["bytes"]:
        raise corrupt(f"`{path}` is missing or does not have {record['bytes']} bytes")
    if record["name"] in SIDE_FILES:  # small, and read by path later on
        _read_checked(folder, record)


def _read_checked(folder: Path, record: dict[str, Any]) -> bytes:
    path = folder / record["name"]
    data = _read_small(path, record["bytes"])
    if crc32c(data) != record["crc32c"]:
        raise corrupt(f"`{path}` was changed after it was written (checksum does not match)")
    return data


def _read_small(path: Path, limit: int) -> bytes:
    with _open(path) as file:
        if file.size > limit:
            raise corrupt(f"`{path}` has {file.size} bytes; at most {limit} are read")
        data = np.empty(file.size, np.uint8)
        _fill(file, data, 0, path.name)
    return data.tobytes()


def _open(path: Path) -> RegularFile:
    try:
        return RegularFile(path, error=CorruptBundle)
    except ModelNotFound:
        raise corrupt(f"`{path}` is missing") from None


def _fill(file: RegularFile, buffer: np.ndarray, offset: int, what: str) -> None:
    """Fill ``buffer`` (uint8 [n]) from ``offset``; a read error is tried once more before it is raised."""
    try:
        try:
            file.read_into(buffer, offset)
        except StorageError:
            file.read_into(buffer, offset)
    except CorruptBundle:
        raise corrupt(f"`{file.path}` was cut while it was open: `{what}` is incomplete") from None
