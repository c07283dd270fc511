"""The files of a ModelSlim checkpoint: how every tensor is quantized, and weights under names of their own.

    quant_model_description.json, or quant_model_description_w8a8.json of older ones
    quant_model_weights.safetensors, quant_model_weight_w8a8.safetensors, or shards with NAME.safetensors.index.json
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from edge_llm.errors import InvalidModel
from edge_llm.files import shown
from edge_llm.formats.model_folder import MODEL

_DESCRIPTION = re.compile(r"quant_model_description(_[a-z0-9_]+)?\.json")
_WEIGHTS = re.compile(r"(quant_model_weights?(?:_[a-z0-9_]+)?)(-\d{5}-of-\d{5,6})?\.safetensors(\.index\.json)?")


def description_of(names: Iterable[str]) -> str | None:
    """Which of a folder's files says how its weights are quantized; None where none does.

    Raises `InvalidModel` where several do.
    """
    found = sorted(name for name in names if _DESCRIPTION.fullmatch(name))
    if len(found) > 1:
        raise InvalidModel(f"`{shown(found[0])}` and `{shown(found[1])}` are in one folder; keep the one of the weights there")
    return found[0] if found else None


def weights_of(names: Iterable[str]) -> str:
    """What the weights among a folder's files are called, for `open_model_folder`.  Raises `InvalidModel` for several."""
    matches = [match for name in names if (match := _WEIGHTS.fullmatch(name))]
    found = sorted({match[1] for match in matches})
    if len(found) > 1:
        raise InvalidModel(f"weights called `{found[0]}` and `{found[1]}` are in one folder; keep the described ones there")
    return found[0] if found else MODEL


def files_of(names: Iterable[str]) -> list[str]:
    """What of a folder's files an import reads beside those of any model: the description and the weights."""
    names = list(names)
    description, weights = description_of(names), weights_of(names)
    taken = [f"{weights}.safetensors", f"{weights}.safetensors.index.json"]
    shards = re.compile(re.escape(weights) + r"-\d{5}-of-\d{5,6}\.safetensors")
    of_weights = [name for name in names if name in taken or shards.fullmatch(name)]
    return [*([description] if description else []), *sorted(of_weights)]
