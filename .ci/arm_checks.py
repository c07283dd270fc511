"""What must be the same bits on x86-64 and ARM: one line per check, its name, a digest and the seconds, parted by tabs.

    python .ci/arm_checks.py            the built-in model answers
    python .ci/arm_checks.py MODEL      that, and all else; MODEL: a Hugging Face folder, which is imported into EDGE_LLM_HOME

Run with the Python of an environment in which the wheel is installed. .ci/arm_wheel runs it on both and compares.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROMPT = "Tell me a short story"
IMPORTED = "imported"
COMMAND = str(Path(sys.executable).with_name("edge-llm"))
PART = "60%"
"""Of the weights in memory: a tiny model has tensors that take half of them."""
IDS = [3 + 7 * i % 200 for i in range(150)]
"""Tokens that every model of these checks has."""


Check = tuple[str, Callable[[], bytes]]
"""A name, and what gives the bytes that are compared."""


def main(model: str | None = None) -> None:
    for name, result in TEXT if model is None else [*TEXT, *everything_else(Path(model))]:
        started = time.monotonic()
        digest = hashlib.sha256(result()).hexdigest()[:16]
        print(name, digest, f"{time.monotonic() - started:.0f}", sep="\t", flush=True)


def everything_else(model: Path) -> Iterator[Check]:
    yield "builtin, streamed run", lambda: answer("builtin", "--memory", PART)
    yield "builtin, sampled run", lambda: answer("builtin", "--temperature", "1.5", "--seed", "1")
    yield "builtin, guided run", lambda: answer("builtin", "--regex", "[a-z]{3,9}( [a-z]{3,9}){6}")
    yield "import, all files", lambda: import_model(model)
    yield "import, run", lambda: answer(IMPORTED)
    yield "import, streamed run", lambda: answer(IMPORTED, "--memory", PART)
    yield "import, emulated card", lambda: answer(IMPORTED, "--device", "emulated:310p")
    yield "import, logits", lambda: logits(IMPORTED)
    yield "builtin, logits", lambda: logits("builtin")


def answer(model: str, *options: str) -> bytes:
    greedy = () if "--temperature" in options else ("--temperature", "0")
    return edge_llm("run", model, PROMPT, "--max-tokens", "60", *greedy, *options)


def edge_llm(*arguments: str) -> bytes:
    return subprocess.run([COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout


def import_model(model: Path) -> bytes:
    folder = Path(edge_llm("import", str(model), "--name", IMPORTED).decode().strip())
    return b"".join(path.name.encode() + path.read_bytes() for path in sorted(folder.iterdir()))


def logits(name: str) -> bytes:
    """Of a prompt: the same by the kernels of every instruction set that this processor has, streamed or not."""
    from edge_llm import kernels
    from edge_llm.config import RuntimeConfig
    from edge_llm.formats.bundle import open_bundle
    from edge_llm.opening.runner import load_int8_runner
    from edge_llm.paths import find_bundle

    found = set()
    for isa in kernels.isa_variants():
        kernels.use_isa(isa)
        for memory in (None, PART):
            runner = load_int8_runner(open_bundle(find_bundle(name)), RuntimeConfig(memory=memory, chunk=64), len(IDS))
            found.add(runner.forward(runner.open(), IDS, wanted=len(IDS)).tobytes())
    if len(found) != 1:
        raise SystemExit(f"{name}: the kernels of {', '.join(kernels.isa_variants())} give different logits")
    return found.pop()


TEXT: list[Check] = [("builtin, greedy run", lambda: answer("builtin"))]

if __name__ == "__main__":
    main(*sys.argv[1:])
