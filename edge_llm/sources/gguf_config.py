"""What config.json would say of the model in a GGUF file: llama.cpp's keys by Hugging Face's names."""

from __future__ import annotations

from typing import Any

from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufModel
from edge_llm.sources.gguf_encoders import ENCODERS
from edge_llm.sources.gguf_families import ARCHITECTURES, WITH_EXPERTS, architectures, refusal
from edge_llm.sources.refusals import adapter_refusal


def config_of(model: GgufModel) -> dict[str, Any]:
    """The config.json of ``model``.  `UnsupportedModel` for what does not run, `InvalidModel` for what makes no sense."""
    kind = model.text("general.type", "model")
    if kind == "adapter":
        raise adapter_refusal(str(model.files[0]), _base_of(model))
    if kind != "model":
        raise UnsupportedModel(f"{model.where} is of the type `{shown(kind)}`, not a model; import the one that it belongs to")
    architecture = model.text("general.architecture")
    if architecture not in architectures():
        raise refusal(model.where, architecture)
    _refuse_what_is_more(model, architecture)
    return ARCHITECTURES[architecture].read(model, architecture)


def _base_of(adapter: GgufModel) -> str:
    """The repository of the model that ``adapter`` changes; empty where the file does not say."""
    return adapter.text("general.base_model.0.repo_url", "").removeprefix("https://huggingface.co/")


def _refuse_what_is_more(model: GgufModel, name: str) -> None:
    """Raise `UnsupportedModel` for what the architecture's name allows and does not run here."""
    experts = model.integer(f"{name}.expert_count", 0, 1 << 20, 0)
    if experts and name not in WITH_EXPERTS:
        known = ", ".join(sorted(WITH_EXPERTS))
        raise UnsupportedModel(
            f"{model.where} is a mixture of `{experts}` experts of the architecture `{name}`, which does not run here; "
            f"of mixtures these do: {known}"
        )
    if name not in ENCODERS and not model.flag(f"{name}.attention.causal", True):
        raise UnsupportedModel(f"{model.where} has tokens that see those after them; only causal models run here")
    sections = model.numbers(f"{name}.rope.dimension_sections")
    if sections is not None and sections.any():
        raise UnsupportedModel(f"{model.where} turns parts of a head by places in a picture, which does not run here")
    for info in model.tensors:
        if info.name.endswith((".scale", ".input_scale")):
            raise UnsupportedModel(f"{model.where}: tensor `{shown(info.name)}` changes what others mean; it is not read here")
