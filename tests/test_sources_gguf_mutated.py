"""GGUF files that somebody changed: one typed line or a good import, soon and in little memory, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("gguf_mutations.py")
OF_A_SEED = 100
MOST_SECONDS, MOST_MIB = 2.0, 64.0


def outcomes(seed: int, count: int) -> list[dict]:
    command = [sys.executable, str(PROGRAM), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert line["ended"] in ("read", "imported") or line["ended"].startswith("refused: "), line
        assert line["seconds"] <= MOST_SECONDS and line["mib"] <= MOST_MIB, line
    return lines


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_mutations_end_in_one_typed_line_or_a_good_import(seed):
    kinds = Counter(line["ended"].split()[0] for line in outcomes(seed, OF_A_SEED))
    assert kinds["refused:"] >= 20 and kinds["read"] >= 8 and kinds["imported"] >= 2


def test_hostile_files_take_little_memory():
    lines = outcomes(0, 0)
    assert len(lines) >= 45 and all(line["ended"].startswith("refused: ") for line in lines)
