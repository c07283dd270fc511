"""Inputs without end, made by a seed: no 5xx, no death, no time above 5 s, no growth above 64 MiB while refusing.

`pytest tests/fuzz --fuzz-seconds 600` looks longer, and begins somewhere else unless `--fuzz-seed` says where.
"""

import sys
from pathlib import Path

import pytest
from driver import HERE, Finding
from driver import fuzz as search

TARGETS = sorted(path.stem.removeprefix("target_") for path in HERE.glob("target_*.py"))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target, fuzz, tmp_path: Path):
    findings = []
    for found in search(target, fuzz.seed, fuzz.share, tmp_path):
        if isinstance(found, Finding):
            findings.append(f"{found}\n  again: {sys.executable} {HERE / 'driver.py'} {target} --replay {found.file}")
        else:
            print(found)
    assert not findings, f"{len(findings)} findings, seed {fuzz.seed}\n" + "\n".join(findings)
