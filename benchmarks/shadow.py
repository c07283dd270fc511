"""What shadows buy and what they cost: one model imported with none and with all.

    python benchmarks/shadow.py                                   random weights with planted outliers at the 0.5B shape
    python benchmarks/shadow.py FOLDER --text heldout.txt         a model of yours, held against its float path as well

Writes `benchmarks/results/shadow.md`: per choice the linears that keep a shadow, the divergence from the float model on
held-out text, speed in turns with all others, and the import's seconds.  About four minutes on
four cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from model_files import random_tensors, tiny_config, write_model  # noqa: E402

from edge_llm.bench.environment import environment  # noqa: E402
from edge_llm.bench.measure import Measurement, OwnRunner, Test  # noqa: E402
from edge_llm.bench.quality import compare  # noqa: E402
from edge_llm.bench.report import markdown_lines  # noqa: E402
from edge_llm.config import RuntimeConfig  # noqa: E402
from edge_llm.convert.importer import Outliers, import_model  # noqa: E402
from edge_llm.formats.bundle import Bundle, open_bundle  # noqa: E402
from edge_llm.opening.load import load_comparison  # noqa: E402
from edge_llm.opening.runner import load_runner  # noqa: E402
from edge_llm.quant.profile import OutlierProfile  # noqa: E402
from edge_llm.quant.quality import Quality  # noqa: E402
from edge_llm.quant.shadow import product_cost, shadow_cost  # noqa: E402

TESTS = (Test(512, 0), Test(0, 64))
SHAPE = {
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
PLANTED = 3
"""Loud channels in each norm of every fourth layer."""
LOUDER = 60.0
QUIETER = 0.005


@dataclass(frozen=True)
class Imported:
    """One choice of shadows."""

    label: str
    folder: Path
    seconds: float


def random_source(folder: Path) -> Path:
    """Random weights at the shape of a 0.5B model, with channels that naive INT8 cannot hold.

    What a layer adds is made small beside what it is added to, as in trained models: else every rounding error grows from
    layer to layer, and even all shadows cost some percent.
    """
    config = tiny_config("qwen2", **SHAPE)
    tensors = random_tensors(config)
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] *= QUIETER
    random = np.random.default_rng(1)
    for layer in range(0, SHAPE["num_hidden_layers"], 4):
        for norm, parts in (("input_layernorm", ("self_attn.q", "self_attn.k", "self_attn.v")),
                            ("post_attention_layernorm", ("mlp.gate", "mlp.up"))):  # fmt: skip
            channels = random.choice(SHAPE["hidden_size"], PLANTED, replace=False)
            tensors[f"model.layers.{layer}.{norm}.weight"][channels] *= LOUDER
            for part in parts:
                tensors[f"model.layers.{layer}.{part}_proj.weight"][:, channels] /= LOUDER
    return write_model(folder, config, tensors=tensors, dtype="BF16")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def import_all(source: Path, folder: Path) -> list[Imported]:
    found = []
    for mode in ("none", "full"):
        started = time.perf_counter()
        path = import_model(source, target=folder / mode, outliers=Outliers(mode), turn=0, overwrite=True, notice=say)
        found.append(Imported(mode, path, time.perf_counter() - started))
        say(f"{mode}: imported in {found[-1].seconds:.0f} s")
    return found


def speeds(imported: list[Imported], threads: int, repetitions: int) -> list[list[Measurement]]:
    """Per test the measurements of all choices, taken in turns whose order is drawn anew every time."""
    runtime = RuntimeConfig(threads=threads)
    contestants = []
    for one in imported:
        bundle = open_bundle(one.folder)
        runner, _ = load_runner(bundle, runtime, max(test.tokens for test in TESTS))
        contestants.append(OwnRunner(runner, bundle.config.vocab_size))
    random = np.random.default_rng(0)
    found = []
    for test in TESTS:
        for contestant in contestants:
            contestant.run(test.warm_up)
        seconds: list[list[float]] = [[] for _ in contestants]
        for _ in range(repetitions):
            for number in random.permutation(len(contestants)):
                seconds[number].append(contestants[number].run(test))
        found.append([Measurement(test, tuple(taken)) for taken in seconds])
    return found


def cost_share(bundle: Bundle) -> float:
    """The shadows' predicted time over that of the INT8 products."""
    shapes = bundle.decoder.linears()
    profile = OutlierProfile.from_fields(bundle.manifest["profile"])
    product = sum(product_cost(shape.rows, shape.columns) for shape in shapes.values())
    kept = [name for name, shadow in bundle.shadows.items() if shadow != "none"]
    shadows = (
        shadow_cost(shapes[name].rows, shapes[name].columns, profile.linears[name].hot, profile.linears[name].overflow)
        for name in kept
    )
    return sum(shadows) / product


