"""What every way to quantize the layers costs: one table of methods, schemes and shadows, without and with planted outliers.

    python benchmarks/quantization.py builtin
    python benchmarks/quantization.py FOLDER --text heldout.txt --calibration text.txt

FOLDER is a Hugging Face folder of a small model (all of it, and what its linears read, is held in memory).  Every method of
`quantizers.py` makes stand-ins for the linears of the layers, and the float model runs with them on held-out text; embedding,
attention and output matrix stay in float.  Behind the table stands how well signs (`sensitivity.py`) foretell which linears
suffer most.  Writes `benchmarks/results/quantization.md`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from threadpoolctl import threadpool_limits

from edge_llm.bench.report import markdown_lines
from edge_llm.convert.calibrate import calibration_sequences
from edge_llm.models import describe
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import read_embedding, read_final_norm, read_layer, read_output
from edge_llm.operations.arithmetic import rms_norm
from edge_llm.operations.base import FloatLinear, LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear as ModelLinear
from edge_llm.paths import builtin_bundle
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.quality import Quality, log_softmax
from edge_llm.sources import open_source

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from plants import PLANTS, PlantedModel  # noqa: E402
from quantizers import METHODS, SCHEMES, Linear, Method, StandIn, quantized  # noqa: E402
from sensitivity import SIGNS, by_layer_and_kind, rank_correlation  # noqa: E402

PLANTED = "norms and products 1.0, keys and values x30"
"""The plant of `plants.py` that bites everywhere."""
AS_IT_IS = "nothing"
TEXTS = ROOT / "assets" / "builtin_model"
MOST_TOKENS = 12288
"""Of the calibration text, and of the held-out text."""

StandIns = Mapping[str, StandIn]
"""Of some linears, by their full names."""


@dataclass(frozen=True)
class Texts:
    """What the methods see, and what they are held against."""

    calibration: str
    heldout: str


class Study:
    """A float model in memory, what its linears read on calibration text, and its predictions on held-out text."""

    def __init__(self, source: Path, texts: Texts) -> None:
        with open_source(source) as opened:
            decoder, tokenizer = describe(opened.config), opened.tokenizer()
            self._layers: list[Layer] = list(decoder.layers)
            self._weights: list[LayerWeights] = [read_layer(opened, layer) for layer in decoder.layers]
            self._embedding = read_embedding(opened, decoder)
            self._gain, self._eps = read_final_norm(opened, decoder), decoder.norm.eps
            self._output = read_output(opened, decoder)
            some, self._heldout = (
                calibration_sequences(text, tokenizer, opened.config, MOST_TOKENS)
                for text in (texts.calibration, texts.heldout)
            )
        self._tables = RopeTables(max(len(ids) for ids in [*some, *self._heldout]))
        self.linears = self._calibrated(some)
        self.tokens = sum(len(ids) for ids in some)
        self._states = [self._run(ids, {}) for ids in self._heldout]

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self._layers)

    @property
    def value_rows(self) -> int:
        """The last rows of every `qkv`, which make values."""
        attention = self._layers[0].attention
        return attention.kv_heads * attention.head_dim

    def _calibrated(self, sequences: Sequence[np.ndarray]) -> dict[str, Linear]:
        """Every linear of the layers, by its full name."""
        found = {
            f"layers.{index}.{linear.name}": ChannelStatistics(linear.columns, f"layers.{index}.{linear.name}")
            for index, layer in enumerate(self._layers)
            for linear in layer.linears
        }
        for ids in sequences:
            self._run(ids, {}, lambda name, x: found[name].add(x))
        weights = {
            f"layers.{index}.{name}": linear.weight
            for index, layer in enumerate(self._weights)
            for name, linear in layer.linears.items()
        }
        return {name: Linear(name, weights[name], seen) for name, seen in found.items()}

    def _run(
        self, ids: np.ndarray, stand_ins: StandIns, observe: Callable[[str, np.ndarray], None] | None = None
    ) -> np.ndarray:
        """The last hidden states float32 [T, hidden], normed."""
        x = self._embedding[ids]
        for index, (layer, weights) in enumerate(zip(self._layers, self._weights, strict=True)):

            def apply(linear: ModelLinear, parts: FloatLinear, x: np.ndarray, prefix: str = f"layers.{index}.") -> np.ndarray:
                if observe:
                    observe(prefix + linear.name, x)
                stand_in = stand_ins.get(prefix + linear.name)
                y = x @ parts.weight.T if stand_in is None else stand_in(x)
                return y if parts.bias is None else y + parts.bias

            x = layer_forward(x, layer, weights, self._tables, apply=apply)
        return rms_norm(x, self._gain, self._eps)

    def quality(self, stand_ins: StandIns) -> Quality:
        """How near the predictions stay to the float model's where some linears are replaced."""
        nll = wanted_nll = divergence = 0.0
        same = count = 0
        for ids, states in zip(self._heldout, self._states, strict=True):
            wanted, found = (log_softmax(x[:-1] @ self._output.T) for x in (states, self._run(ids, stand_ins)))
            rows, targets = np.arange(len(ids) - 1), ids[1:]
            nll -= float(found[rows, targets].sum())
            wanted_nll -= float(wanted[rows, targets].sum())
            divergence += float((np.exp(wanted) * (wanted - found)).sum())
            same += int((found.argmax(1) == wanted.argmax(1)).sum())
            count += len(rows)
        return Quality(
            float(np.exp(nll / count)), float(np.exp(wanted_nll / count)), divergence / count, same / count, count
        )


