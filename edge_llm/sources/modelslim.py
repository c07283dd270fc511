"""ModelSlim checkpoints: INT8 weights and static scales that somebody else found, taken over as they are.

A module that the description calls W8A8 computes

    y = deq_scale * (weight @ clip(rint(x / input_scale) + input_offset, -128, 127) + quant_bias)

with ``deq_scale`` float32 [N], or its bits in int64 (float16 models): input_scale * weight scale; ``quant_bias`` int32 [N] has
the bias and takes the offset out again.  FLOAT modules are as in any folder.  What is read as float is the dequantized model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import LlamaConfig, ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.model_folder import SourceFolder, open_model_folder
from edge_llm.models import describe, load_config
from edge_llm.models.layer import Decoder
from edge_llm.sources.base import StaticModule
from edge_llm.sources.hugging_face import HuggingFaceSource
from edge_llm.sources.linears import linears_of
from edge_llm.sources.modelslim_files import description_of, weights_of
from edge_llm.sources.quantization import plain_settings
from edge_llm.strict_json import read_object

FLOAT, W8A8 = "FLOAT", "W8A8"
_MAX_DESCRIPTION_BYTES = 16 << 20
_MAX_DESCRIPTION_VALUES = 1 << 20
_BESIDE = ("bias", "deq_scale", "quant_bias", "input_scale", "input_offset", "weight_scale", "weight_offset")
_OF_KEYS = "kv_"
"""How the name of a tensor beside a module begins which says how another engine may keep keys and values."""
_NEEDED = ("weight", "deq_scale", "quant_bias", "input_scale", "input_offset")
_LARGEST_SCALE = 1e30
_READERS = {"input_layernorm": "self_attn.q_proj", "post_attention_layernorm": "mlp.gate_proj"}
"""Of a layer's norms: a module that multiplies what each gives."""
_FINAL_NORM, _OUTPUT = "model.norm", "lm_head"