def divergence(bundle: Bundle) -> str:
    """The KL on the held-out text that import runs, in thousandths of a nat."""
    found = OutlierProfile.from_fields(bundle.manifest["profile"]).held_out
    return f"{1000 * found['mean_kl']:.2f}" if found else ""


def heldout(one: Imported, text: str, threads: int) -> Quality:
    tokenizer, runner, oracle = load_comparison(one.folder, RuntimeConfig(threads=threads))
    return compare(runner, oracle, tokenizer.encode(text, parse_special=True)[:12000], 512, tokenizer.bos_id)


def table(imported: list[Imported], measured: list[list[Measurement]], quality: list[Quality]) -> str:
    """The choices as Markdown; speeds as ratios to the first, which has no shadow."""
    head = ["shadows", "none / cold / full", "hot share", "predicted cost", "KL x 1000"]
    head += [f"{column} {test.label}" for test in TESTS for column in ("t/s", "vs none (median / best)")] + ["import s"]
    head += ["ratio", "KL", "top-1"] if quality else []
    rows = []
    for number, one in enumerate(imported):
        with open_bundle(one.folder) as bundle:
            kinds = Counter(bundle.shadows.values())
            hot = [(bundle.tensors[n].shape[0], bundle.columns(n.removesuffix(".hot_index")))
                   for n in bundle.tensors if n.endswith(".hot_index")]  # fmt: skip
            cells = [one.label, " / ".join(str(kinds[kind]) for kind in ("none", "cold", "full"))]
            cells += [f"{sum(h for h, _ in hot) / sum(k for _, k in hot):.2%}", f"{cost_share(bundle):.1%}", divergence(bundle)]
        for all_of_test in measured:
            ours, plain = all_of_test[number].speeds, all_of_test[0].speeds
            ratios = np.median(ours) / np.median(plain), ours.max() / plain.max()
            cells += [f"{np.median(ours):.1f}", f"{ratios[0]:.3f} / {ratios[1]:.3f}"]
        cells += [f"{one.seconds:.0f}"]
        if quality:
            q = quality[number]
            cells += [f"{q.perplexity / q.float_perplexity:.4f}", f"{q.mean_kl:.5f}", f"{q.top1_agreement:.3f}"]
        rows.append(cells)
    return "\n".join(markdown_lines(head, rows))


def main() -> int:
    """Import, measure, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, help="a Hugging Face folder (default: random, 0.5B)")
    parser.add_argument("--text", type=Path, help="held-out text for perplexity, KL and top-1 agreement")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--work", type=Path, help="folder for the models, kept (default: a temporary one)")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "shadow.md")
    arguments = parser.parse_args()
    with TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        source = arguments.source or work / "source"
        if not source.exists():
            random_source(source)
        imported = import_all(source, work)
        measured = speeds(imported, arguments.threads, arguments.repetitions)
        text = arguments.text.read_text() if arguments.text else None
        quality = [heldout(one, text, arguments.threads) for one in imported] if text else []
        name = source.resolve().name if arguments.source else "random weights with planted outliers, 0.5B shape"
        where = environment()
        machine = f"{where['cpu']}, {where['isa']}, {arguments.threads} threads, medians of {arguments.repetitions} repetitions"
        report = f"## {name}\n\n{table(imported, measured, quality)}\n\nMeasured on {machine}.\n"
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(report)
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