@dataclass(frozen=True)
class Row:
    """One way to quantize all linears of the layers of one model."""

    plant: str
    method: str
    scheme: str
    shadow: bool
    bits: float
    """Per weight of the layers, all counted."""
    exact: float
    """The share of input values that a shadow keeps from being rounded."""
    seconds: float
    """Of processor time that quantizing took, after calibration."""
    kl: float
    perplexity: float
    """Relative to the float model's."""
    top1: float


def measured(study: Study, plant: str, methods: Mapping[str, Method]) -> Iterator[Row]:
    """Every method in every scheme, with shadows and without."""
    weights = sum(linear.weight.size for linear in study.linears.values())
    for method in methods:
        for scheme in SCHEMES:
            for shadow in (True, False):
                start = time.process_time()
                made = {name: quantized(one, methods[method], scheme, shadow) for name, one in study.linears.items()}
                seconds = time.process_time() - start
                bits = 8 * sum(one.nbytes for one in made.values()) / weights
                exact = float(np.mean([one.exact_share for one in made.values()]))
                found = study.quality(made)
                rise = found.perplexity / found.float_perplexity
                yield Row(plant, method, scheme, shadow, bits, exact, seconds, found.mean_kl, rise, found.top1_agreement)


@dataclass(frozen=True)
class Harm:
    """What each linear costs where it alone is quantized, and how well signs foretell that."""

    plant: str
    way: str
    kl: Mapping[str, float]
    """By the linears' names."""
    foretold: Mapping[str, float]
    """Rank correlation of every sign with it."""


WAYS = {"w4": ("folds, GPTQ", "w4", True), "plain int8": ("round to nearest", "int8", False)}
"""Method, scheme and shadow with which one linear is quantized: as import does it, and as those did who named the signs."""
PRODUCT = "KL of its layer times KL of its kind"


def harms(study: Study, plant: str) -> Iterator[Harm]:
    """Every linear alone, in both ways."""
    for way, (method, scheme, shadow) in WAYS.items():
        made = {name: quantized(one, METHODS[method], scheme, shadow) for name, one in study.linears.items()}

        def measure(names: Sequence[str], made: StandIns = made) -> float:
            return study.quality({name: made[name] for name in names}).mean_kl

        kl = {name: measure([name]) for name in made}
        signs = {sign: {name: of(one, made[name]) for name, one in study.linears.items()} for sign, of in SIGNS.items()}
        signs[PRODUCT] = by_layer_and_kind(measure, list(made))
        foretold = {sign: rank_correlation(list(found.values()), list(kl.values())) for sign, found in signs.items()}
        yield Harm(plant, way, kl, foretold)


MOST_HARMED = 8
"""Linears in the table of those that cost most."""


