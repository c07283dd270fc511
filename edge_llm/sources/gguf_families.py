"""What a GGUF file says of a model of each architecture, as its config.json would say it.

What a file leaves to the name of its architecture, llama.cpp has in code; it is in the function of that architecture here.
Where llama.cpp simplifies, the model is as it was before it was converted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufModel
from edge_llm.models import families
from edge_llm.models.fields import MAX_EXPERTS
from edge_llm.sources.gguf_encoders import bert_settings, nomic_settings
from edge_llm.sources.gguf_rope import decimal, llama3_scaling, scaling_of

_LARGEST_WINDOW = 1 << 27
_QKV, _OUTPUT, _MLP = ("attn_q", "attn_k", "attn_v", "attn_qkv"), ("attn_output",), ("ffn_gate", "ffn_up", "ffn_down")
_GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose scores are scaled by hidden size / heads, not by the size of a head."""
_EXAONE_32B_LAYERS = 64
_SIGMOID = 2
"""llama.cpp's number of that way to make scores."""


def _llama(model: GgufModel, name: str) -> dict[str, Any]:
    window = _window(model, name)
    if model.pairs.get(f"{name}.expert_count"):
        mixtral = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "sliding_window": window or None}
        return _decoder(model, name) | mixtral | _experts(model, name)
    settings = _decoder(model, name) | {"attention_bias": _has_bias(model, _QKV + _OUTPUT)}
    if not window:
        return settings | {"mlp_bias": _has_bias(model, _MLP)}
    return settings | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]} | _windowed(window)


def _qwen2(model: GgufModel, name: str) -> dict[str, Any]:
    return _decoder(model, name) | _windowed(_window(model, name))


def _qwen3(model: GgufModel, name: str) -> dict[str, Any]:
    return _qwen2(model, name) | {"attention_bias": _has_bias(model, _QKV + _OUTPUT)}


def _qwen35(model: GgufModel, name: str) -> dict[str, Any]:
    """Heads of values are not beside those that have the same key head, but as many apart as there are key heads."""
    heads, inner = model.integer(f"{name}.ssm.time_step_rank", 1, 4096), model.integer(f"{name}.ssm.inner_size", 1, 1 << 20)
    if inner % heads:
        raise InvalidModel(f"{model.where}: `{name}.ssm.inner_size` is `{inner}`, no multiple of {heads} heads")
    recurrent = [model.has_tensor(f"blk.{index}.ssm_conv1d.weight") for index in range(layers_of(model, name))]
    return _decoder(model, name, part=True) | {
        "attention_bias": False,
        "layer_types": ["linear_attention" if one else "full_attention" for one in recurrent],
        "linear_num_value_heads": heads, "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": model.integer(f"{name}.ssm.group_count", 1, 4096),
        "linear_key_head_dim": model.integer(f"{name}.ssm.state_size", 1, 1 << 16),
        "linear_conv_kernel_dim": model.integer(f"{name}.ssm.conv_kernel", 1, 64),
        "value_heads_tiled": True,
    }  # fmt: skip


def _experts(model: GgufModel, name: str) -> dict[str, Any]:
    """How many experts a layer has, and a token goes to."""
    count = model.integer(f"{name}.expert_count", 1, MAX_EXPERTS)
    return {"num_local_experts": count, "num_experts_per_tok": model.integer(f"{name}.expert_used_count", 1, count)}


def _small_experts(model: GgufModel, name: str) -> dict[str, Any]:
    """The same with the width of an expert, and the layers that have none."""
    layers = range(layers_of(model, name))
    dense = [index for index in layers if not model.has_tensor(f"blk.{index}.ffn_gate_inp.weight")]
    width = model.integer(f"{name}.expert_feed_forward_length", 1, 1 << 20)
    return _experts(model, name) | {"moe_intermediate_size": width, "mlp_only_layers": dense}


def _olmoe(model: GgufModel, name: str) -> dict[str, Any]:
    bias = {"attention_bias": _has_bias(model, _QKV + _OUTPUT)}
    return _decoder(model, name) | _experts(model, name) | bias | {"norm_topk_prob": False}


def _qwen3moe(model: GgufModel, name: str) -> dict[str, Any]:
    return _qwen3(model, name) | _small_experts(model, name) | {"norm_topk_prob": True}