class ModelSlimSource(HuggingFaceSource):
    """A folder of a ModelSlim checkpoint whose linears are W8A8 or FLOAT.

    Raises `InvalidModel` for tensors that are missing or do not fit, `UnsupportedModel` for another quantization.
    """

    def __init__(self, kind: str, path: str, folder: Path) -> None:
        self._description_file = description_of(names_in(folder)) or ""
        self._kinds = _description(folder / self._description_file)
        super().__init__(kind, path, folder)
        try:
            self._modules = dict(self._check_modules(describe(self.config)))
            self.config = self._with_biases(self.config)
            self._biases = dict(_biases(describe(self.config)))
            self._check_norms()
            self._check_beside()
        except BaseException:
            self.close()
            raise

    def _open_weights(self, folder: Path) -> SourceFolder:
        return open_model_folder(folder, weights_of(names_in(folder)))

    def _read_config(self, raw: dict[str, Any]) -> ModelConfig:
        return load_config(plain_settings(raw))

    def _beside(self) -> tuple[str, ...]:
        return (self._description_file,)

    def names(self) -> list[str]:
        """Those of the float model that this stands for."""
        static = [module for module, kind in self._modules.items() if kind == W8A8]
        hidden = {f"{module}.{part}" for module in static for part in _BESIDE} | set(self._biases)
        return [name for name in self._weights.names() if name not in hidden and not _is_norms_own(name)] + list(self._biases)

    def shape(self, name: str) -> tuple[int, ...]:
        return (self._biases[name],) if name in self._biases else self._weights.shape(self._gain(name))

    def read(self, name: str) -> np.ndarray:
        module, _, part = name.rpartition(".")
        if self._modules.get(module) != W8A8:
            if part == "bias" and name in self._biases and name not in self._weights.names():
                return np.zeros(self._biases[name], np.float32)
            return self._weights.read(self._gain(name))
        found = self._static(module)
        if part == "bias":
            return found.float_bias
        return np.asarray(found.weight_scale[:, None] * found.weight, np.float32)

    def _gain(self, name: str) -> str:
        """The tensor that has what ``name`` stands for: the gain of a norm may lie beside it, scaled for W8A8 readers.

        A way against outliers that divides channels leaves the gain of the float model where it was.
        """
        norm = name.removesuffix(".weight")
        layer, _, own = norm.rpartition(".")
        reader = _OUTPUT if norm == _FINAL_NORM else f"{layer}.{_READERS.get(own, '')}"
        scaled = f"{norm}.module.weight"
        return scaled if self._modules.get(reader) == W8A8 and scaled in self._weights.names() else name

    def static(self, module: str) -> StaticModule | None:
        """The module of that name as the checkpoint has it; None for one that stays in float."""
        return self._static(module) if self._modules.get(module) == W8A8 else None

    def static_scale(self, module: str) -> tuple[float, int] | None:
        """Its input scale and offset."""
        return (self._input_scale(module), self._input_offset(module)) if self._modules.get(module) == W8A8 else None

    def _static(self, module: str) -> StaticModule:
        rows = self._weights.shape(f"{module}.weight")[0]
        return StaticModule(
            weight=self._weights.read_integers(f"{module}.weight"),
            deq_scale=self._deq_scale(module, rows),
            input_scale=self._input_scale(module),
            input_offset=self._input_offset(module),
            quant_bias=self._weights.read_integers(f"{module}.quant_bias"),
        )

    def _deq_scale(self, module: str, rows: int) -> np.ndarray:
        name = f"{module}.deq_scale"
        if self._weights.dtype(name) == "I64":
            bits = self._weights.read_integers(name)
            if bits.min(initial=0) < 0 or bits.max(initial=0) >= 1 << 31:
                at = int(np.argmax((bits < 0) | (bits >= 1 << 31)))
                raise InvalidModel(f"`{shown(name)}` holds `{bits[at]}` at element {at}, which is not the bits of a scale")
            scale = bits.astype(np.uint32).view(np.float32)
        else:
            scale = self._weights.read(name)
        scale = np.ascontiguousarray(np.broadcast_to(scale.reshape(-1), rows))
        bad = ~((scale >= 0) & (scale <= _LARGEST_SCALE))
        if bad.any():
            at = int(np.argmax(bad))
            raise InvalidModel(f"`{shown(name)}` holds `{scale[at]}` at element {at}, which is no scale")
        return scale

    def _input_scale(self, module: str) -> float:
        scale = float(self._weights.read(f"{module}.input_scale").reshape(()))
        if not 1e-30 <= scale <= _LARGEST_SCALE:
            raise InvalidModel(f"`{shown(module)}.input_scale` is `{scale}`, which is no scale")
        return scale

    def _input_offset(self, module: str) -> int:
        name = f"{module}.input_offset"
        integers = self._weights.dtype(name).startswith("I")
        offset = float((self._weights.read_integers(name) if integers else self._weights.read(name)).reshape(()))
        if not offset.is_integer() or not -128 <= offset <= 127:
            raise InvalidModel(f"`{shown(name)}` is `{offset:g}`; an offset is a whole number from -128 to 127")
        return int(offset)

    def _check_modules(self, decoder: Decoder) -> Iterator[tuple[str, str]]:
        """Every module that the model multiplies with and how it is kept, its tensors checked."""
        present = set(self._weights.names())
        for prefix, linear in linears_of(decoder):
            for source in linear.sources:
                module = prefix + source.source
                if decoder.tied and linear is decoder.output and f"{module}.weight" not in present:
                    continue
                kind = self._kind(module)
                if kind == W8A8:
                    self._check_static(module, (source.count, linear.columns), present)
                yield module, kind
        embedding = decoder.embedding.source.removesuffix(".weight")
        if (kind := self._kind(embedding)) != FLOAT:
            raise UnsupportedModel(f"`{shown(embedding)}` is {kind}; an embedding is taken over where it is {FLOAT}")

    def _kind(self, module: str) -> str:
        kind = self._kinds.get(f"{module}.weight", FLOAT)
        if kind not in (FLOAT, W8A8):
            raise UnsupportedModel(
                f"`{self._description_file}`: `{shown(module)}` is `{shown(kind)}`; {W8A8} and {FLOAT} are taken over: "
                "quantize the model that way, or import the float model"
            )
        return kind

    def _check_static(self, module: str, shape: tuple[int, int], present: set[str]) -> None:
        for part in _NEEDED:
            if f"{module}.{part}" not in present:
                raise InvalidModel(f"the model lacks the tensor `{shown(module)}.{part}`, which {W8A8} needs; make it again")
        rows = shape[0]
        floats, one = ("F32", "F16", "BF16"), ((), (1,))
        self._check(f"{module}.weight", ("I8",), (shape,))
        self._check(f"{module}.deq_scale", ("F32", "I64"), ((rows,), (rows, 1), (1,)))
        self._check(f"{module}.quant_bias", ("I32",), ((rows,),))
        self._check(f"{module}.input_scale", floats, one)
        self._check(f"{module}.input_offset", (*floats, "I8", "I32"), one)
        offset = f"{module}.weight_offset"
        if offset not in present:
            return
        is_float = self._weights.dtype(offset) in floats
        if (self._weights.read(offset) if is_float else self._weights.read_integers(offset)).any():
            raise UnsupportedModel(f"`{shown(offset)}` is not zero; weights are taken over where they are symmetric")

    def _check(self, name: str, dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> None:
        dtype, shape = self._weights.dtype(name), tuple(self._weights.shape(name))
        if dtype not in dtypes:
            raise InvalidModel(f"tensor `{shown(name)}` is {dtype}; {W8A8} has {' or '.join(dtypes)}")
        if shape not in shapes:
            wanted = " or ".join(str(list(one)) for one in shapes)
            raise InvalidModel(f"tensor `{shown(name)}` has the shape `{list(shape)}`, but config.json makes it {wanted}")

    def _with_biases(self, config: ModelConfig) -> ModelConfig:
        """``config`` with biases where the checkpoint's arithmetic has some, whether or not the float model had."""
        if not isinstance(config, LlamaConfig):
            raise UnsupportedModel(f"a {W8A8} checkpoint of the family `{config.family}` does not run here")
        found = {
            linear.name
            for prefix, linear in linears_of(describe(config))
            for source in linear.sources
            if self._has_bias(prefix + source.source)
        }
        if "output" in found:
            raise UnsupportedModel("`lm_head` has an offset or a bias, which an output matrix has not here; leave it FLOAT")
        return replace(
            config,
            qkv_bias=config.qkv_bias or "qkv" in found,
            output_bias=config.output_bias or "o" in found,
            mlp_bias=config.mlp_bias or bool({"gate_up", "down"} & found),
        )

    def _has_bias(self, module: str) -> bool:
        if self._modules.get(module) != W8A8:
            return False
        if self._weights.read_integers(f"{module}.quant_bias").any():
            return True
        return self._input_offset(module) != 0 and bool(self._static(module).float_bias.any())  # which reads all weights

    def _check_norms(self) -> None:
        """Refuse norms with a bias, which some ways against outliers leave; they have no place in the architecture."""
        for name in self._weights.names():
            if _is_norms_own(name) and name.endswith(".bias") and self._weights.read(name).any():
                raise UnsupportedModel(
                    f"`{shown(name)}` is not zero: the outliers were shifted, and norms have no bias here; "
                    "quantize without a shift (anti_method m4 or m6)"
                )

    def _check_beside(self) -> None:
        """Refuse what lies beside the weights of a module and has no place in its product, such as factors of its input."""
        known = {f"{module}.{part}" for module in self._modules for part in ("weight", *_BESIDE)}
        for name in self._weights.names():
            of_keys = name.rpartition(".")[2].startswith(_OF_KEYS)
            if name in known or of_keys or not any(inside in self._modules for inside in _outer(name)):
                continue
            raise UnsupportedModel(
                f"`{shown(name)}` has no place in a {W8A8} or {FLOAT} product; quantize without what puts it there, such as a "
                "way against outliers that is not folded into norms, or import the float model"
            )


def names_in(folder: Path) -> list[str]:
    """The names of the files in ``folder``; none where it cannot be listed."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def describes(folder: Path) -> bool:
    """Whether ``folder`` is a ModelSlim checkpoint."""
    return description_of(names_in(folder)) is not None


def _description(path: Path) -> dict[str, Any]:
    return read_object(path, max_bytes=_MAX_DESCRIPTION_BYTES, max_values=_MAX_DESCRIPTION_VALUES)


def _biases(decoder: Decoder) -> Iterator[tuple[str, int]]:
    for prefix, linear in linears_of(decoder):
        if linear.bias:
            yield from ((f"{prefix}{source.source}.bias", source.count) for source in linear.sources)


def _outer(name: str) -> Iterator[str]:
    """The modules that a tensor may lie in, from the outside."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


def _is_norms_own(name: str) -> bool:
    """Whether a tensor is what a way against outliers puts beside the gain of a norm."""
    module, _, part = name.rpartition(".")
    wrapped = module.endswith("norm.module")
    return wrapped or (part == "bias" and module.endswith("norm"))