def harm_table(found: Sequence[Harm]) -> str:
    """Rank correlations by sign, and the linears that cost most, as Markdown."""
    heads = [f"{harm.way}{'' if harm.plant == AS_IT_IS else ', planted'}" for harm in found]
    rows = [[sign, *(f"{harm.foretold[sign]:+.2f}" for harm in found)] for sign in found[0].foretold]
    lines = markdown_lines(["sign", *heads], rows)
    lines += ["", "The linears that cost most alone (KL x 1000):", ""]
    most = [sorted(harm.kl, key=lambda name: -harm.kl[name])[:MOST_HARMED] for harm in found]
    cells = [[f"{name} {1000 * harm.kl[name]:.2f}" for name in names] for harm, names in zip(found, most, strict=True)]
    return "\n".join(lines + markdown_lines(heads, zip(*cells, strict=True)))


NUMBERS = ["bits", "exact", "KL x 1000", "perplexity", "top-1"]
HEAD = ["method", "weights", "shadow", "import s", *NUMBERS]
PLANTED_HEAD = [f"planted: {NUMBERS[0]}", *NUMBERS[1:]]


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown: a line for the model as it is and the same with outliers planted."""
    plants = list(dict.fromkeys(row.plant for row in rows))
    by_plant = [[row for row in rows if row.plant == plant] for plant in plants]
    lines = []
    for same in zip(*by_plant, strict=True):
        first = same[0]
        cells = [first.method, first.scheme, "on" if first.shadow else "off", f"{first.seconds:.1f}"]
        lines.append([*cells, *(number for row in same for number in _numbers(row))])
    return "\n".join(markdown_lines(HEAD + PLANTED_HEAD * (len(plants) - 1), lines))


def _numbers(row: Row) -> list[str]:
    kl = f"{1000 * row.kl:.{2 if row.kl < 0.1 else 0}f}"
    return [f"{row.bits:.2f}", f"{row.exact:.2%}", kl, f"x{row.perplexity:.4f}", f"{row.top1:.1%}"]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def source_of(model: str, work: Path) -> Path:
    """The Hugging Face folder of ``model``; that of the built-in one is put together in ``work``."""
    if model != "builtin":
        return Path(model)
    folder = work / "builtin"
    shutil.copytree(builtin_bundle() / "source", folder)
    for file in builtin_bundle().glob("*.js*"):
        shutil.copy(file, folder)
    shutil.copy(builtin_bundle() / "chat_template.jinja", folder)
    (folder / "manifest.json").unlink()
    return folder


def report(model: str, study: Study, rows: Sequence[Row], found: Sequence[Harm]) -> str:
    """The whole file."""
    float_model = study.quality({})
    return "\n".join([
        f"## {Path(model).name}",
        "",
        f"{len(study.linears)} linears, {study.tokens} tokens of calibration text, {float_model.tokens} held-out predictions, "
        f"float perplexity {float_model.float_perplexity:.3f}; planted: {PLANTED}.",
        "",
        table(rows),
        "",
        "Rank correlation (Spearman) of a sign with the KL that a linear costs when it alone is quantized:",
        "",
        harm_table(found),
        "",
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="`builtin`, or a Hugging Face folder")
    parser.add_argument("--calibration", type=Path, default=TEXTS / "calibration.txt", help="text that methods may see")
    parser.add_argument("--text", type=Path, default=TEXTS / "heldout.txt", help="held-out text; default: the built-in model's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "quantization.md")
    options = parser.parse_args(arguments)
    texts = Texts(options.calibration.read_text("utf-8"), options.text.read_text("utf-8"))
    rows: list[Row] = []
    found: list[Harm] = []
    with TemporaryDirectory() as temporary, threadpool_limits(1):
        source = source_of(options.model, Path(temporary))
        planted = PlantedModel(source).write(Path(temporary) / "planted", PLANTS[PLANTED])
        study = Study(source, texts)
        for plant, one in ((AS_IT_IS, study), (PLANTED, Study(planted, texts))):
            for row in measured(one, plant, METHODS):
                rows.append(row)
                say(f"{plant}: {row.method}, {row.scheme}, shadow {row.shadow}: KL {row.kl:.5f} ({row.seconds:.1f} s)")
            for harm in harms(one, plant):
                found.append(harm)
                say(f"{plant}: every linear alone, {harm.way}")
        text = report(options.model, study, rows, found)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(text)
    print(json.dumps({"methods": [*map(asdict, rows)], "linears": [*map(asdict, found)]}) if options.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
