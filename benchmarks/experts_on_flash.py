"""A mixture of experts in a quarter of its bytes: speed against the disk, and against llama.cpp, which maps its file.

    python benchmarks/experts_on_flash.py FOLDER                 makes OLMoE's shape there (16 x 64 experts, 8 used; 8 GB), once
    python benchmarks/experts_on_flash.py FOLDER --memory 50%    another budget

The weights are random, in Q4_0, and so are the tokens: all experts are as likely, and nothing that real text repeats is there.
Both sides have a process of their own under the same memory limit of a cgroup: the budget, keys and values, and 15 %, the page
cache included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from block_files import NUMBERS, random_blocks  # noqa: E402
from gguf_files import header, pair_bytes, tensor_entry, tokenizer_pairs  # noqa: E402
from streaming import MemoryGroup, memory_limit  # noqa: E402

from edge_llm.bench.disk import measure_disk  # noqa: E402
from edge_llm.config import RuntimeConfig  # noqa: E402
from edge_llm.convert.allocate import LayerBits  # noqa: E402
from edge_llm.convert.importer import import_model  # noqa: E402
from edge_llm.formats.bundle import Bundle, open_bundle  # noqa: E402
from edge_llm.kernels.blocks import KINDS  # noqa: E402
from edge_llm.opening.machine import this_machine  # noqa: E402
from edge_llm.opening.resolve import resolve  # noqa: E402
from edge_llm.opening.runner import load_runner  # noqa: E402
from edge_llm.resources import usable_cores  # noqa: E402

LAYERS, HIDDEN, EXPERTS, USED, WIDTH, VOCAB, HEADS = 16, 2048, 64, 8, 1024, 50304, 16
KIND, WARM, CONTEXT = "q4_0", 16, 128
BLOCK, BLOCK_BYTES = 32, 18
LOUD = np.float16(32)
"""Embeddings are so much louder than random weights make them, so that a row's experts depend on its token."""


