"""What config.json would say of the model in a GGUF file: llama.cpp's keys by Hugging Face's names.

What a file leaves to the name of its architecture, llama.cpp has in code; it is in the function of that architecture here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufModel
from edge_llm.formats.gguf_names import FREQUENCIES
from edge_llm.models import families
from edge_llm.sources.refusals import adapter_refusal

_LLAMA3_LENGTHS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every scaled Llama 3 has; other numbers are worked out of the divisors."""
_NEAR = 1e-4
"""Of divisors, relative."""
_GEMMA3_PERIOD = 6
"""The last of so many layers sees the whole text, where the file does not say which do."""
_GEMMA3_27B_LAYERS = 62

_ATTENTION, _MLP = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"), ("ffn_gate", "ffn_up", "ffn_down")


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
    return ARCHITECTURES[architecture][1](model, architecture)


def _base_of(adapter: GgufModel) -> str:
    """The repository of the model that ``adapter`` changes; empty where the file does not say."""
    return adapter.text("general.base_model.0.repo_url", "").removeprefix("https://huggingface.co/")


def architectures() -> list[str]:
    """Those that run."""
    there = families()
    return [name for name, (model_type, _) in ARCHITECTURES.items() if model_type in there]


def refusal(where: str, architecture: str) -> UnsupportedModel:
    """The error for an architecture that does not run."""
    return UnsupportedModel(
        f"{where} has the architecture `{shown(architecture)}`, which does not run from GGUF here; these do: "
        f"{', '.join(architectures())}"
    )


def _llama(model: GgufModel, name: str) -> dict[str, Any]:
    window = model.integer(f"{name}.attention.sliding_window", 0, 1 << 27, 0)
    family = "mistral" if window else "llama"
    settings = _decoder(model, name, family) | {"attention_bias": _has_bias(model, _ATTENTION)}
    if not window:
        settings["mlp_bias"] = _has_bias(model, _MLP)
    return settings | _windowed(window)


def _qwen2(model: GgufModel, name: str) -> dict[str, Any]:
    return _decoder(model, name, name) | _windowed(model.integer(f"{name}.attention.sliding_window", 0, 1 << 27, 0))


def _qwen3(model: GgufModel, name: str) -> dict[str, Any]:
    return _qwen2(model, name) | {"attention_bias": _has_bias(model, _ATTENTION)}


def _gemma3(model: GgufModel, name: str) -> dict[str, Any]:
    settings = _decoder(model, name, "gemma3_text") | {"attention_bias": False}
    del settings["hidden_act"]
    layers, heads = settings["num_hidden_layers"], settings["num_attention_heads"]
    scaled = settings["hidden_size"] // heads if layers == _GEMMA3_27B_LAYERS else settings["head_dim"]
    settings |= {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scaled,
        "final_logit_softcapping": model.number(f"{name}.final_logit_softcapping", 0.0, 1e6, 0.0) or None,
        "rope_local_base_freq": _decimal(model.number(f"{name}.rope.freq_base_swa", 1.0, 1e18, 10000.0)),
    }
    window = model.integer(f"{name}.attention.sliding_window", 0, 1 << 27, 0)
    local = _local_layers(model, f"{name}.attention.sliding_window_pattern", layers) if window else [False] * layers
    kinds = ["sliding_attention" if one else "full_attention" for one in local]
    return settings | {"layer_types": kinds, "sliding_window": window or None}


ARCHITECTURES: dict[str, tuple[str, Callable[[GgufModel, str], dict[str, Any]]]] = {
    "llama": ("llama", _llama),
    "qwen2": ("qwen2", _qwen2),
    "qwen3": ("qwen3", _qwen3),
    "gemma3": ("gemma3_text", _gemma3),
}
"""By architecture: the model type that must run here, and what reads the file.  Mistral's models are `llama` there."""


