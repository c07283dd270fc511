"""GGUF files: what llama.cpp's converter made of a model is turned back into what Hugging Face's files say of it.

Its config, its tensors under their first names, with the rows of queries and keys in their first order, its tokenizer, its
template and its sampling defaults.  Weights are the float32 values that the file's own quantization left.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, InvalidTokenizer, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufModel, open_gguf
from edge_llm.formats.gguf_names import LAYER, WHOLE
from edge_llm.models import describe, load_config
from edge_llm.models.layer import Decoder
from edge_llm.progress import StageProgress, ignore
from edge_llm.sources.gguf_tokenizer import adds_bos, token_texts, tokenizer_json
from edge_llm.sources.hub_gguf import FAMILIES
from edge_llm.sources.hugging_face import digest_files, stamp
from edge_llm.text.chat import TOOL_USE, ChatTemplate
from edge_llm.text.tokenizer import Tokenizer

_FREQUENCIES = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every scaled Llama 3 has; its divisors are held against the file's."""
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 21: "Q2_K_S", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4_MOE",
}  # fmt: skip
_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>",
    "<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
)  # fmt: skip
"""Control tokens that end an answer by their text, as llama.cpp has it."""
_SAMPLING = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty",
}  # fmt: skip


class GgufSource:
    """The model in a GGUF file, or in the parts of one.

    Raises `InvalidModel` for a file that is damaged or makes no sense, `UnsupportedModel` for what does not run here.
    """

    def __init__(self, kind: str, path: str, file: Path) -> None:
        self.kind = kind
        self.path = path
        self.place = str(file)
        self._model = open_gguf(file)
        try:
            self._raw = _config(self._model)
            self.config = _load(self._raw, self._model.where)
            self._model.check_types()
            self._names = _names(self._model)
            _refuse_other_biases(self._names, self._model.where, describe(self.config))
            self._stamps = [stamp(one) for one in self._model.files]
        except BaseException:
            self._model.close()
            raise

    @property
    def quantization(self) -> str:
        """What the file's quantization is called, such as Q4_K_M."""
        label = self._model.pairs.get("general.file_type")
        named = _FILE_TYPES.get(label) if type(label) is int else None
        sizes: Counter[str] = Counter()
        for info in self._model.tensors:
            sizes[info.kind.name] += info.nbytes
        return named or sizes.most_common(1)[0][0]

    @property
    def nbytes(self) -> int:
        """Of all weights in the file."""
        return sum(info.nbytes for info in self._model.tensors)

    @property
    def bits_per_weight(self) -> float:
        weights = sum(int(np.prod(info.shape, dtype=object)) for info in self._model.tensors)
        return 8 * self.nbytes / weights

    def names(self) -> list[str]:
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._model.tensor(self._names.get(name, name)).shape

    def read(self, name: str) -> np.ndarray:
        values = self._model.read(self._names.get(name, name))
        attention = describe(self.config).layers[0].attention
        heads = {"q_proj": attention.heads, "k_proj": attention.kv_heads}
        count = heads.get(name.split(".")[-2]) if self.config.family in ("llama", "mistral") else None
        return values if count is None else _halves(values, count)

    def tokenizer(self) -> Tokenizer:
        files = self.side_files()
        configs = [json.loads(files[name]) for name in ("generation_config.json", "tokenizer_config.json")]
        return Tokenizer.from_bytes(files["tokenizer.json"], configs, self.config.vocab_size, Path(self.place).name)

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        source = self._model.text("tokenizer.chat_template", "")
        if not source:
            return ChatTemplate.default(tokenizer.bos_text if tokenizer.add_bos else "")
        specials = {"bos_token": tokenizer.bos_text, "eos_token": tokenizer.eos_text} | self._special_texts
        return ChatTemplate(source, specials=specials, tool_use=self._tool_use)

    def generation_config(self) -> dict[str, Any]:
        sampling = {theirs: self._model.pairs.get(f"general.sampling.{ours}") for ours, theirs in _SAMPLING.items()}
        found: dict[str, Any] = {
            name: value
            for name, value in sampling.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        }
        bos = self._special("bos")
        return found | ({} if bos is None else {"bos_token_id": bos}) | {"eos_token_id": self._ends}

    def side_files(self) -> dict[str, bytes]:
        files = {
            "tokenizer.json": self._tokenizer_json,
            "config.json": _dumped(self._raw),
            "generation_config.json": _dumped(self.generation_config()),
            "tokenizer_config.json": _dumped({"add_bos_token": adds_bos(self._model)} | self._special_texts),
        }
        template = self._model.text("tokenizer.chat_template", "")
        templates = {"chat_template.jinja": template, TOOL_USE: self._tool_use}
        return files | {name: text.encode() for name, text in templates.items() if text}

    def digest(self, progress: StageProgress = ignore) -> str:
        return digest_files(self._model.files, progress)

    def check_unchanged(self) -> None:
        for path, before in zip(self._model.files, self._stamps, strict=True):
            if stamp(path) != before:
                raise InvalidModel(f"`{shown(path)}` changed during the import; import it again")

    def close(self) -> None:
        self._model.close()

    def __enter__(self) -> GgufSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _tokenizer_json(self) -> bytes:
        return json.dumps(tokenizer_json(self._model, self.config.vocab_size), ensure_ascii=False).encode()

    @cached_property
    def _texts(self) -> list[str]:
        return token_texts(self._model)

    @property
    def _tool_use(self) -> str | None:
        return self._model.text("tokenizer.chat_template.tool_use", "") or None

    def _special(self, name: str) -> int | None:
        """The id of the token for ``name`` (bos, eos, eot, ...), or None."""
        key = f"tokenizer.ggml.{name}_token_id"
        usual = {"bos": 1, "eos": 2}.get(name) if self._model.text("tokenizer.ggml.model") == "llama" else None
        if key not in self._model.pairs and usual is None:
            return None
        found = self._model.integer(key, 0, 2**32 - 1, usual)
        if found == 2**32 - 1:  # how some writers say that there is none
            return None
        if found >= len(self._texts):
            raise InvalidTokenizer(f"{self._model.where}: `{key}` is `{found}`, there are {len(self._texts)} tokens")
        return found

    @cached_property
    def _special_texts(self) -> dict[str, str]:
        named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        ids = {f"{ours}_token": self._special(theirs) for ours, theirs in named.items()}
        return {name: self._texts[number] for name, number in ids.items() if number is not None}

    @cached_property
    def _ends(self) -> list[int]:
        """Tokens that end an answer: those that the file names, and control tokens that are known for it."""
        found = {number for name in ("eos", "eot", "eom") if (number := self._special(name)) is not None}
        kinds = self._model.numbers("tokenizer.ggml.token_type")
        for number, text in enumerate(self._texts):
            if text in _ENDS and kinds is not None and number < len(kinds) and kinds[number] == 3:
                found.add(number)
        return sorted(found)