def write_gguf(path: Path) -> None:
    """OLMoE's shape with random weights; the matrices are runs of one pool of blocks."""
    random = np.random.default_rng(0)
    pool = np.frombuffer(random_blocks(KINDS[KIND], EXPERTS * WIDTH, HIDDEN, 1, HIDDEN**-0.5).tobytes(), np.uint8).copy()
    scales = pool.reshape(-1, BLOCK_BYTES)[:, 1]  # codes lie around -0.5: without signs all rows would go to the same experts
    scales ^= random.integers(0, 2, len(scales), np.uint8) << 7
    embedding = np.resize(pool, VOCAB * HIDDEN // BLOCK * BLOCK_BYTES).reshape(-1, BLOCK_BYTES)
    embedding[:, :2] = (embedding[:, :2].copy().view(np.float16) * LOUD).view(np.uint8)
    tensors: list[tuple[str, int, tuple[int, ...], np.ndarray | int]] = []

    def matrix(name: str, *shape: int) -> None:
        tensors.append((name, NUMBERS[KIND], shape, int(random.integers(0, len(pool) // BLOCK_BYTES)) * BLOCK_BYTES))

    def floats(name: str, values: np.ndarray) -> None:
        tensors.append((name, 0, values.shape, values.astype("<f4")))

    tensors.append(("token_embd.weight", NUMBERS[KIND], (VOCAB, HIDDEN), embedding))
    matrix("output.weight", VOCAB, HIDDEN)
    floats("output_norm.weight", np.ones(HIDDEN))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
            floats(f"{block}{name}.weight", np.ones(HIDDEN))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}{name}.weight", HIDDEN, HIDDEN)
        floats(f"{block}ffn_gate_inp.weight", random.standard_normal((EXPERTS, HIDDEN)) / HIDDEN**0.5 * 2)
        for name, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
            matrix(f"{block}ffn_{name}_exps.weight", EXPERTS, *shape)
    table, at = b"", 0
    for name, number, shape, data in tensors:
        table += tensor_entry(name, number, shape[::-1], at)
        at += nbytes_of(shape, data)
    head = header(len(tensors), len(pairs()), 3) + b"".join(pair_bytes(*pair) for pair in pairs().items()) + table
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, _, shape, data in tensors:
            values = data if isinstance(data, np.ndarray) else np.resize(np.roll(pool, -data), nbytes_of(shape, data))
            file.write(values.tobytes())


def nbytes_of(shape: tuple[int, ...], data: np.ndarray | int) -> int:
    """Bytes of a tensor, all of them multiples of 32."""
    return data.nbytes if isinstance(data, np.ndarray) else int(np.prod(shape)) // BLOCK * BLOCK_BYTES


def pairs() -> dict[str, Any]:
    """What the file says of the model."""
    shape = {
        "block_count": LAYERS, "context_length": 4096, "embedding_length": HIDDEN, "feed_forward_length": WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_count": EXPERTS, "expert_used_count": USED,
    }  # fmt: skip
    said = {"general.architecture": "olmoe", "general.file_type": 2} | tokenizer_pairs()
    more = VOCAB - len(said["tokenizer.ggml.tokens"])
    said["tokenizer.ggml.tokens"] = said["tokenizer.ggml.tokens"] + [f"<x{number}>" for number in range(more)]
    said["tokenizer.ggml.token_type"] = said["tokenizer.ggml.token_type"] + [1] * more
    return said | {f"olmoe.{name}": value for name, value in shape.items()}


def tokens(count: int) -> list[int]:
    """Random ones."""
    return list(np.random.default_rng(7).integers(0, VOCAB, count).tolist())


def run_ours(folder: Path, memory: str, count: int) -> dict[str, Any]:
    """Speeds and counts of ``count`` tokens, one after the other."""
    with open_bundle(folder) as bundle:
        runner, _ = load_runner(bundle, RuntimeConfig(memory=memory, threads=usable_cores(), context=CONTEXT), CONTEXT)
        sequence, text = runner.open(), tokens(WARM + count)
        for token in text[:WARM]:
            runner.forward(sequence, [token])
        before, started = runner.look().experts, time.perf_counter()
        for token in text[WARM:]:
            runner.forward(sequence, [token])
        seconds, after = time.perf_counter() - started, runner.look().experts
        counts = {} if before is None or after is None else (after - before).facts
        return {"t/s": count / seconds, **counts}


def run_theirs(file: Path, count: int) -> dict[str, Any]:
    """The speed of llama.cpp."""
    import llama_cpp

    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def mapped() -> Any:
        """Weights as they lie in the file: laid out anew they would all be in memory of their own, which the limit forbids."""
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = mapped
    model = llama_cpp.Llama(str(file), n_ctx=CONTEXT, n_threads=usable_cores(), verbose=False, n_batch=64)
    text = tokens(WARM + count)
    for token in text[:WARM]:
        model.eval([token])
    started = time.perf_counter()
    for token in text[WARM:]:
        model.eval([token])
    return {"t/s": count / (time.perf_counter() - started)}


def limited(limit: int, *arguments: str) -> dict[str, Any]:
    """What this script prints with these ``arguments`` in a process that has ``limit`` bytes."""
    group = MemoryGroup(limit)
    try:
        with group.children():
            child = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
        out, _ = child.communicate()
        return dict(json.loads(out.splitlines()[-1])) if child.returncode == 0 else {"failed": child.returncode}
    finally:
        group.close()


def make(folder: Path) -> tuple[Path, Path]:
    """The GGUF file and the bundle, made once."""
    file, bundle = folder / "olmoe-7b-q4_0.gguf", folder / "olmoe-7b-q4_0"
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        write_gguf(file)
    if not bundle.exists():
        import_model(file, target=bundle, weights=LayerBits("blocks"))
    return file, bundle


def report(bundle: Bundle, memory: str, limit: int, rows: list[dict[str, Any]]) -> None:
    """What was measured, as JSON."""
    plan = resolve(RuntimeConfig(memory=memory), this_machine(), bundle).weights
    found = {"weights": plan.total, "budget": plan.budget, "limit": limit, "plan": str(plan.host.experts), "rows": rows}
    print(json.dumps(found, indent=1))


def main() -> int:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--memory", default="25%")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only == "theirs":
        print(json.dumps(run_theirs(arguments.folder, arguments.tokens)))
        return 0
    if arguments.only == "ours":
        print(json.dumps(run_ours(arguments.folder, arguments.memory, arguments.tokens)))
        return 0
    file, folder = make(arguments.folder)
    rows = []
    with open_bundle(folder) as bundle:
        limit = memory_limit(bundle, resolve(RuntimeConfig(memory=arguments.memory), this_machine(), bundle).weights.host)
        more = ("--memory", arguments.memory, "--tokens", str(arguments.tokens), "--only")
        for _ in range(arguments.rounds):
            before = measure_disk(bundle, 2.0)
            ours = limited(limit, str(folder), *more, "ours")
            disk = (before + measure_disk(bundle, 2.0)) / 2
            theirs = limited(limit, str(file), *more, "theirs")
            share = ours["t/s"] * ours["flash_bytes_per_token"] / disk
            rows.append({"disk": disk, "of_disk": share, "ours": ours, "theirs": theirs, "ratio": ours["t/s"] / theirs["t/s"]})
            print(rows[-1], file=sys.stderr, flush=True)
        report(bundle, arguments.memory, limit, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