def _qwen2moe(model: GgufModel, name: str) -> dict[str, Any]:
    return _qwen2(model, name) | _beside_shared(model, name) | {"norm_topk_prob": False}


def _qwen35moe(model: GgufModel, name: str) -> dict[str, Any]:
    return _qwen35(model, name) | _beside_shared(model, name)


def _beside_shared(model: GgufModel, name: str) -> dict[str, Any]:
    """Small experts beside a shared one."""
    shared = model.integer(f"{name}.expert_shared_feed_forward_length", 1, 1 << 20)
    return _small_experts(model, name) | {"shared_expert_intermediate_size": shared}


def _granitemoe(model: GgufModel, name: str) -> dict[str, Any]:
    if model.integer(f"{name}.expert_shared_feed_forward_length", 0, 1 << 20, 0):
        raise UnsupportedModel(f"{model.where} is a Granite with shared experts, which does not run here")
    own = _granite(model, name)
    del own["mlp_bias"]
    return own | _experts(model, name) | {"experts_apart": True}


def _glm4moe(model: GgufModel, name: str) -> dict[str, Any]:
    if (gating := model.integer(f"{name}.expert_gating_func", 0, 1 << 20, 2)) != _SIGMOID:
        said = f"`{name}.expert_gating_func` is `{gating}`"
        raise UnsupportedModel(f"{model.where}: {said}; of GLM only {_SIGMOID}, a sigmoid, runs here")
    groups = model.integer(f"{name}.expert_group_count", 1, MAX_EXPERTS, 1)
    own = {
        "moe_intermediate_size": model.integer(f"{name}.expert_feed_forward_length", 1, 1 << 20),
        "n_shared_experts": model.integer(f"{name}.expert_shared_count", 1, 64),
        "first_k_dense_replace": model.integer(f"{name}.leading_dense_block_count", 0, 1024, 0),
        "norm_topk_prob": model.flag(f"{name}.expert_weights_norm", True),
        "routed_scaling_factor": decimal(model.number(f"{name}.expert_weights_scale", 1e-9, 1e9, 1.0)),
        "n_group": groups, "topk_group": model.integer(f"{name}.expert_group_used_count", 1, groups, 1),
        "use_qk_norm": any(info.name.endswith("attn_q_norm.weight") for info in model.tensors),
        "attention_bias": _has_bias(model, _QKV),
    }  # fmt: skip
    return _decoder(model, name, part=True) | _experts(model, name) | own


def _gpt_oss(model: GgufModel, name: str) -> dict[str, Any]:
    """Its rotation is not rounded to whole waves, as llama.cpp's is."""
    settings = _decoder(model, name) | _experts(model, name) | {"attention_bias": True, "experts_apart": True}
    if (scaling := settings.get("rope_scaling")) is not None:
        settings["rope_scaling"] = scaling | {"truncate": False}
    return settings | _local_layers(model, name, 2, _window(model, name, 128))


def _gemma2(model: GgufModel, name: str) -> dict[str, Any]:
    settings = _gemma(model, name, 2, window=4096)
    theta = decimal(model.number(f"{name}.rope.freq_base_swa", 1.0, 1e18, settings["rope_theta"]))
    if theta != settings["rope_theta"]:
        raise UnsupportedModel(f"{model.where}: layers that turn by `{theta:g}` beside others of Gemma 2 do not run here")
    return settings | {
        "attn_logit_softcapping": _cap(model, f"{name}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": _cap(model, f"{name}.final_logit_softcapping", 30.0),
    }


def _gemma3(model: GgufModel, name: str) -> dict[str, Any]:
    return _gemma(model, name, 6, window=0) | {
        "final_logit_softcapping": _cap(model, f"{name}.final_logit_softcapping", 0.0),
        "rope_local_base_freq": decimal(model.number(f"{name}.rope.freq_base_swa", 1.0, 1e18, 10000.0)),
    }


def _gemma(model: GgufModel, name: str, period: int, *, window: int) -> dict[str, Any]:
    settings = _decoder(model, name) | {"attention_bias": False}
    del settings["hidden_act"]
    is_27b = settings["num_hidden_layers"] == _GEMMA_27B.get(name)
    scaled = settings["hidden_size"] // settings["num_attention_heads"] if is_27b else settings["head_dim"]
    settings |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scaled}
    return settings | _local_layers(model, name, period, _window(model, name, window))