def _dumped(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def _source_name(name: str) -> str:
    """The name in Hugging Face's files; one that nobody knows stays."""
    stem, _, suffix = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{suffix}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in LAYER:
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.{suffix}"
    return name


def _names(model: GgufModel) -> dict[str, str]:
    """The file's names by those of Hugging Face's files."""
    found: dict[str, str] = {}
    for info in model.tensors:
        if info.name == _FREQUENCIES:
            continue
        if (other := found.setdefault(_source_name(info.name), info.name)) != info.name:
            raise InvalidModel(
                f"{model.where}: `{shown(other)}` and `{shown(info.name)}` are the same tensor; convert the model again"
            )
    return found


def _refuse_other_biases(names: dict[str, str], where: str, decoder: Decoder) -> None:
    """Raise `UnsupportedModel` for a bias that nothing here adds, or where one of several is lacking."""
    linears = [(layer.prefix, linear) for layer in decoder.layers for linear in layer.linears if linear.bias]
    wanted = {f"{prefix}{source.source}.bias" for prefix, linear in linears for source in linear.sources}
    for name, own in names.items():
        if name.endswith(".bias") and name not in wanted:
            raise UnsupportedModel(f"{where}: `{shown(own)}` is added to what the model computes, which does not run here")
    for name in sorted(wanted - names.keys()):
        raise UnsupportedModel(f"{where} has biases, but none for `{shown(name)}`; that does not run here")


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of every head from neighbouring pairs, as llama.cpp turns them, back to two halves."""
    rows = values.shape[0]
    pairs = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _config(model: GgufModel) -> dict[str, Any]:
    """What config.json would say."""
    if (kind := model.text("general.type", "model")) != "model":
        raise UnsupportedModel(f"{model.where} is of the type `{shown(kind)}`, not a model; import the one that it belongs to")
    family = model.text("general.architecture")
    if family not in FAMILIES:
        raise UnsupportedModel(
            f"{model.where} has the architecture `{shown(family)}`, which does not run from GGUF here; these do: "
            f"{', '.join(FAMILIES)}"
        )
    _refuse_what_is_more(model, family)
    heads = model.integer(f"{family}.attention.head_count", 1, 4096)
    hidden = model.integer(f"{family}.embedding_length", 1, 1 << 17)
    head = model.integer(f"{family}.attention.key_length", 1, 1 << 17, max(1, hidden // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := model.integer(f"{family}.{key}", 1, 1 << 17, head)) != head:
            raise UnsupportedModel(f"{model.where}: `{family}.{key}` is `{other}`; only the heads' own size, {head}, runs here")
    embedding = model.tensor("token_embd.weight")
    if len(embedding.shape) != 2:
        raise InvalidModel(f"{model.where}: `token_embd.weight` must have rows and columns, not {list(embedding.shape)}")
    window = model.integer(f"{family}.attention.sliding_window", 0, 1 << 27, 0)
    named = "mistral" if family == "llama" and window else family
    biased = model.has_tensor("blk.0.attn_q.bias")
    theta = _decimal(model.number(f"{family}.rope.freq_base", 1.0, 1e18, 10000.0))
    settings: dict[str, Any] = {
        "model_type": named,
        "architectures": [f"{named.capitalize()}ForCausalLM"],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": model.integer(f"{family}.feed_forward_length", 1, 1 << 20),
        "num_hidden_layers": model.integer(f"{family}.block_count", 1, 1024),
        "num_attention_heads": heads,
        "num_key_value_heads": model.integer(f"{family}.attention.head_count_kv", 1, 4096, heads),
        "head_dim": head,
        "max_position_embeddings": model.integer(f"{family}.context_length", 1, 1 << 27),
        "rms_norm_eps": _decimal(model.number(f"{family}.attention.layer_norm_rms_epsilon", 1e-20, 1.0)),
        "rope_theta": theta,
        "hidden_act": "silu",
        "tie_word_embeddings": not model.has_tensor("output.weight"),
    }
    if family != "qwen2":
        settings |= {"attention_bias": biased}
    if named == "llama":
        settings |= {"mlp_bias": model.has_tensor("blk.0.ffn_down.bias")}
    if window:
        settings |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    if (scaling := _scaling(model, theta, head)) is not None:
        settings["rope_scaling"] = scaling
    return settings


def _refuse_what_is_more(model: GgufModel, family: str) -> None:
    """Raise `UnsupportedModel` for what the architecture's name allows and does not run here."""
    if experts := model.integer(f"{family}.expert_count", 0, 1 << 20, 0):
        raise UnsupportedModel(f"{model.where} is a mixture of `{experts}` experts; those do not run here")
    if not model.flag(f"{family}.attention.causal", True):
        raise UnsupportedModel(f"{model.where} has tokens that see those after them; only causal models run here")
    kind = model.text(f"{family}.rope.scaling.type", "none")
    factor = model.number(f"{family}.rope.scaling.factor", 0.0, 1e9, 1.0)
    factor *= model.number(f"{family}.rope.scale_linear", 0.0, 1e9, 1.0)
    if kind not in ("none", "linear") or factor != 1.0:
        raise UnsupportedModel(
            f"{model.where}: rotary scaling `{shown(kind)}` by `{factor:g}` does not run here; that of Llama 3 does"
        )
    for info in model.tensors:
        if info.name.endswith((".scale", ".input_scale")) or info.name.startswith("rope_factors"):
            raise UnsupportedModel(f"{model.where}: tensor `{shown(info.name)}` changes what others mean; it is not read here")


def _scaling(model: GgufModel, theta: float, head: int) -> dict[str, Any] | None:
    """Llama 3's rotary scaling, found again in the divisors that the file has in its place."""
    if not model.has_tensor(_FREQUENCIES):
        return None
    divisors = model.read(_FREQUENCIES).astype(np.float64)
    factor = float(divisors.max())
    if divisors.shape == (head // 2,) and factor == 1 and (divisors == 1).all():
        return None
    fits = divisors.shape == (head // 2,) and factor > 1 and np.allclose(divisors, _divisors(theta, head, factor), rtol=1e-4)
    if not fits:
        raise UnsupportedModel(f"{model.where}: rotary frequencies that are not scaled as those of Llama 3 do not run here")
    return {"rope_type": "llama3", "factor": _decimal(factor)} | _LLAMA3


def _divisors(theta: float, head: int, factor: float) -> np.ndarray:
    lengths = 2 * np.pi * theta ** (np.arange(0, head, 2) / head)
    low, high, original = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"], _LLAMA3["original_max_position_embeddings"]
    smooth = np.clip((original / lengths - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float64)


def _decimal(value: float) -> float:
    """The decimal number that became ``value`` in float32."""
    return float(f"{value:.7g}")


def _load(raw: dict[str, Any], where: str) -> Any:
    try:
        return load_config(raw)
    except (InvalidModel, UnsupportedModel) as refused:
        raise type(refused)(f"{where}, read as config.json: {refused}") from None
