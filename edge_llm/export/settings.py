"""config.json of an exported model: the model's own, with what compressed-tensors says of its modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle
from edge_llm.models import describe, load_config
from edge_llm.models.layer import Decoder
from edge_llm.sources.quantization import plain_settings
from edge_llm.strict_json import parse_object

CONFIG = "config.json"
CLASSES = {
    "cohere2": "Cohere2", "ernie4_5": "Ernie4_5", "exaone4": "Exaone4", "gemma2": "Gemma2", "gemma3_text": "Gemma3",
    "glm": "Glm", "glm4": "Glm4", "granite": "Granite", "hunyuan_v1_dense": "HunYuanDenseV1", "llama": "Llama",
    "ministral3": "Ministral3", "mistral": "Mistral", "nemotron": "Nemotron", "olmo2": "Olmo2", "olmo3": "Olmo3",
    "phi3": "Phi3", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3", "stablelm": "StableLm",
    "starcoder2": "Starcoder2",
}  # fmt: skip
"""Families whose checkpoints are written, with their names in the classes of transformers and vLLM."""
_DTYPE, _OLD_DTYPE = "dtype", "torch_dtype"
_HEAD, _HEAD_DIM = "lm_head", "head_dim"


def plain_config(bundle: Bundle) -> dict[str, Any]:
    """The config.json of ``bundle`` without what it says of a quantization.

    Raises `UnsupportedModel` for a family whose checkpoint is not written, `CorruptBundle` or `InvalidModel` for a config.json
    that is none.
    """
    name = shown(bundle.folder.name)
    if not bundle.has_file(CONFIG):
        raise UnsupportedModel(f"`{name}` has no config.json to write; import the model again, from its folder or GGUF file")
    raw = plain_settings(parse_object(bundle.read_file(CONFIG), CONFIG))
    family = raw.get("model_type")
    if family not in CLASSES:
        known = ", ".join(CLASSES)
        raise UnsupportedModel(f"`{name}` is of the family `{shown(family)}`, which is not written; these are: {known}")
    raw.setdefault("architectures", [f"{CLASSES[family]}ForCausalLM"])
    if _HEAD_DIM in raw and raw[_HEAD_DIM] is None:  # families of transformers differ in what that means
        raw[_HEAD_DIM] = bundle.decoder.attentions[0].head_dim
    if raw.get(_DTYPE) is None and raw.get(_OLD_DTYPE) is None:
        raw[_OLD_DTYPE] = "bfloat16"
    return raw


def published(raw: Mapping[str, Any]) -> Decoder:
    """The description of the float model that transformers and vLLM make of ``raw``."""
    return describe(load_config(dict(raw)))


def quantization_settings(modules: Mapping[str, dict[str, Any] | None]) -> dict[str, Any]:
    """The quantization_config of ``modules``: each one's group without targets, None for one in float; empty where all are."""
    groups: list[dict[str, Any]] = []
    targets: list[list[str]] = []
    for name, scheme in modules.items():
        if scheme is None:
            continue
        if scheme not in groups:
            groups.append(scheme)
            targets.append([])
        targets[groups.index(scheme)].append(name)
    if not groups:
        return {}
    formats = list(dict.fromkeys(group["format"] for group in groups))
    named = [["Linear"]] if len(groups) == 1 else targets
    settings = {
        "quant_method": "compressed-tensors",
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": [*(name for name, scheme in modules.items() if scheme is None), _HEAD],
        "config_groups": {
            f"group_{number}": _group(group, said, len(formats))
            for number, (group, said) in enumerate(zip(groups, named, strict=True))
        },
    }
    return {"quantization_config": settings}


def _group(scheme: Mapping[str, Any], targets: Iterable[str], formats: int) -> dict[str, Any]:
    """A group of config_groups; older readers do not know that groups have a format, so it is said where there are several."""
    said = {key: value for key, value in scheme.items() if formats > 1 or key != "format"}
    return {"targets": list(targets), **said, "output_activations": None}
