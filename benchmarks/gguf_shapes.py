"""GGUF files of real shapes beside llama.cpp on the very same files: random weights, the tokenizer of a file at hand.

    python benchmarks/gguf_shapes.py SmolLM2.Q4_1.gguf                                  two shapes, three types; half an hour
    python benchmarks/gguf_shapes.py SmolLM2.Q4_1.gguf --shapes llama-1.1b --quants q4_0 --bench "-p 512 -n 64 --isa avx2"

--bench is given to `edge-llm bench FILE --peer llama.cpp --no-quality`.  Files are kept in --folder.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_llm.bench.synthetic import SHAPES
from edge_llm.bench.synthetic_gguf import quantize, write_random_gguf
from edge_llm.config import LlamaConfig
from edge_llm.paths import synthetic_folder


def shaped(shape: str, tokens: int) -> LlamaConfig:
    """The shape with as many tokens as the tokenizer has."""
    return replace(SHAPES[shape], vocab_size=tokens)


def copy_tokenizer(reader: Any, writer: Any) -> None:
    """Give ``writer`` what the file of ``reader`` says of its tokenizer."""
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            kinds = list(field.types)
            writer.add_key_value(key, field.contents(), kinds[0], kinds[1] if len(kinds) > 1 else None)


def made(folder: Path, tokenizer: Path, shape: str, quant: str) -> Path:
    """A file of random weights of ``shape`` in ``quant``, written unless it is there."""
    import gguf

    path = folder / f"{shape}-{quant}.gguf"
    if path.exists():
        return path
    reader = gguf.GGUFReader(tokenizer)
    config = shaped(shape, len(reader.fields["tokenizer.ggml.tokens"].data))
    whole = folder / f".{shape}.q8_0"
    temporary = path.with_name(f".{path.name}")
    try:
        write_random_gguf(whole, config, "q8_0", add_tokenizer=lambda writer: copy_tokenizer(reader, writer))
        quantize(whole, temporary, quant)  # q8_0 too: its label then says so
        temporary.replace(path)
    finally:
        whole.unlink(missing_ok=True)
        temporary.unlink(missing_ok=True)
    return path


def first_token(program: list[str], file: Path) -> float:
    """Seconds of `edge-llm run FILE` for one token."""
    started = time.perf_counter()
    subprocess.run([*program, "run", str(file), "Once upon a time", "-n", "1"], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="A GGUF file whose tokenizer the models get.")
    parser.add_argument("--shapes", default="qwen2.5-0.5b,llama-1.1b")
    parser.add_argument("--quants", default="q4_0,q4_k_m,q8_0")
    parser.add_argument("--folder", type=Path, default=synthetic_folder())
    parser.add_argument("--bench", default="-p 512 -n 64 -r 5 --ttft", help="What `edge-llm bench` is told.")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "edge_llm"]
    for shape in asked.shapes.split(","):
        for quant in asked.quants.split(","):
            file = made(asked.folder, asked.tokenizer, shape, quant)
            print(f"\n{file.name}: a first token after {first_token(program, file):.1f} s, laid out unless it was here")
            print(f"{file.name}: a first token after {first_token(program, file):.1f} s, seen before", flush=True)
            peer = ["--peer", "llama.cpp", "--no-quality"]
            subprocess.run([*program, "bench", str(file), *peer, *shlex.split(asked.bench)], check=True)


if __name__ == "__main__":
    main()