def _gemma_embedding(model: GgufModel, name: str) -> dict[str, Any]:
    return _gemma3(model, name) | {"use_bidirectional_attention": True}


def _phi3(model: GgufModel, name: str) -> dict[str, Any]:
    settings = _decoder(model, name, part=True)
    original = model.integer(f"{name}.rope.scaling.original_context_length", 1, 1 << 27, settings["max_position_embeddings"])
    return settings | {"original_max_position_embeddings": original, "sliding_window": _window(model, name) or None}


def _olmo2(model: GgufModel, name: str) -> dict[str, Any]:
    """OLMo 3 is an OLMo 2 with a window."""
    settings = _decoder(model, name) | {"attention_bias": _has_bias(model, _QKV + _OUTPUT)}
    if not (window := _window(model, name)):
        return settings
    own = {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"]}
    return settings | own | _local_layers(model, name, 4, window)


def _granite(model: GgufModel, name: str) -> dict[str, Any]:
    settings = _decoder(model, name)
    if not model.flag(f"{name}.rope.scaling.finetuned", True):
        raise UnsupportedModel(f"{model.where} is a Granite whose heads do not turn; it does not run here")
    usual = {"embedding_scale": 1.0, "residual_scale": 1.0, "attention.scale": settings["head_dim"] ** -0.5}
    scales = {key: decimal(model.number(f"{name}.{key}", 0.0, 1e9, 0.0) or one) for key, one in usual.items()}
    numbers = {
        "embedding_multiplier": scales["embedding_scale"], "residual_multiplier": scales["residual_scale"],
        "attention_multiplier": scales["attention.scale"],
        "logits_scaling": decimal(model.number(f"{name}.logit_scale", 1e-9, 1e9)),
    }  # fmt: skip
    return settings | numbers | {"attention_bias": _has_bias(model, _QKV + _OUTPUT), "mlp_bias": _has_bias(model, _MLP)}


def _smollm3(model: GgufModel, name: str) -> dict[str, Any]:
    biases = {"attention_bias": _has_bias(model, _QKV + _OUTPUT), "mlp_bias": _has_bias(model, _MLP)}
    return _decoder(model, name) | {"no_rope_layer_interval": 4} | biases


def _glm4(model: GgufModel, name: str) -> dict[str, Any]:
    return _decoder(model, name, part=True) | {"attention_bias": _has_bias(model, _QKV)}


def _hunyuan_dense(model: GgufModel, name: str) -> dict[str, Any]:
    """Its base is already the one that its alpha makes of the first."""
    return _decoder(model, name) | {"attention_bias": _has_bias(model, _QKV + _OUTPUT)}


def _ernie4_5(model: GgufModel, name: str) -> dict[str, Any]:
    return _decoder(model, name) | {"use_bias": _has_bias(model, _QKV + _OUTPUT + _MLP)}


def _exaone4(model: GgufModel, name: str) -> dict[str, Any]:
    settings = _decoder(model, name)
    window = _window(model, name, 4096 if settings["num_hidden_layers"] == _EXAONE_32B_LAYERS else 0)
    return settings | (_local_layers(model, name, 4, window) if window else {"sliding_window": None})


def _cohere2(model: GgufModel, name: str) -> dict[str, Any]:
    settings = _decoder(model, name, norm="layer_norm") | {"attention_bias": False}
    scale = decimal(model.number(f"{name}.logit_scale", 1e-9, 1e9))
    window = model.integer(f"{name}.attention.sliding_window", 1, _LARGEST_WINDOW)
    return settings | {"logit_scale": scale} | _local_layers(model, name, 4, window)


def _mistral3(model: GgufModel, name: str) -> dict[str, Any]:
    """Ministral 3, or a Mistral whose vision has a file of its own."""
    settings = _decoder(model, name)
    growth = decimal(model.number(f"{name}.attention.temperature_scale", 0.0, 1e3, 0.0))
    scaling = settings.pop("rope_scaling", None)
    if scaling is None and not growth:
        return settings | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    rope = (scaling or {"rope_type": "default"}) | {"rope_theta": settings.pop("rope_theta")}
    if growth:
        original = model.integer(f"{name}.rope.scaling.original_context_length", 1, 1 << 27)
        rope |= {"llama_4_scaling_beta": growth, "original_max_position_embeddings": original}
    return settings | {"rope_parameters": rope, "sliding_window": None}


@dataclass(frozen=True)
class Architecture:
    """A family as llama.cpp has it."""

    model_type: str
    """The one that must run here."""
    model_class: str
    """Its name in transformers."""
    read: Callable[[GgufModel, str], dict[str, Any]]
    others: tuple[str, ...] = ()
    """Model types that are told apart by what the file says."""


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", _llama, ("mistral", "mixtral")),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _qwen2),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _qwen3),
    "qwen35": Architecture("qwen3_5_text", "Qwen3_5ForCausalLM", _qwen35),
    "qwen35moe": Architecture("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", _qwen35moe),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", _gemma2),
    "bert": Architecture("bert", "BertModel", bert_settings),
    "nomic-bert": Architecture("nomic_bert", "NomicBertModel", nomic_settings),
    "gemma-embedding": Architecture("gemma3_text", "Gemma3TextModel", _gemma_embedding),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _gemma3),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", _phi3),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", _olmo2, ("olmo3",)),
    "olmoe": Architecture("olmoe", "OlmoeForCausalLM", _olmoe),
    "qwen3moe": Architecture("qwen3_moe", "Qwen3MoeForCausalLM", _qwen3moe),
    "qwen2moe": Architecture("qwen2_moe", "Qwen2MoeForCausalLM", _qwen2moe),
    "granitemoe": Architecture("granitemoe", "GraniteMoeForCausalLM", _granitemoe),
    "glm4moe": Architecture("glm4_moe", "Glm4MoeForCausalLM", _glm4moe),
    "gpt-oss": Architecture("gpt_oss", "GptOssForCausalLM", _gpt_oss),
    "granite": Architecture("granite", "GraniteForCausalLM", _granite),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", _smollm3),
    "glm4": Architecture("glm4", "Glm4ForCausalLM", _glm4),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", _hunyuan_dense),
    "ernie4_5": Architecture("ernie4_5", "Ernie4_5ForCausalLM", _ernie4_5),
    "exaone4": Architecture("exaone4", "Exaone4ForCausalLM", _exaone4),
    "cohere2": Architecture("cohere2", "Cohere2ForCausalLM", _cohere2),
    "mistral3": Architecture("ministral3", "Ministral3ForCausalLM", _mistral3),
}
"""By the name of `general.architecture`."""
WITH_EXPERTS = frozenset(("glm4moe", "gpt-oss", "granitemoe", "llama", "olmoe", "qwen2moe", "qwen35moe", "qwen3moe"))
"""Architectures of which mixtures run."""
ARCHITECTURE_OF = {kind: name for name, one in ARCHITECTURES.items() for kind in (one.model_type, *one.others)}
"""By model type."""


