"""Remake the numbers of the README and docs/performance.md: both shapes, two thread counts, llama.cpp in turns with us.

    python benchmarks/remake.py                             about ten minutes on four cores
    python benchmarks/remake.py --peers torch --results benchmarks/results/torch       about five
    python benchmarks/remake.py --weights w4                4-bit weights beside 4-bit peers, about ten
    python benchmarks/remake.py --quick                     the smaller shape without depth, about two
    python benchmarks/remake.py --dry-run                   only say what would be run

Results go to `benchmarks/results/`: a Markdown table and the JSON rows (with their environment) of each command.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ("qwen2.5-0.5b", "llama-1.1b")
PEERS = {
    "int8": "llama.cpp:q8_0,llama.cpp:q4_0-pure",
    "w4": "llama.cpp:q4_0-pure,llama.cpp:q4_0,llama.cpp:q4_k_m,llama.cpp:iq4_xs,genai,openvino,openvino:int4-f32",
}
PROMPTS = {"int8": "128,512,2048", "w4": "128,512"}


def commands(arguments: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """(name of the result, arguments of `edge-llm bench`)."""
    common = ["-r", str(arguments.repetitions), "--roof", "--progress"]
    beside = ["-t", arguments.threads, "--peer", arguments.peers or PEERS[arguments.weights]]
    alone = ["-t", arguments.threads.split(",")[0], "--breakdown"]
    for shape in SHAPES[: 1 if arguments.quick else None]:
        of_shape, name = ["--synthetic", shape, *common], shape
        if arguments.weights != "int8":
            of_shape += ["--weights", arguments.weights, "--head", arguments.weights]
            name = f"{shape}-{arguments.weights}"
        yield f"{name}-d0", [*of_shape, *beside, "-p", PROMPTS[arguments.weights], "-n", "64", "--ttft"]
        if not arguments.quick:
            yield f"{name}-d4096", [*of_shape, *beside, "-p", "0", "-n", "64", "-d", "4096"]
        yield f"{name}-breakdown", [*of_shape, *alone, "-p", "512", "-n", "64", "-d", "0" if arguments.quick else "0,4096"]


def main() -> int:
    """Run every command in a process of its own; the exit code of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="4,2", help="thread counts, a list (default: 4,2)")
    parser.add_argument("--repetitions", type=int, default=3, help="of every test (default: 3)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="folder for tables and rows")
    parser.add_argument("--weights", choices=list(PEERS), default="int8", help="ours: of the layers and the output matrix")
    parser.add_argument("--peers", help="whom to measure beside us, a list; default: those with about as many bits")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    started = time.monotonic()
    for name, options in commands(arguments):
        line = ["bench", *options, "--save", str(arguments.results / f"{name}.json")]
        print(f"edge-llm {shlex.join(line)}", file=sys.stderr, flush=True)
        if arguments.dry_run:
            continue
        (ROOT / arguments.results).mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "edge_llm", *line]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
        if done.returncode:
            return done.returncode
        (ROOT / arguments.results / f"{name}.md").write_text(done.stdout)
        print(done.stdout, flush=True)
    print(f"all of it took {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
