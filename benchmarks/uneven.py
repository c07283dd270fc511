"""How much INT8 loses on a model whose channels are uneven, with and without the folds of import.

    python benchmarks/uneven.py FOLDER --text heldout.txt          a model of yours, as it is and with every plant
    python benchmarks/uneven.py FOLDER --text heldout.txt --as-it-is

FOLDER is a Hugging Face folder of a real model, heldout.txt a text of the kind that it knows (UTF-8).  The first lines of
the table are the model as it is: what an owner of a real model is asked to run and report.  Plants change the channels and
not the float model (`plants.py`).  Results go to ``benchmarks/results/uneven.md`` and to the screen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_llm.bench.quality import compare
from edge_llm.bench.report import markdown_line, markdown_lines
from edge_llm.bench.shares import measure_shares
from edge_llm.cli.shadow import fold_lines, fold_report
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_comparison

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from plants import PLANTS, PlantedModel  # noqa: E402
from shadow import cost_share  # noqa: E402

HEAD = ["model", "folded", "KL", "perplexity", "top-1", "shadow cost", "linears / keys / values / output"]


@dataclass(frozen=True)
class Text:
    """What the imports are held against: the first ``tokens`` tokens of ``text``."""

    text: str
    tokens: int


def cells(label: str, source: Path, folder: Path, text: Text, fold: bool) -> list[str]:
    """A row of the table: one import of ``source`` into ``folder``, held against its float path."""
    bundle = import_model(source, target=folder, fold=fold)
    runtime = RuntimeConfig()
    tokenizer, runner, oracle = load_comparison(bundle, runtime)
    ids = tokenizer.encode(text.text, parse_special=True)[: text.tokens]
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    window = min(512, runner.context)
    found = compare(runner, oracle, ids, window, bos)
    shares = measure_shares(bundle, runtime, ids, window, bos)
    with open_bundle(bundle) as opened:
        cost = cost_share(opened)
    return [
        label,
        "yes" if fold else "no",
        f"{found.mean_kl:.5f}",
        f"x{found.perplexity / found.float_perplexity:.4f}",
        f"{found.top1_agreement:.3f}",
        f"{cost:.1%}",
        " / ".join(f"{share:.5f}" for share in (shares.linears, shares.keys, shares.values, shares.output)),
    ]


def rows(source: Path, plants: Sequence[str], work: Path, text: Text) -> list[list[str]]:
    """The model as it is, then every plant, each without and with folds."""
    found = []
    for number, name in enumerate(plants):
        folder = work / str(number)
        planted = source if name == AS_IT_IS else PlantedModel(source).write(folder / "source", PLANTS[name])
        for fold in (False, True):
            found.append(cells(name, planted, folder / f"bundle-{fold}", text, fold))
            print(markdown_line(found[-1]), file=sys.stderr, flush=True)
    return found


AS_IT_IS = "nothing"
"""The plant that changes nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Import, measure, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a Hugging Face folder")
    parser.add_argument("--text", type=Path, required=True, help="held-out text, UTF-8")
    parser.add_argument("--tokens", type=int, default=12000, help="of the text (default: 12000)")
    parser.add_argument("--as-it-is", action="store_true", help="no plants, only the model")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "uneven.md")
    options = parser.parse_args(arguments)
    text = Text(options.text.read_text("utf-8"), options.tokens)
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        found = rows(options.source, [AS_IT_IS] if options.as_it_is else list(PLANTS), work, text)
        with open_bundle(work / "0" / "bundle-True") as bundle:
            folds = "\n".join(fold_lines(fold_report(bundle)))
    table = "\n".join(markdown_lines(HEAD, found))
    report = f"## {options.source.resolve().name}\n\n{table}\n\nThe model as it is:\n\n```\n{folds}\n```\n"
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(report)
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