def architectures() -> list[str]:
    """Those that run."""
    there = families()
    return [name for name, one in ARCHITECTURES.items() if one.model_type in there]


def refusal(where: str, architecture: str) -> UnsupportedModel:
    """The error for an architecture that does not run."""
    return UnsupportedModel(
        f"{where} has the architecture `{shown(architecture)}`, which does not run from GGUF here; these do: "
        f"{', '.join(architectures())}"
    )


def _decoder(model: GgufModel, name: str, *, norm: str = "layer_norm_rms", part: bool = False) -> dict[str, Any]:
    """What all decoders say; ``part``: a part of a head may turn."""
    heads = model.integer(f"{name}.attention.head_count", 1, 4096)
    hidden = model.integer(f"{name}.embedding_length", 1, 1 << 17)
    head = model.integer(f"{name}.attention.key_length", 1, 1 << 17, max(1, hidden // heads))
    turned = model.integer(f"{name}.rope.dimension_count", 1, 1 << 17, head)
    values = model.integer(f"{name}.attention.value_length", 1, 1 << 17, head)
    wanted = {"attention.value_length": values} | ({} if part else {"rope.dimension_count": turned})
    for key, other in wanted.items():
        if other != head:
            raise UnsupportedModel(f"{model.where}: `{name}.{key}` is `{other}`; only the heads' own size, {head}, runs here")
    embedding = model.tensor("token_embd.weight")
    if len(embedding.shape) != 2:
        raise InvalidModel(f"{model.where}: `token_embd.weight` must have rows and columns, not {list(embedding.shape)}")
    context = model.integer(f"{name}.context_length", 1, 1 << 27)
    theta = decimal(model.number(f"{name}.rope.freq_base", 1.0, 1e18, 10000.0))
    eps = {"layer_norm_rms": "rms_norm_eps", "layer_norm": "layer_norm_eps"}[norm]
    settings: dict[str, Any] = {
        "model_type": ARCHITECTURES[name].model_type,
        "architectures": [ARCHITECTURES[name].model_class],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": model.integer(f"{name}.feed_forward_length", 1, 1 << 20, *_of_experts(model, name)),
        "num_hidden_layers": layers_of(model, name),
        "num_attention_heads": heads,
        "num_key_value_heads": model.integer(f"{name}.attention.head_count_kv", 1, 4096, heads),
        "head_dim": head,
        "max_position_embeddings": context,
        eps: decimal(model.number(f"{name}.attention.{norm}_epsilon", 1e-20, 1.0)),
        "rope_theta": theta,
        "hidden_act": "silu",
        "tie_word_embeddings": not model.has_tensor("output.weight"),
    }
    if part:
        settings["partial_rotary_factor"] = _share(turned, head)
    scaling = scaling_of(model, name, context) or llama3_scaling(model, theta, turned)
    return settings if scaling is None else settings | {"rope_scaling": scaling}


def _of_experts(model: GgufModel, name: str) -> tuple[int, ...]:
    """The width of an expert, which files of models without any other say alone."""
    width = model.integer(f"{name}.expert_feed_forward_length", 0, 1 << 20, 0)
    return (width,) if width else ()


def layers_of(model: GgufModel, name: str) -> int:
    """Layers of the model itself: those that predict further tokens are counted in the file, and stand behind."""
    count = model.integer(f"{name}.block_count", 1, 1024)
    more = model.integer(f"{name}.nextn_predict_layers", 0, 1024, 0)
    if more >= count:
        raise InvalidModel(f"{model.where}: `{name}.nextn_predict_layers` is `{more}` of {count} layers; convert it again")
    return count - more


def _share(turned: int, head: int) -> float:
    """The share of a head that turns, from which its channels are found again."""
    share = turned / head
    return share if int(head * share) == turned else math.nextafter(share, 2.0)


def _has_bias(model: GgufModel, parts: tuple[str, ...]) -> bool:
    names = {f"{part}.bias" for part in parts}
    return any(info.name.startswith("blk.") and info.name.split(".", 2)[-1] in names for info in model.tensors)


def _window(model: GgufModel, name: str, default: int = 0) -> int:
    """Tokens that a window reaches; 0: there is none."""
    return model.integer(f"{name}.attention.sliding_window", 0, _LARGEST_WINDOW, default)


def _windowed(window: int) -> dict[str, Any]:
    """A window in all layers."""
    return {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0} if window else {}


def _cap(model: GgufModel, key: str, default: float) -> float | None:
    return decimal(model.number(key, 0.0, 1e6, default)) or None


def _local_layers(model: GgufModel, name: str, period: int, window: int) -> dict[str, Any]:
    """Which layers have a window: said of each, or by a period whose last layer has none."""
    layers, key = layers_of(model, name), f"{name}.attention.sliding_window_pattern"
    local = _said_of_layers(model, key, layers, period) if window else [False] * layers
    kinds = ["sliding_attention" if one else "full_attention" for one in local]
    return {"layer_types": kinds, "sliding_window": window or None}


def _said_of_layers(model: GgufModel, key: str, layers: int, period: int) -> list[bool]:
    said = model.pairs.get(key)
    if said is None or isinstance(said, int):
        period = model.integer(key, 1, 1 << 20, period)
        return [(layer + 1) % period != 0 for layer in range(layers)]
    flags = model.numbers(key)
    if flags is None or len(flags) < layers:
        raise InvalidModel(f"{model.where}: `{key}` says of {0 if flags is None else len(flags)} layers, there are {layers}")
    return [bool(flag) for flag in flags[:layers]]
