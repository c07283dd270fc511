"""A stranger's path with an installed edge-llm: a name that is not here, a hub on loopback, an answer.

    PYTHONPATH=tests python .ci/stranger.py EDGE_LLM

Prints what the stranger sees, and fails where a step does not say what it does and how long it takes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from model_files import tiny_config, write_model
from stub_hub import environment, hub_of, serving

STEPS = ("asking the hub for", "qwen3 is Qwen/Qwen3-0.6B", "download ", "calibration", "layers", "ready: ")
"""Beginnings of the lines on stderr, in their order."""


def main(edge_llm: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        model = write_model(home / "published", tiny_config("qwen3"))
        with serving(hub_of(model, "Qwen/Qwen3-0.6B")) as hub:
            around = environment(home / "hub", hub.endpoint, EDGE_LLM_HOME=str(home / "edge-llm"))
            del around["PYTHONPATH"]  # it is installed
            command = [edge_llm, "run", "qwen3", "hello", "--yes", "-n", "4"]
            print("$", " ".join(["edge-llm", *command[1:]]), flush=True)
            done = subprocess.run(
                command, env=around, cwd=home, stdin=subprocess.DEVNULL, capture_output=True,
                encoding="utf-8", errors="replace", timeout=300,
            )  # fmt: skip
    print(done.stderr + done.stdout, flush=True)
    if done.returncode or not done.stdout.strip():
        sys.exit(f"no answer (exit code {done.returncode})")
    lines = iter(done.stderr.splitlines())
    for step in STEPS:
        if not any(line.startswith(step) for line in lines):
            sys.exit(f"the step `{step}` says nothing, or comes too late")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