def _decoder(model: GgufModel, name: str, family: str) -> dict[str, Any]:
    """What all decoders say."""
    heads = model.integer(f"{name}.attention.head_count", 1, 4096)
    hidden = model.integer(f"{name}.embedding_length", 1, 1 << 17)
    head = model.integer(f"{name}.attention.key_length", 1, 1 << 17, max(1, hidden // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := model.integer(f"{name}.{key}", 1, 1 << 17, head)) != head:
            raise UnsupportedModel(f"{model.where}: `{name}.{key}` is `{other}`; only the heads' own size, {head}, runs here")
    embedding = model.tensor("token_embd.weight")
    if len(embedding.shape) != 2:
        raise InvalidModel(f"{model.where}: `token_embd.weight` must have rows and columns, not {list(embedding.shape)}")
    context = model.integer(f"{name}.context_length", 1, 1 << 27)
    theta = _decimal(model.number(f"{name}.rope.freq_base", 1.0, 1e18, 10000.0))
    settings: dict[str, Any] = {
        "model_type": family,
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": model.integer(f"{name}.feed_forward_length", 1, 1 << 20),
        "num_hidden_layers": model.integer(f"{name}.block_count", 1, 1024),
        "num_attention_heads": heads,
        "num_key_value_heads": model.integer(f"{name}.attention.head_count_kv", 1, 4096, heads),
        "head_dim": head,
        "max_position_embeddings": context,
        "rms_norm_eps": _decimal(model.number(f"{name}.attention.layer_norm_rms_epsilon", 1e-20, 1.0)),
        "rope_theta": theta,
        "hidden_act": "silu",
        "tie_word_embeddings": not model.has_tensor("output.weight"),
    }
    scaling = _scaling(model, name, context) or _llama3_scaling(model, theta, head)
    return settings if scaling is None else settings | {"rope_scaling": scaling}


def _has_bias(model: GgufModel, parts: tuple[str, ...]) -> bool:
    names = {f"{part}.bias" for part in parts}
    return any(info.name.startswith("blk.") and info.name.split(".", 2)[-1] in names for info in model.tensors)


def _windowed(window: int) -> dict[str, Any]:
    return {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0} if window else {}


def _local_layers(model: GgufModel, key: str, layers: int) -> list[bool]:
    """Which layers have a window: said of each, or by a period whose last layer has none."""
    said = model.pairs.get(key)
    if said is None or isinstance(said, int):
        period = model.integer(key, 1, 1 << 20, _GEMMA3_PERIOD)
        return [(layer + 1) % period != 0 for layer in range(layers)]
    flags = model.numbers(key)
    if flags is None or len(flags) < layers:
        raise InvalidModel(f"{model.where}: `{key}` says of {0 if flags is None else len(flags)} layers, there are {layers}")
    return [bool(flag) for flag in flags[:layers]]


def _refuse_what_is_more(model: GgufModel, name: str) -> None:
    """Raise `UnsupportedModel` for what the architecture's name allows and does not run here."""
    if experts := model.integer(f"{name}.expert_count", 0, 1 << 20, 0):
        raise UnsupportedModel(f"{model.where} is a mixture of `{experts}` experts; those do not run here")
    if not model.flag(f"{name}.attention.causal", True):
        raise UnsupportedModel(f"{model.where} has tokens that see those after them; only causal models run here")
    for info in model.tensors:
        if info.name.endswith((".scale", ".input_scale")):
            raise UnsupportedModel(f"{model.where}: tensor `{shown(info.name)}` changes what others mean; it is not read here")


def _scaling(model: GgufModel, name: str, context: int) -> dict[str, Any] | None:
    """How the keys say that positions are scaled; None where they are not."""
    keys = f"{name}.rope.scaling."
    kind = "longrope" if model.has_tensor("rope_factors_long.weight") else model.text(f"{keys}type", "linear")
    factor = model.number(f"{keys}factor", 0.0, 1e9, model.number(f"{name}.rope.scale_linear", 0.0, 1e9, 1.0)) or 1.0
    original = model.integer(f"{keys}original_context_length", 1, 1 << 27, context)
    attention = model.number(f"{keys}attn_factor", 0.0, 1e6, 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": _decimal(factor)}
    if kind == "yarn":
        betas = {
            "beta_fast": model.number(f"{keys}yarn_beta_fast", 0.0, 1e6, 32.0),
            "beta_slow": model.number(f"{keys}yarn_beta_slow", 0.0, 1e6, 1.0),
        }
        said = {"rope_type": "yarn", "factor": _decimal(factor), "original_max_position_embeddings": original} | betas
        return said if attention == 1.0 else said | {"attention_factor": _decimal(attention * (1 + 0.1 * np.log(factor)))}
    if kind == "longrope":
        factors = {
            f"{length}_factor": [_decimal(float(one)) for one in model.read(f"rope_factors_{length}.weight").reshape(-1)]
            for length in ("long", "short")
        }
        said = {"rope_type": "longrope", "original_max_position_embeddings": original} | factors
        return said | {"attention_factor": _decimal(attention)}
    raise UnsupportedModel(f"{model.where}: rotary scaling `{shown(kind)}` does not run here")


def _llama3_scaling(model: GgufModel, theta: float, head: int) -> dict[str, Any] | None:
    """Llama 3's rotary scaling, found again in the divisors that the file has in its place."""
    if not model.has_tensor(FREQUENCIES):
        return None
    divisors = model.read(FREQUENCIES).astype(np.float64)
    if divisors.shape == (head // 2,):
        if (divisors == 1).all():
            return None
        factor = float(divisors.max())
        for lengths in (_LLAMA3_LENGTHS, lengths_of(divisors, theta, head)):
            if factor > 1 and lengths and np.allclose(divisors, divisors_of(theta, head, factor, lengths), rtol=_NEAR):
                return {"rope_type": "llama3", "factor": _decimal(factor)} | lengths
    raise UnsupportedModel(f"{model.where}: rotary frequencies that are not scaled as those of Llama 3 do not run here")


def divisors_of(theta: float, head: int, factor: float, lengths: dict[str, Any] = _LLAMA3_LENGTHS) -> np.ndarray:
    """What Llama 3's scaling divides the frequencies by: float64 [head / 2]."""
    low, high = lengths["low_freq_factor"], lengths["high_freq_factor"]
    turns = lengths["original_max_position_embeddings"] / _wave_lengths(theta, head)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float64)


def lengths_of(divisors: np.ndarray, theta: float, head: int) -> dict[str, Any] | None:
    """Lengths that give ``divisors``, as far as they say: those of two waves between the slow and the fast ones do.

    Many are the same scaling; the one with Llama's low factor, 1, is taken.
    """
    factor = float(divisors.max())
    between = np.flatnonzero((divisors > 1 + _NEAR) & (divisors < factor * (1 - _NEAR)))
    if len(between) < 2:
        return None
    ends = between[[0, -1]]
    smooth = (1 / divisors[ends] - 1 / factor) / (1 - 1 / factor)
    turns = 1 / _wave_lengths(theta, head)[ends]
    if turns[0] == turns[1]:
        return None
    slope = (smooth[1] - smooth[0]) / (turns[1] - turns[0])
    at_zero = smooth[0] - slope * turns[0]
    if not slope > 0 > at_zero:
        return None
    original, high = round(float(-slope / at_zero)), float(1 - 1 / at_zero)
    if not (1 <= original <= 1 << 27 and 1 < high <= 1e6):
        return None
    return {"low_freq_factor": 1.0, "high_freq_factor": _decimal(high), "original_max_position_embeddings": original}


def _wave_lengths(theta: float, head: int) -> np.ndarray:
    return np.asarray(2 * np.pi * theta ** (np.arange(0, head, 2) / head), np.float64)


def _decimal(value: float) -> float:
    """The decimal number that became ``value`` in float32."""
    return float(f"{value:.7g}")
