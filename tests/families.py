"""Tiny random models of every family whose layers are not Llama's, made by transformers with every switch in use."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import VOCAB_SIZE, write_tokenizer

from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.description import decode_description, encode_description, model_record
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import describe, load_config
from edge_llm.models.reference import FloatModel

TOKENS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 90).tolist()
"""More than any window, and than what the rotations were stretched from."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
COMMON = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 270, "eos_token_id": 271,
}  # fmt: skip
WINDOW = {"sliding_window": 16}
GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 8.0}
_DELTA = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 16, "full_attention_interval": 3, "num_hidden_layers": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}  # fmt: skip
_MAMBA = GRANITE | {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_n_groups": 2, "shared_intermediate_size": 80,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"], "num_hidden_layers": 4,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": (
        "Gemma2",
        WINDOW | {"head_dim": 16, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3_text": (
        "Gemma3Text",
        WINDOW
        | {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        WINDOW
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                "full_attention": {**YARN, "rope_theta": 5e5},
            }
        },
    ),
    "exaone4": ("Exaone4", WINDOW),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "granite": ("Granite", GRANITE | {"tie_word_embeddings": True}),
    "granite, untied, with biases": (
        "Granite",
        GRANITE | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "phi3": ("Phi3", {"sliding_window": 24}),
    "phi3, long": (
        "Phi3",
        {
            "hidden_size": 128,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0 + 0.1 * wave for wave in range(12)],
                "long_factor": [2.0 + 0.3 * wave for wave in range(12)],
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "glm4": (
        "Glm4",
        {
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "nemotron": ("Nemotron", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "starcoder2": ("Starcoder2", {"sliding_window": 16, "use_bias": True}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm, parallel": ("StableLm", {"use_parallel_residual": True}),
    "opt": ("OPT", {"ffn_dim": 160, "word_embed_proj_dim": 64, "max_position_embeddings": 128}),
    "llama, relu": ("Llama", {"head_dim": 16, "hidden_act": "relu"}),
    "llama, yarn": ("Llama", {"head_dim": 16, "rope_parameters": {**YARN, "rope_theta": 1e4}}),
    "glm": (
        "Glm",
        {
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 16}),
    "hunyuan, alpha": (
        "HunYuanDenseV1",
        {"head_dim": 16, "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "rope_theta": 1e4, "factor": 1.0}},
    ),
    "ernie4_5": ("Ernie4_5", {"head_dim": 16, "use_bias": True}),
    "cohere2": ("Cohere2", WINDOW | {"logit_scale": 0.3}),
    "ministral3": (
        "Ministral3",
        {
            "head_dim": 16,
            "rope_parameters": {
                **YARN, "rope_theta": 1e6, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
            },
        },
    ),
}  # fmt: skip
_MIXTURE = {"moe_intermediate_size": 64, "num_experts_per_tok": 3, "num_hidden_layers": 4}
_SHARED = {"num_experts": 4, "shared_expert_intermediate_size": 48, "num_hidden_layers": 3}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "olmoe": ("Olmoe", _MIXTURE | {"num_experts": 8}),
    "mixtral": ("Mixtral", _MIXTURE | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3Moe", _MIXTURE | {"head_dim": 16, "num_experts": 8, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "glm4_moe": (
        "Glm4Moe",
        _MIXTURE
        | {
            "head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, "attention_bias": True,
            "use_qk_norm": True, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "gpt_oss": (
        "GptOss",
        WINDOW
        | {
            "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 4, "attention_bias": True,
            "swiglu_limit": 1.5, "rope_parameters": {**YARN, "rope_theta": 15e4, "truncate": False},
        },
    ),
    "qwen2_moe": ("Qwen2Moe", _MIXTURE | {"num_experts": 8, "shared_expert_intermediate_size": 80, "mlp_only_layers": [2]}),
    "granitemoe": ("GraniteMoe", _MIXTURE | GRANITE | {"num_local_experts": 6, "tie_word_embeddings": True}),
    "qwen3_5_moe_text": ("Qwen3_5MoeText", _MIXTURE | _DELTA | _SHARED),
    "qwen3_next": ("Qwen3Next", _MIXTURE | _DELTA | _SHARED | {"mlp_only_layers": [1], "num_hidden_layers": 4}),
    "granitemoehybrid, experts": (
        "GraniteMoeHybrid",
        _MIXTURE
        | _MAMBA
        | {"num_local_experts": 6, "position_embedding_type": "rope", "mamba_proj_bias": True, "mamba_conv_bias": False},
    ),
}  # fmt: skip
"""Families with experts."""
STATEFUL: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "Lfm2",
        {
            "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention", "conv"], "conv_bias": True,
            "norm_eps": 1e-5, "block_multiple_of": 32,
        },
    ),
    "qwen3_5_text": ("Qwen3_5Text", _DELTA),
    "granitemoehybrid": (
        "GraniteMoeHybrid", _MAMBA | {"num_local_experts": 0, "time_step_limit": [0.05, 2.0], "tie_word_embeddings": True},
    ),
}  # fmt: skip
"""Families with layers that keep a fixed shape of a sequence."""
_IMAGES = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
_PIXELS = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
SEEING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("Gemma3", {**FAMILIES["gemma3_text"][1], "tie_word_embeddings": True}, _PIXELS | {"patch_size": 14}),
    "qwen2_vl": ("Qwen2VL", {"rope_parameters": _SECTIONS}, {"embed_dim": 32, "hidden_size": 64, "depth": 1, "num_heads": 2}),
    "qwen2_5_vl": ("Qwen2_5_VL", {"rope_parameters": _SECTIONS}, _IMAGES),
    "qwen3_vl": (
        "Qwen3VL",
        {"head_dim": 16, "rope_parameters": {**_SECTIONS, "mrope_interleaved": True}},
        _IMAGES | {"deepstack_visual_indexes": [0]},
    ),
    "qwen3_5": ("Qwen3_5", _DELTA, _IMAGES),
    "qwen3_5_moe": ("Qwen3_5Moe", MIXTURES["qwen3_5_moe_text"][1], _IMAGES),
    "mistral3": (
        "Mistral3",
        {**FAMILIES["ministral3"][1], "model_type": "ministral3"},
        _PIXELS | {"model_type": "pixtral", "patch_size": 14, "head_dim": 16},
    ),
    "mistral3, mistral": (
        "Mistral3",
        {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        _PIXELS | {"model_type": "pixtral", "patch_size": 14, "head_dim": 16},
    ),
    "glm4v": (
        "Glm4v",
        {"rope_parameters": {**_SECTIONS, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}},
        _IMAGES,
    ),
}
"""Checkpoints that see images: settings of the text model, and of what sees."""
EVERY = [*FAMILIES, *(name for name in SEEING if not name.startswith("qwen3_5"))]


def family_folder(folder: Path, name: str) -> tuple[Path, Any]:
    """A model of one of these tables as a Hugging Face folder with a tokenizer, and the model of transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    kind, more, *seeing = (FAMILIES | MIXTURES | STATEFUL).get(name) or SEEING[name]
    settings = {**COMMON, **json.loads(json.dumps(more))}
    parts = {"text_config": settings, "vision_config": dict(seeing[0])} if seeing else settings
    config = getattr(transformers, f"{kind}Config")(**parts)
    auto = transformers.AutoModelForImageTextToText if seeing else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval().float()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor, values in model.named_parameters():
            if seeing and "language_model" not in tensor and "lm_head" not in tensor:
                continue
            drawn = torch.randn(values.shape, generator=random)
            if "norm" in tensor:
                values.add_(0.2 * drawn)
            elif tensor.endswith("bias"):
                values.copy_(0.3 * drawn)
            else:
                values.copy_(drawn * (0.5 if "embed" in tensor else 1.3 / values.shape[-1] ** 0.5))
        for tensor, values in model.named_buffers():
            if tensor.endswith("e_score_correction_bias"):
                values.copy_(0.2 * torch.randn(values.shape, generator=random))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder, model


def family_bundle(folder: Path, name: str, **how: Any) -> Path:
    """The folder of a bundle in ``folder``: a model of one of these tables, imported as ``how`` says."""
    family_folder(folder / "source", name)
    return import_model(folder / "source", target=folder / "bundle", **how)


def of_each(names: Collection[str], every: int = 1) -> tuple[Any, Any]:
    """Fixtures of a module: each family's folder with its logits of `TOKENS` by transformers, and the bundle made of it.

    One of ``every`` so many of them is in plain runs too.
    """
    marks = [() if number % every == 0 else pytest.mark.thorough for number, _ in enumerate(names)]
    params = [pytest.param(name, marks=mark) for name, mark in zip(names, marks, strict=True)]

    @pytest.fixture(scope="module", params=params)
    def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
        folder, model = family_folder(tmp_path_factory.mktemp("family") / "source", request.param)
        return folder, logits_of(model, TOKENS)

    @pytest.fixture(scope="module")
    def bundle(family: tuple[Path, np.ndarray]) -> Iterator[Bundle]:
        folder, _ = family
        with open_bundle(import_model(folder, target=folder.parent / "bundle")) as opened:
            yield opened

    return family, bundle


def float_model(folder: Path) -> FloatModel:
    """The model in ``folder`` by our float path."""
    with open_model_folder(folder) as source:
        return FloatModel(source, load_config(source.config))


def assert_float_path(folder: Path, theirs: np.ndarray, tokens: list[int]) -> None:
    """Our float path of the model in ``folder`` gives ``theirs``, the logits of transformers: float32 [tokens, vocabulary]."""
    ours = float_model(folder).forward(tokens)
    assert np.abs(ours - theirs).max() < 2e-5 * np.abs(theirs).max()
    assert ours.argmax(-1).tolist() == theirs.argmax(-1).tolist()


def assert_described(folder: Path, bundle: Bundle) -> None:
    """``bundle`` carries the description of the model in ``folder``, which a manifest can hold."""
    with open_model_folder(folder) as source:
        config = load_config(source.config)
    record = json.loads(json.dumps([encode_description(describe(config)), model_record(config)]))
    assert decode_description(*record, most_layers=100).decoder == describe(config) == bundle.config.decoder


def logits_of(model: Any, tokens: list[int]) -> np.ndarray:
    """The logits of a model of transformers, float32 [T, V]."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].numpy())
