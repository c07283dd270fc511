"""What an adapter costs a request: decode and prompt of a synthetic shape with random adapters of all linears, beside none.

python benchmarks/adapters.py --shape qwen2.5-0.5b --rank 16
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edge_llm.bench.synthetic import find_shape, synthetic_bundle
from edge_llm.config import RuntimeConfig
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.safetensors import safetensors_header
from edge_llm.models.weights import layer_shapes
from edge_llm.opening.adapters import open_adapters
from edge_llm.opening.runner import load_int8_runner
from edge_llm.paths import name_of
from edge_llm.runner.base import Segment
from edge_llm.runner.runner import Int8Runner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("-r", "--rounds", type=int, default=8)
    asked = parser.parse_args()
    bundle = open_bundle(synthetic_bundle(find_shape(asked.shape), asked.weights))
    with tempfile.TemporaryDirectory() as folder:
        write_random_adapter(Path(folder), bundle, asked.rank)
        adapters = open_adapters([f"a={folder}"], bundle, name_of(bundle.folder))
        runner = load_int8_runner(bundle, RuntimeConfig(), 1100, adapters)
    for name, measure in (("decode", decoded), ("prompt of 512", prompted)):
        pairs = [pair for _ in range(asked.rounds) for pair in measure(runner)]
        alone, adapted = (median(found) for found in zip(*pairs, strict=True))
        share = median(one / another for another, one in pairs)
        print(f"{name}: {1e3 * alone:.2f} ms, with an adapter {1e3 * adapted:.2f} ms; x {share:.3f} in the median pair")


def write_random_adapter(folder: Path, bundle: Bundle, rank: int) -> None:
    """A PEFT adapter of all linears of ``bundle``'s layers."""
    random, named = np.random.default_rng(0), dict[str, np.ndarray]()
    for layer in bundle.decoder.layers:
        for name, shape in layer_shapes(layer).items():
            if name.endswith("_proj.weight"):
                module = f"base_model.model.{name.removesuffix('.weight')}"
                named[f"{module}.lora_A.weight"] = random.standard_normal((rank, shape[1])).astype(np.float16)
                named[f"{module}.lora_B.weight"] = (random.standard_normal((shape[0], rank)) / 1024).astype(np.float16)
    header = safetensors_header((name, "F16", values.shape) for name, values in named.items())
    (folder / "adapter_model.safetensors").write_bytes(header + b"".join(values.tobytes() for values in named.values()))
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def decoded(runner: Int8Runner) -> list[tuple[float, float]]:
    """The seconds of 24 pairs of steps, without an adapter and with one, behind prompts of 32 tokens."""
    both = [runner.memory.open((), adapter) for adapter in (0, 1)]
    for sequence in both:
        runner.run([Segment(sequence, range(3, 35))])
    steps = [[_timed(runner, Segment(sequence, [token])) for sequence in both] for token in range(25)]
    for sequence in both:
        sequence.close()
    return [(alone, adapted) for alone, adapted in steps[1:]]


def prompted(runner: Int8Runner) -> list[tuple[float, float]]:
    """The same of a prompt each."""
    both = [runner.memory.open((), adapter) for adapter in (0, 1)]
    alone, adapted = (_timed(runner, Segment(sequence, range(3, 515))) for sequence in both)
    for sequence in both:
        sequence.close()
    return [(alone, adapted)]


def _timed(runner: Int8Runner, segment: Segment[Any]) -> float:
    started = time.perf_counter()
    runner.run([segment])
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
