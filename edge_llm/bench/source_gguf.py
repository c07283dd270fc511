"""GGUF files of a model's own weights, so that llama.cpp is measured beside us at quality as well as at speed (needs `gguf`).

The source's tensors become a float32 file, which is there for a while only; llama.cpp's own quantizer makes the format of it.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.bench.llama_shape import llama_shape
from edge_llm.bench.peer_model import PeerModel
from edge_llm.bench.synthetic_gguf import (
    ARCHITECTURES,
    ROPE_FACTORS,
    Matrix,
    describe_shape,
    file_model,
    matrices,
    quantize,
)
from edge_llm.config import LlamaConfig, ModelConfig
from edge_llm.errors import StorageError, UsageError
from edge_llm.formats.gguf import is_gguf, open_gguf, parts_of
from edge_llm.formats.gguf_names import LAYER, WHOLE
from edge_llm.models.llama_like import llama_rope
from edge_llm.models.rope import frequencies
from edge_llm.models.weights import WeightSource
from edge_llm.operations.attention import Rope
from edge_llm.paths import synthetic_folder
from edge_llm.progress import StageProgress, ignore

if TYPE_CHECKING:
    from edge_llm.sources.lora_places import Wish

FILE = "file"
"""The GGUF file itself that the model was imported from."""
_VERSION = 1
"""Of how files are made: one of another version is made again."""


@dataclass(frozen=True)
class SourceWeights:
    """The float weights of a model: where they are, and what they are."""

    place: str
    digest: str
    config: ModelConfig
    lora: tuple[Wish, ...] = ()
    """Adapters that are merged into them."""


def source_gguf_model(source: SourceWeights, quant: str) -> PeerModel:
    """The model of the weights of ``source``, for llama.cpp.  Raises `UsageError` for `FILE` where they are in no GGUF file."""
    if quant == FILE:
        return _own_file(source)
    (path,) = source_ggufs(source, [quant])
    return file_model(path, quant)


def _own_file(source: SourceWeights) -> PeerModel:
    path = Path(source.place)
    if not is_gguf(path) or source.lora:
        raise UsageError(
            f"llama.cpp:{FILE} runs the GGUF file that a model was imported from, and this one was not; name a type, such as "
            "llama.cpp:q8_0",
            param="peer",
        )
    sizes = Counter[str]()
    with open_gguf(path) as model:
        for tensor in model.tensors:
            sizes[tensor.kind.name] += tensor.nbytes
    found = file_model(path, "+".join(name for name, _ in sizes.most_common(2)))
    return replace(found, size=sum(part.stat().st_size for part in parts_of(path)))


def source_ggufs(source: SourceWeights, quants: Sequence[str], progress: StageProgress = ignore) -> list[Path]:
    """GGUF files of the weights of ``source`` in ``quants``, of `synthetic_gguf.VARIANTS` without `FILE`; each is made once and
    kept.

    Raises `UsageError` for a model that llama.cpp has no place for, `DeviceError` where it cannot make a file.
    """
    config = llama_shape(source.config)
    _check_known(config)
    digest = hashlib.sha256(source.digest.encode()).hexdigest()[:16]
    paths = {quant: synthetic_folder() / f"{config.family}-{digest}-{quant}-v{_VERSION}.gguf" for quant in quants}
    missing = {quant: path for quant, path in paths.items() if not path.is_file()}
    if missing:
        folder = synthetic_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _make(missing, folder / f".{digest}.{os.getpid()}", source, progress)
        except OSError as error:
            raise StorageError(f"cannot write into `{folder}`: {error.strerror}") from error
    return list(paths.values())


def _make(paths: Mapping[str, Path], temporary: Path, source: SourceWeights, progress: StageProgress) -> None:
    """Make the file of every quant of ``paths``; two temporary ones begin with the name of ``temporary``."""
    from edge_llm.sources import open_source  # with tokenizers: megabytes that a process which is measured can do without

    whole = temporary.with_name(f"{temporary.name}.float")
    try:
        with open_source(source.place, lora=source.lora) as opened:
            write_float_gguf(whole, opened, llama_shape(source.config), progress)
        for quant, path in paths.items():
            progress(f"llama.cpp {quant}", 0, 1)
            quantize(whole, temporary, quant)
            temporary.replace(path)
            progress(f"llama.cpp {quant}", 1, 1)
    finally:
        temporary.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)


def write_float_gguf(path: Path, source: WeightSource, config: LlamaConfig, progress: StageProgress = ignore) -> None:
    """Write the weights of ``source`` in float32, one tensor in memory at a time."""
    import gguf

    tensors = list(matrices(config))
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.family])
    try:
        describe_shape(writer, config)
        for tensor in tensors:
            shape = (tensor.rows, tensor.columns) if tensor.columns else (tensor.rows,)
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, values in enumerate(_values(tensors, source, config)):
            writer.write_tensor_data(values)
            progress("float GGUF", done + 1, len(tensors))
    finally:
        writer.close()


def source_name(name: str) -> str:
    """What Hugging Face calls the tensor that is ``name`` in a GGUF file."""
    first, *rest = name.split(".")
    if first != "blk":
        return ".".join([WHOLE[first], *rest])
    layer, part, kind = rest
    return f"model.layers.{layer}.{LAYER[part]}.{kind}"


def _values(tensors: list[Matrix], source: WeightSource, config: LlamaConfig) -> Iterator[np.ndarray]:
    order = _row_order(config)
    for tensor in tensors:
        if tensor.name == ROPE_FACTORS:
            yield _rope_factors(config)
            continue
        values = source.read(source_name(tensor.name))
        yield order(tensor.name, values)


def _row_order(config: LlamaConfig) -> Callable[[str, np.ndarray], np.ndarray]:
    """How the rows of queries and keys lie: llama.cpp turns neighbours of a head in Llama models, and halves in others."""

    def order(name: str, values: np.ndarray) -> np.ndarray:
        if ARCHITECTURES[config.family] != "llama" or name.split(".")[-2] not in ("attn_q", "attn_k"):
            return values
        halves = values.reshape(-1, 2, config.head_dim // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)

    return order


def _rope_factors(config: LlamaConfig) -> np.ndarray:
    """What llama.cpp divides the frequencies of the rotary embedding by, float32 [head_dim / 2]."""
    plain, scaled = Rope(config.head_dim, config.rope_theta), llama_rope(config)
    return (frequencies(plain) / frequencies(scaled)).astype(np.float32)


def _check_known(config: LlamaConfig) -> None:
    """`UsageError` for a model that llama.cpp would refuse, or read wrongly."""
    architecture = ARCHITECTURES.get(config.family)
    why = None
    if architecture is None:
        why = f"its family `{config.family}` has no name there that is known here"
    elif architecture != "llama" and (config.rope_scaling or config.output_bias or config.mlp_bias):
        why = f"its `{architecture}` has no scaled rotary embedding and no biases but those of qkv"
    elif architecture == "qwen3" and config.qkv_bias:
        why = "its `qwen3` has no biases"
    if why:
        raise UsageError(f"llama.cpp cannot run this model: {why}; measure without --peer llama.cpp", param="peer")
