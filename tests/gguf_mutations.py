"""Good GGUF files of every type and tokenizer, changed at random and opened in this process: ``gguf_mutations.py SEED COUNT``.

Prints a line of JSON for each: what was changed, how it ended, seconds of the processor, MiB above what the process had before.
COUNT 0 opens the hostile files of the reader's tests instead.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from gguf_files import gguf_bytes, model_pairs, model_tensors, tokenizer_pairs
from model_files import random_tensors, tiny_config

from edge_llm.convert.importer import import_model
from edge_llm.errors import EdgeLLMError
from edge_llm.formats.gguf_blocks import TYPES
from edge_llm.sources import open_source

BYTES = [f"<0x{number:02X}>" for number in range(256)]
WORDS = ["\u2581", "h", "e", "l", "o", "he", "ll", "hell", "hello", "\u2581hello", "w", "r", "d", "\u2581w", "world"]
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
IMPORTED_OF = 4
"""One of so many that can be read is imported."""


def good_files() -> list[tuple[str, bytes]]:
    """A tiny model in every type that is read, and with every kind of tokenizer."""
    raw = tiny_config("llama", num_hidden_layers=1, hidden_size=256, intermediate_size=256, vocab_size=288)
    rng = np.random.default_rng(0)
    found = []
    for number, kind in TYPES.items():
        if kind.decode is None:
            continue
        tensors = []
        for name, _, shape, data in model_tensors(raw, random_tensors(raw)):
            if len(shape) == 2 and kind.columns > 1:
                blocks = rng.integers(0, 40, (shape[0] * shape[1] // kind.columns, kind.nbytes), dtype=np.uint8)
                tensors.append((name, number, shape, blocks.tobytes()))
            elif len(shape) == 2 and kind.name == "F16":
                tensors.append((name, number, shape, np.frombuffer(data, "<f4").astype("<f2").tobytes()))
            elif len(shape) == 2 and kind.name == "BF16":
                tensors.append((name, number, shape, (np.frombuffer(data, "<u4") >> 16).astype("<u2").tobytes()))
            else:
                tensors.append((name, 0, shape, data))
        found.append((kind.name, gguf_bytes(model_pairs(raw) | tokenizer_pairs(), tensors)))
    small = tiny_config("qwen2", num_hidden_layers=1, vocab_size=288)
    for kind in ("llama", "t5"):
        words = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
        pairs = model_pairs(small) | {
            "tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": words, "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(WORDS),
            "tokenizer.ggml.scores": [0.0] * 259 + [-float(number) for number in range(len(WORDS))],
            "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}</s>{% endfor %}",
        }  # fmt: skip
        found.append((kind, gguf_bytes(pairs, model_tensors(small, random_tensors(small)))))
    return found


def mutated(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """``data`` with one to three changes, mostly in front of the weights."""
    out = bytearray(data)
    done = []
    header = min(len(data), max(64, data.rfind(b"output_norm.weight") + 64))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        end = min(len(out), header if rng.random() < 0.75 else len(out))
        at, kind = int(rng.integers(end)), int(rng.choice(8, p=[0.3, 0.2, 0.04, 0.04, 0.1, 0.18, 0.08, 0.06]))
        if rng.random() < 0.4:  # where a number or a length is
            named = [match.end() for match in re.finditer(rb"[a-z_]+\.[a-z_.]+", bytes(out[:end]))]
            at = min(len(out) - 9, int(rng.choice(named or [at])) + int(rng.integers(0, 13)))
        done.append(f"{kind}@{at}")
        if kind == 0:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            out[at] = int(rng.integers(256))
        elif kind == 2:
            del out[at : at + int(rng.integers(1, 9))]
        elif kind == 3:
            out[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8))
        elif kind == 4:
            out[at : at + 8] = struct.pack("<Q", int(rng.choice(np.array(EXTREMES, np.uint64))))
        elif kind == 5:
            out[at : at + 4] = struct.pack("<I", int(rng.choice(np.array(EXTREMES, np.uint64))) & 0xFFFFFFFF)
        elif kind == 6:
            length, other = int(rng.integers(1, 200)), int(rng.integers(end))
            out[at : at + length] = out[other : other + length]
        else:
            del out[at:]
        if len(out) < 32:
            break
    return ",".join(done), bytes(out)


def used(file: Path, name: str | None) -> str:
    """Everything that an import asks of ``file``; an import under ``name``, where there is one."""
    try:
        with open_source(file) as source:
            tokenizer = source.tokenizer()
            tokenizer.decode(tokenizer.encode("hello world"))
            source.template(tokenizer).check()
            source.generation_config(), source.side_files(), source.digest()
            if name is None:
                for one in source.names():
                    if not np.isfinite(source.read(one)).all():
                        return f"read what is no number from {one}"
        if name is not None:
            import_model(file, name)
            return "imported"
    except EdgeLLMError as refused:
        return "two lines" if "\n" in str(refused) else f"refused: {type(refused).__name__} {refused}"
    return "read"


def memory(key: str) -> float:
    """MiB of this process: `VmRSS` now, `VmHWM` at most."""
    return int(re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def told(what: str, file: Path, name: str | None = None) -> dict[str, object]:
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now
    before, begun = memory("VmRSS"), time.process_time()
    ended = used(file, name)
    seconds = time.process_time() - begun
    return {"what": what, "ended": ended, "seconds": round(seconds, 3), "mib": round(memory("VmHWM") - before, 1)}


def all_of(seed: int, count: int, folder: Path) -> Iterator[dict[str, object]]:
    goods = good_files()
    file = folder / "m.gguf"
    for name, data in goods:  # whose library code is loaded from here on
        file.write_bytes(data)
        assert used(file, None) == "read", (name, used(file, None))
    file.write_bytes(goods[0][1])
    assert used(file, "first") == "imported"
    if not count:
        from test_formats_gguf import HOSTILE

        for what, (data, _) in HOSTILE.items():
            file.write_bytes(data)
            yield told(what, file)
    rng = np.random.default_rng(seed)
    could_be_read = 0
    for number in range(count):
        name, data = goods[int(rng.integers(len(goods)))]
        what, changed = mutated(data, rng)
        file.write_bytes(changed)
        line = told(f"{name} {what}", file)
        yield line
        could_be_read += line["ended"] == "read"
        if line["ended"] == "read" and could_be_read % IMPORTED_OF == 0:
            yield told(f"{name} {what}", file, f"m{number}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGE_LLM_HOME"] = str(Path(folder) / "home")
        for line in all_of(int(sys.argv[1]), int(sys.argv[2]), Path(folder)):
            print(json.dumps(line), flush=True)
