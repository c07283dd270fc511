"""What it costs to keep keys and values in fewer bits, apart from the weights, and what it would save.

    python benchmarks/kv.py STORIES --text stories.txt

The built-in model is held against its own held-out chats, and STORIES, a Hugging Face folder, against stories.txt.  Each is
measured as it is, and with a rotation pair of every key head 30 times louder (`plants.py`), imported with folds and without.
Writes ``benchmarks/results/kv.md``: the divergence from the float model, and how many bytes a token of generation reads at a
depth of 4096, which bounds what a scheme can gain in speed.  Minutes for each of the six imports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_llm.bench.kv_quality import DEPTH, KVQuality, measure_kv_quality, reads
from edge_llm.bench.report import markdown_lines
from edge_llm.bench.synthetic import SHAPES
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.quant.kv import FLOAT32, kv_schemes
from edge_llm.sources import open_source

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from plants import PLANTS, PlantedModel  # noqa: E402
from quantization import source_of  # noqa: E402

SCHEMES = (
    "float16,int8,int8-channel,int8-channel/int8,int8-residual,int6,int4,int4-channel,int4-channel/int4,int4-hadamard,"
    "int8/int6,int8/int4,int8/float32,float32/int8,int6/float32,float32/int6,int4/float32,float32/int4,int4-channel/float32"
)
TOKENS = 6000
PLANT = "keys x30"
LAYER_BITS = {"INT8": 8.1, "4 bits": 4.4}
"""Per weight of the layers, everything counted (`edge-llm show`)."""
HEAD_BITS = 8.1


def measured(source: Path, text: Path, fold: bool, folder: Path, calibration: Path | None) -> list[KVQuality]:
    """Every scheme on one import of ``source``."""
    bundle = import_model(source, target=folder, fold=fold, calibration=calibration)
    with open_source(source) as opened:
        tokenizer, context = opened.tokenizer(), opened.config.context
    tokens = tokenizer.encode(text.read_text(), parse_special=True)[:TOKENS]
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    return measure_kv_quality(bundle, RuntimeConfig(threads=1), kv_schemes(SCHEMES), tokens, min(512, context), bos)


def models(stories: Path, text: Path, work: Path) -> Iterator[tuple[str, list[KVQuality]]]:
    """A title and the measurements of every model, as it is and planted, with folds and without."""
    chats = ROOT / "assets" / "builtin_model"
    for name, source, held, calibration in (
        ("built-in model", source_of("builtin", work), chats / "heldout.txt", chats / "calibration.txt"),
        ("stories260k", stories, text, None),
    ):
        planted = PlantedModel(source).write(work / name / "planted", PLANTS[PLANT])
        for what, where, fold in (("", source, True), (f", {PLANT}", planted, True), (f", {PLANT}, no folds", planted, False)):
            print(f"{name}{what}", file=sys.stderr, flush=True)
            yield f"{name}{what}", measured(where, held, fold, work / name / f"bundle{what}", calibration)


def quality_table(found: Sequence[KVQuality]) -> list[str]:
    rows = [
        [
            each.scheme,
            f"{each.key_bits:.2f} / {each.value_bits:.2f}",
            f"{1e3 * each.quality.mean_kl:.3f}",
            f"x{each.quality.perplexity / each.quality.float_perplexity:.5f}",
            f"{each.quality.top1_agreement:.2%}",
        ]
        for each in found
    ]
    return markdown_lines(["keys/values", "bits per key / value", "KL x 1e-3", "perplexity", "top-1"], rows, right=True)


def bytes_table() -> list[str]:
    """Of every scheme the bytes of keys and values at `DEPTH`, and all that a token reads over what it reads with INT8 ones."""
    decoders = {name: describe(config) for name, config in SHAPES.items()}
    rows = []
    for scheme in kv_schemes(SCHEMES):
        if FLOAT32 in scheme.name:
            continue
        cells = []
        for decoder in decoders.values():
            kept = DEPTH * scheme.token_bytes(decoder.attentions)
            shares = [reads(scheme, decoder.attentions, weights) for weights in weight_bytes(decoder)]
            cells.append(" · ".join([f"{kept / 1e6:.0f} MB", *(f"{share:.3f}" for share in shares)]))
        rows.append([scheme.name, *cells])
    return markdown_lines(["keys/values", *decoders], rows, right=True)


def weight_bytes(decoder: Decoder) -> list[float]:
    """That a token reads, for each of `LAYER_BITS`."""
    linears = {name: linear.rows * linear.columns for name, linear in decoder.linears().items()}
    output = linears.pop("output")
    return [(output * HEAD_BITS + sum(linears.values()) * bits) / 8 for bits in LAYER_BITS.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "kv.md")
    asked = parser.parse_args()
    lines = ["Made by `python benchmarks/kv.py`, which says what the tables are.", ""]
    with TemporaryDirectory() as work:
        for title, found in models(asked.stories, asked.text, Path(work)):
            lines += [f"## {title}, {found[0].quality.tokens} tokens", "", *quality_table(found), ""]
    weights = " and ".join(LAYER_BITS)
    lines += [f"## Bytes at a depth of {DEPTH}", ""]
    lines += ["Keys and values, and what a token of generation reads in all over what it reads with INT8 ones,"]
    lines += [f"with weights in {weights}:", "", *bytes_table()]
    asked.results.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
