"""Hugging Face folders whose weights somebody has quantized: GPTQ, AWQ, FP8 and compressed-tensors.

A matrix is read as the floats that its integers stand for.  INT8 weights of compressed-tensors whose inputs are rounded to
INT8, too, are taken over as they are, as those of ModelSlim are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown, status
from edge_llm.formats.model_folder import MAX_CONFIG_BYTES, SourceFolder
from edge_llm.models import describe
from edge_llm.models.weights import layer_shapes
from edge_llm.sources.awq import Awq
from edge_llm.sources.base import IntegerModule
from edge_llm.sources.compressed_tensors import CompressedTensors
from edge_llm.sources.fp8 import Fp8
from edge_llm.sources.gptq import Gptq
from edge_llm.sources.hugging_face import HuggingFaceSource
from edge_llm.sources.linears import linears_of
from edge_llm.sources.mxfp4 import Mxfp4
from edge_llm.sources.packing import Packing
from edge_llm.sources.quantization import load_settings, method_of, plain_settings, quantization_of
from edge_llm.strict_json import read_object

_PACKINGS: Mapping[str, Callable[[Mapping[str, Any], SourceFolder], Packing]] = {
    "gptq": Gptq,
    "awq": Awq,
    "fp8": Fp8,
    "fbgemm_fp8": Fp8,
    "compressed-tensors": CompressedTensors,
    "mxfp4": Mxfp4,
}


class QuantizedFolder(HuggingFaceSource):
    """A folder whose config.json says how its weights are quantized.

    Raises `InvalidModel` for tensors that are missing or do not fit, `UnsupportedModel` for another quantization.
    """

    packing: Packing

    def __init__(self, kind: str, path: str, folder: Path) -> None:
        super().__init__(kind, path, folder)
        try:
            self._matrices = dict(self._packed())
            self._hidden = {part for module in self._matrices.values() for part in self.packing.beside(module)}
            self._hidden |= self._empty_biases()
            self._tensors = {f"{module}.weight": module for module in self._matrices.values()}
            for name in self._needed:
                if name in self._tensors:
                    self.shape(name)
        except BaseException:
            self.close()
            raise

    @property
    def is_quantized(self) -> bool:
        """Whether any matrix is."""
        return bool(self._matrices)

    @property
    def quantization(self) -> str:
        """What the checkpoint's quantization is called, such as GPTQ 4-bit, groups of 128."""
        return self.packing.quantization

    @property
    def nbytes(self) -> int:
        """Of all weights in the folder."""
        return self._weights.nbytes

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / describe(self.config).parameters

    def _read_config(self, raw: dict[str, Any]) -> ModelConfig:
        config, settings = load_settings(raw), quantization_of(raw) or {}
        self.packing = _PACKINGS[method_of(settings)](settings, self._weights)
        return config

    def names(self) -> list[str]:
        """Those of the float model that this stands for."""
        return [
            f"{self._matrices[name]}.weight" if name in self._matrices else name
            for name in self._weights.names()
            if name not in self._hidden
        ]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.packing.shape(self._tensors[name]) if name in self._tensors else self._weights.shape(name)

    def read(self, name: str) -> np.ndarray:
        if name not in self._tensors:
            return self._weights.read(name)
        try:
            return self.packing.read(self._tensors[name])
        except MemoryError:
            raise InvalidModel(f"tensor `{shown(name)}` {list(self.shape(name))} does not fit into memory") from None

    def side_files(self) -> dict[str, bytes]:
        """Those of any folder; config.json says nothing of the quantization, which a bundle has not."""
        settings = json.dumps(plain_settings(self._weights.config), indent=2, ensure_ascii=False)
        return super().side_files() | {"config.json": settings.encode()}

    def _packed(self) -> Iterator[tuple[str, str]]:
        """The tensors that hold the integers of a module, and its name."""
        for name in self._weights.names():
            if (module := self.packing.matrix(name)) is None:
                continue
            if name != (float_name := f"{module}.weight") and float_name in self.packing.present:
                raise InvalidModel(f"the model has both `{shown(name)}` and `{shown(float_name)}`; download or make it again")
            yield name, module

    @cached_property
    def _needed(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors of the float model's matrices, and of all in its layers."""
        decoder = describe(self.config)
        table = (decoder.vocab_size, decoder.hidden_size)
        needed = {name: shape for layer in decoder.layers for name, shape in layer_shapes(layer).items()}
        return needed | dict.fromkeys((decoder.embedding.source, f"{decoder.output.sources[0].source}.weight"), table)

    def _empty_biases(self) -> set[str]:
        """Biases that a tool wrote for quantized modules that have none; they must be zeros."""
        found = {f"{module}.bias" for module in self._matrices.values() if f"{module}.weight" in self._needed}
        found = {name for name in found if name in self.packing.present and name not in self._needed}
        for name in sorted(found):
            if self._weights.read(name).any():
                raise UnsupportedModel(
                    f"`{shown(name)}` is not zero, and the architecture has no bias there; import the original model"
                )
        return found


class CompressedFolder(QuantizedFolder):
    """A folder of compressed-tensors.  Where all that is quantized of it is W8A8, that is taken over as it is."""

    packing: CompressedTensors

    def __init__(self, kind: str, path: str, folder: Path) -> None:
        super().__init__(kind, path, folder)
        try:
            self._inputs = self._taken_inputs()
        except BaseException:
            self.close()
            raise

    def static(self, module: str) -> IntegerModule | None:
        """The module of that name as the checkpoint has it; None for one that is read as floats."""
        if module not in self._inputs:
            return None
        weight, scale = self.packing.integers(module)[0], self.packing.row_scales(module)
        assert scale is not None
        bias = f"{module}.bias"
        has_bias = bias in self._needed
        return IntegerModule(
            weight, scale, self._inputs[module], self._weights.read(bias) if has_bias else np.zeros(len(weight), np.float32)
        )

    def static_scale(self, module: str) -> tuple[float | None, int] | None:
        """Its input scale, None where every row has its own, and offset."""
        return (self._inputs[module], 0) if module in self._inputs else None

    def _taken_inputs(self) -> dict[str, float | None]:
        """The input scales of the modules that are taken over; none where some are quantized in another way."""
        integers = [group for group in self.packing.config_groups if not group.is_float]
        if not integers or not all(group.is_w8a8 for group in integers):
            return {}
        found: dict[str, float | None] = {}
        for prefix, linear in linears_of(describe(self.config)):
            modules = [prefix + source.source for source in linear.sources]
            packed = [module for module in modules if f"{module}.weight" in self._tensors]
            if not packed:
                continue
            if len(packed) < len(modules) or any(self.packing.row_scales(module) is None for module in modules):
                return {}
            scales = {self.packing.input_scale(module) for module in modules}
            found |= dict.fromkeys(modules, scales.pop() if len(scales) == 1 else None)
        return found


def open_folder(kind: str, path: str, folder: Path) -> HuggingFaceSource:
    """The model in ``folder``, in float or quantized.  Raises as `HuggingFaceSource` and `QuantizedFolder`."""
    settings = quantization_of(_config(folder))
    if settings is None:
        return HuggingFaceSource(kind, path, folder)
    is_compressed = method_of(settings) == "compressed-tensors"
    opened = (CompressedFolder if is_compressed else QuantizedFolder)(kind, path, folder)
    if opened.is_quantized:
        return opened
    opened.close()
    return _FloatFolder(kind, path, folder)


class _FloatFolder(HuggingFaceSource):
    """A folder whose config.json speaks of a quantization and whose weights are all floats."""

    def _read_config(self, raw: dict[str, Any]) -> ModelConfig:
        return load_settings(raw)


def _config(folder: Path) -> dict[str, Any]:
    """Its config.json; empty where there is none, which the source that opens it tells."""
    path = folder / "config.json"
    return read_object(path, max_bytes=MAX_CONFIG_BYTES) if status(path) is not None else {}
