"""Adapters in GGUF files, as llama.cpp's converter writes them.

    <tensor of the model>.lora_a [rank, columns], .lora_b [rows, rank]       scale: adapter.lora.alpha / rank, 1 where that is 0
    token_embd.weight.lora_a [tokens, rank], .lora_b [columns, rank]

Tensors are called, and rows of queries and keys turned, as in a GGUF file of the model itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufModel, open_gguf
from edge_llm.formats.gguf_names import NORMS_PLUS_ONE, TURNED_IN_PAIRS, WHOLE, layer_names
from edge_llm.models import describe
from edge_llm.sources.base import AdapterBase
from edge_llm.sources.gguf_families import ARCHITECTURE_OF, ARCHITECTURES, architectures
from edge_llm.sources.lora import EMBEDDING, OUTPUT, Adapter, Change, LowRank, refuse_shape, refuse_unknown

_MAX_ALPHA = 1e6


def open_gguf_adapter(named: str, path: Path, model: AdapterBase) -> Adapter:
    """The adapter in the file ``path``, checked against ``model``.

    Raises `ModelNotFound`, `InvalidModel` for what is damaged or fits another model, `UnsupportedModel` or `StorageError`.
    """
    file = open_gguf(path)
    try:
        changes = _Fitting(file, model, f"the adapter `{shown(named)}`").changes()
        for info in file.tensors:  # NaN is found before the long work begins
            file.read(info.name)
    except BaseException:
        file.close()
        raise
    return Adapter(named, str(path), changes, file.files, file.close)


class _Fitting:
    """Finds for every tensor of an adapter the one of the model that it changes."""

    def __init__(self, file: GgufModel, model: AdapterBase, where: str) -> None:
        self._file = file
        self._model = model
        self._where = where
        self._check_kind()

    def _check_kind(self) -> None:
        kind = self._file.text("general.type", "model")
        if kind != "adapter" or (way := self._file.text("adapter.type", "lora")) != "lora":
            said = f"of the type `{shown(kind if kind != 'adapter' else way)}`"
            raise UnsupportedModel(f"{self._where} is {said}, no LoRA; give the folder that PEFT saved, or a GGUF adapter")
        if "adapter.alora.invocation_tokens" in self._file.pairs:
            raise UnsupportedModel(f"{self._where} begins to work at certain tokens only (aLoRA), which cannot be merged")
        family = self._model.config.family
        found, wanted = self._file.text("general.architecture"), ARCHITECTURE_OF.get(family, family)
        if found not in ARCHITECTURES:
            raise UnsupportedModel(
                f"{self._where} is for the architecture `{shown(found)}`; of GGUF adapters only those for "
                f"{', '.join(architectures())} are merged here: give the folder that PEFT saved"
            )
        if found != wanted:
            raise InvalidModel(
                f"{self._where} is for the architecture `{shown(found)}`, `{shown(self._model.path)}` is `{wanted}`; give the "
                "model that it was made for"
            )
        self._architecture = found
        self._alpha = self._file.number("adapter.lora.alpha", 0.0, _MAX_ALPHA)

    def changes(self) -> dict[str, Change]:
        tied = [OUTPUT] if self._model.config.tied_embeddings else []
        present = {*self._model.names(), *tied}
        changes: dict[str, Change] = {}
        for info in self._file.tensors:
            own = info.name.removesuffix(".lora_a").removesuffix(".lora_b")
            name = self._source_name(own)
            if name not in present:
                raise refuse_unknown(own, self._where, "", self._model)
            if own == info.name:
                self._check_shape(own, self._shape(name))
                changes[name] = Change(partial(self._rows, own, name))
            else:
                changes[name] = Change(None, self._low_rank(own, name))
        if not changes:
            raise InvalidModel(f"{self._where} has no tensors; download or convert it again")
        return changes

    def _low_rank(self, own: str, name: str) -> LowRank:
        a, b = f"{own}.lora_a", f"{own}.lora_b"
        for one in (a, b):
            if not self._file.has_tensor(one):
                raise InvalidModel(f"{self._where} lacks `{shown(one)}`; it is not whole: download or convert it again")
        shapes, wanted = [self._file.tensor(one).shape for one in (a, b)], self._shape(name)
        rank = shapes[1][-1] if len(shapes[1]) == 2 else 0
        is_embedding = name == EMBEDDING
        if len(wanted) != 2:
            raise refuse_unknown(own, self._where, "", self._model)
        self._check_shape(a, (wanted[0], rank) if is_embedding else (rank, wanted[1]))
        self._check_shape(b, (wanted[1], rank) if is_embedding else (wanted[0], rank))
        scale = self._alpha / rank if self._alpha else 1.0
        if is_embedding:
            return LowRank(partial(self._file.read, a), lambda: self._file.read(b).T, scale)
        return LowRank(partial(self._rows, b, name), partial(self._file.read, a), scale)

    def _rows(self, tensor: str, name: str) -> np.ndarray:
        """Values with the rows of the model's tensor ``name``, as Hugging Face's files have them."""
        values = self._file.read(tensor)
        if self._architecture in NORMS_PLUS_ONE and name.endswith("norm.weight"):
            return values - np.float32(1)
        heads = self._heads(name) if self._architecture in TURNED_IN_PAIRS else 0
        if not heads:
            return values
        pairs = values.reshape(heads, len(values) // heads // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)

    def _source_name(self, name: str) -> str:
        """The name in Hugging Face's files; one that nobody knows stays."""
        stem, _, suffix = name.rpartition(".")
        words, parts = stem.split("."), layer_names(self._architecture)
        if len(words) == 3 and words[0] == "blk" and words[1].isdecimal() and words[2] in parts:
            return f"model.layers.{words[1]}.{parts[words[2]]}.{suffix}"
        return f"{WHOLE[stem]}.{suffix}" if stem in WHOLE else name

    def _check_shape(self, name: str, wanted: tuple[int, ...]) -> None:
        if (found := self._file.tensor(name).shape) != wanted or 0 in found:
            raise refuse_shape(name, found, wanted, self._where, "", self._model)

    def _shape(self, name: str) -> tuple[int, ...]:
        tied = self._model.config.tied_embeddings and name == OUTPUT
        return tuple(self._model.shape(EMBEDDING if tied else name))

    def _heads(self, name: str) -> int:
        """Heads of the queries or keys that ``name`` gives; 0 for any other tensor."""
        attention = describe(self._model.config).attentions[0]
        return {"q_proj": attention.heads, "k_proj": attention.kv_heads}.get(name.split(".")[-2], 0)
