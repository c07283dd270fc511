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
from edge_llm.formats.gguf import open_gguf
from edge_llm.formats.gguf_blocks import BlockType
from edge_llm.models import describe, load_config
from edge_llm.progress import StageProgress, ignore
from edge_llm.sources.gguf_config import config_of
from edge_llm.sources.gguf_encoders import with_pooling
from edge_llm.sources.gguf_tensors import GgufTensors
from edge_llm.sources.gguf_tokenizer import adds_bos, token_texts, tokenizer_json
from edge_llm.sources.hugging_face import digest_files, stamp, stamps_of
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.template_files import TOOL_USE
from edge_llm.text.tokenizer import Tokenizer

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 21: "Q2_K_S", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4_MOE",
}  # fmt: skip
_ENDS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
    "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<|tool_response>", "<|observation|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
))  # fmt: skip
"""Control tokens that end an answer by their text, as llama.cpp has it; a repository's configs may name fewer of them.

`<|observation|>` is GLM's: a tool's result comes next, as its repository's config says and llama.cpp does not.

Text that is no control token ends nothing here: `</s>` is HTML to Gemma.
"""
_PART_ENDS = (("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>"))
"""Where both are there, `<|end|>` ends a part of an answer."""
_CONTROL = 3
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
            self._raw = config_of(self._model)
            self.config = with_pooling(_load(self._raw, self._model.where), self._model)
            self._model.check_types()
            self._tensors = GgufTensors(self._model, describe(self.config))
            self._stamps = [stamp(one) for one in self._model.files]
            self.stamps = stamps_of(self._model.files)
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
        return self._tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def read(self, name: str) -> np.ndarray:
        return self._tensors.read(name)

    def block_type(self, name: str) -> BlockType:
        return self._tensors.block_type(name)

    def raw_rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        return self._tensors.raw_rows(name, numbers)

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
        return _compact(tokenizer_json(self._model, self.config.vocab_size))

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
        controls = () if kinds is None else zip(self._texts, kinds, strict=False)
        named = {text: number for number, (text, kind) in enumerate(controls) if text in _ENDS and kind == _CONTROL}
        if any(first in named and second in named for first, second in _PART_ENDS):
            found.discard(named.pop("<|end|>", -1))
        return sorted(found | set(named.values()))


def _compact(value: object) -> bytes:
    """JSON that is read quickly rather than by people."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _dumped(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def _load(raw: dict[str, Any], where: str) -> Any:
    try:
        return load_config(raw)
    except (InvalidModel, UnsupportedModel) as refused:
        raise type(refused)(f"{where}, read as config.json: {refused}") from None
