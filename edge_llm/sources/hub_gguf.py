"""Which GGUF file of a hub repository is meant: chosen by the name of its quantization, as llama.cpp's ``-hf`` does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import parts_of_name, without_part
from edge_llm.formats.model_folder import MODEL

DEFAULTS = ("Q4_K_M", "Q8_0")
"""What is taken where nothing is said: the first that is there, else the first file."""

_MORE_BITS = 0.6
"""Per weight of a quantized file, beyond those in its name: scales, and matrices that have more."""
_QUANTIZATION = re.compile(r"(?:UD-)?(?:I?Q[1-8]_[A-Z0-9_]+|B?F16|F32|MXFP4(?:_MOE)?)", re.IGNORECASE)
_NO_MODEL = re.compile(r"(?:^|/)(?:imatrix|(?:mtp|eagle3|dflash|dspark)-)|[-.]lora\b|mmproj|-imatrix", re.IGNORECASE)


def is_quantization(text: str) -> bool:
    """Whether ``text`` is called as a quantization is, such as Q4_K_M."""
    return _QUANTIZATION.fullmatch(text) is not None


def choose(repository: str, names: Iterable[str], wanted: str = "") -> list[str]:
    """The file that is ``wanted``, by its quantization or its name, with all its parts; as `DEFAULTS` says where none is.

    Raises `UnsupportedModel`.
    """
    models = sorted(name for name in names if is_model(name))
    found = [name for name in models if name == wanted or _has(name, wanted)] if wanted else _usual(models)
    if not found:
        there = ", ".join(sorted({one for name in models for one in _QUANTIZATION.findall(name)})) or "no GGUF model"
        raise UnsupportedModel(f"`{repository}` has no GGUF file `{shown(wanted)}`; there is: {there}")
    parts = parts_of_name(min(found, key=lambda name: (len(name), name)))
    missing = [name for name in parts if name not in models]
    if missing:
        raise UnsupportedModel(f"`{repository}` lacks `{shown(missing[0])}`, a part of the model; choose another quantization")
    return parts


def _usual(models: Sequence[str]) -> list[str]:
    for tag in DEFAULTS:
        if found := [name for name in models if _has(name, tag)]:
            return found
    return list(models[:1])


def is_only_gguf(names: Iterable[str]) -> bool:
    """Whether a repository has models in GGUF, and none as Hugging Face has them."""
    there = set(names)
    others = (f"{MODEL}.safetensors", f"{MODEL}.safetensors.index.json")
    return any(is_model(name) for name in there) and there.isdisjoint(others)


def is_model(name: str) -> bool:
    """Whether a repository's file is a language model in GGUF, or a part of one."""
    return name.lower().endswith(".gguf") and _NO_MODEL.search(name) is None


def float_bytes(name: str, nbytes: int) -> int:
    """Bytes in 16 bits each of weights that take ``nbytes`` in the file ``name``; the same where it names no quantization."""
    found = _QUANTIZATION.search(name.rpartition("/")[2])
    digits = re.search(r"\d+", found[0]) if found else None
    if digits is None or int(digits[0]) >= 16:
        return nbytes * 16 // int(digits[0]) if digits else nbytes
    return round(nbytes * 16 / (int(digits[0]) + _MORE_BITS))


def model_name(repository: str, wanted: str) -> str:
    """What a model is called by default: the repository's name and the quantization, or as the file is."""
    if not is_quantization(wanted):
        return without_part(wanted.rpartition("/")[2])
    name = re.sub(r"[-_.]gguf$", "", repository.rpartition("/")[2], flags=re.IGNORECASE)
    return f"{name}-{wanted}"


def _has(name: str, wanted: str) -> bool:
    """As a word of the file's own name: Q4_K is not Q4_K_M, and UD-Q4_K_M is not Q4_K_M."""
    before = "" if wanted.lower().startswith("ud-") else r"(?<!UD-)"
    last = without_part(name.rpartition("/")[2])
    return re.search(rf"(?:^|[-._]){before}{re.escape(wanted)}(?:$|[-.])", last, re.IGNORECASE) is not None
