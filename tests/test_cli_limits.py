"""A process that may have few descriptors or little memory: it runs, or says in one line what it lacks."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def under_limit(kind: int, limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process that may have ``limit`` of ``kind``."""
    return subprocess.run(
        [sys.executable, "-m", "edge_llm", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),
    )


def assert_calm(done: subprocess.CompletedProcess[str]) -> None:
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert (done.returncode, len(errors)) in ((0, 0), (1, 1)), done
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr, done


@pytest.mark.parametrize("descriptors", [5, 7, 9])
def test_few_descriptors(tiny_model: Any, edge_llm_home: Path, descriptors: int) -> None:
    source = str(tiny_model("llama"))
    done = under_limit(resource.RLIMIT_NOFILE, descriptors, "import", source, "--name", "mine", "--shadow", "none")
    assert_calm(done)
    assert done.returncode == 0 or "allow more with `ulimit -n`" in done.stderr
    assert [path.name for path in edge_llm_home.glob("models/*")] == ["mine"] * (done.returncode == 0)


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("mebibytes", [110, 119, 125, 130, 137, 142, 145])
def test_little_memory(mebibytes: int) -> None:
    assert_calm(under_limit(resource.RLIMIT_AS, mebibytes << 20, "run", "builtin", "hi", "-n", "1"))


def test_more_threads_than_the_system_gives() -> None:
    done = under_limit(resource.RLIMIT_AS, 1000 << 20, "run", "builtin", "hi", "-n", "1", "--threads", "1000")
    assert_calm(done)
    assert done.returncode == 0 or "fewer with --threads" in done.stderr or "not enough memory" in done.stderr
