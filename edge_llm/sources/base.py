"""What import and the float path ask of a published model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.formats.gguf_blocks import BlockType
from edge_llm.progress import StageProgress, ignore
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import Tokenizer


@runtime_checkable
class PackedSource(Protocol):
    """A source whose weights somebody else has quantized, and whose floats are what that left."""

    quantization: str
    """What that is called, such as Q4_K_M."""
    nbytes: int
    """Of its weights."""
    bits_per_weight: float


@dataclass(frozen=True)
class StaticModule:
    """A module that somebody quantized: y = deq_scale * (weight @ q + quant_bias), q = rint(x / input_scale) + input_offset."""

    weight: np.ndarray
    """int8 [N, K]."""
    deq_scale: np.ndarray
    """float32 [N]."""
    input_scale: float
    input_offset: int
    quant_bias: np.ndarray
    """int32 [N]."""

    @cached_property
    def weight_scale(self) -> np.ndarray:
        """The float32 [N] whose float32 products with ``input_scale`` are ``deq_scale``, or next to it where there is none."""
        step = np.float32(self.input_scale)
        near = np.asarray(self.deq_scale / step, np.float32)
        above, below = np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(0))
        found = np.stack([near, above, below])
        error = np.abs((step * found).astype(np.float64) - self.deq_scale)
        return np.take_along_axis(found, error.argmin(axis=0)[None], axis=0)[0]

    @property
    def float_bias(self) -> np.ndarray:
        """float32 [N]: what is left of ``quant_bias`` without the offset."""
        sums = self.weight.sum(axis=1, dtype=np.int64)
        return np.asarray(self.deq_scale * (self.quant_bias + self.input_offset * sums), np.float32)

    @property
    def bias(self) -> np.ndarray:
        """float32 [N]: what is added to the product of the weight and rows with the offset."""
        return np.asarray(self.deq_scale * self.quant_bias.astype(np.float64), np.float32)


@dataclass(frozen=True)
class IntegerModule:
    """A module that somebody quantized, beside a bias in float: y = input scale * weight_scale * (weight @ q) + float_bias."""

    weight: np.ndarray
    """int8 [N, K]."""
    weight_scale: np.ndarray
    """float32 [N]."""
    input_scale: float | None
    """None: every row has its own."""
    float_bias: np.ndarray
    """float32 [N]."""
    input_offset: int = 0

    @property
    def bias(self) -> np.ndarray:
        """float32 [N]: there is no offset."""
        return self.float_bias


@runtime_checkable
class QuantizedSource(Protocol):
    """A source of which some modules are INT8 already."""

    def static(self, module: str) -> StaticModule | IntegerModule | None:
        """The module of that name as it is; None for one in float."""
        ...

    def static_scale(self, module: str) -> tuple[float | None, int] | None:
        """Its input scale, None where every row has its own, and offset."""
        ...


class AdapterBase(Protocol):
    """What an adapter is checked against."""

    @property
    def path(self) -> str:
        """What messages call it."""
        ...

    @property
    def config(self) -> ModelConfig: ...

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tokenizer(self) -> Tokenizer: ...

    def side_files(self) -> Mapping[str, bytes]: ...


class Source(Protocol):
    """An open model: settings, float tensors, tokenizer, template.  Close it, or use it as a context."""

    kind: str
    """How the user named it, such as folder or hub."""
    path: str
    """What the user named: an absolute path, or a hub id with its revision."""
    place: str
    """Where `open_source` finds it again: an absolute path."""
    config: ModelConfig

    def names(self) -> list[str]:
        """Names of all tensors, in file order."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; an unknown name raises `InvalidModel`."""
        ...

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32, finite."""
        ...

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.  Raises `InvalidTokenizer` or `ModelNotFound`."""
        ...

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        """The model's chat template, or the default one."""
        ...

    def generation_config(self) -> dict[str, Any]:
        """The author's sampling defaults, as in Hugging Face's generation_config.json; empty when there are none."""
        ...

    def side_files(self) -> Mapping[str, bytes]:
        """What a bundle keeps beside the weights, by its names: tokenizer.json, config.json, chat_template.jinja, ..."""
        ...

    def digest(self, progress: StageProgress = ignore) -> str:
        """A digest of all that makes the model what it is."""
        ...

    def check_unchanged(self) -> None:
        """Raises `InvalidModel` if a file changed since the source was opened."""
        ...

    def close(self) -> None:
        """Close every file; more than once is fine."""
        ...

    def __enter__(self) -> Source: ...

    def __exit__(self, *_: object) -> None: ...


@runtime_checkable
class BlockSource(PackedSource, Source, Protocol):
    """A source whose matrices are in blocks of ggml."""

    def block_type(self, name: str) -> BlockType:
        """ggml's type of a tensor."""
        ...

    def raw_rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """The bytes of the rows ``numbers`` (int64 [M], not empty) of a matrix in its type: uint8 [M, bytes of a row]."""
        ...

    @property
    def stamps(self) -> str:
        """What its files were when they were opened, as `stamps_of` says it."""
        ...
