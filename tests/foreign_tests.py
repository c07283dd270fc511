"""What the runs of other servers' own tests share: a Python for the tests, and the outcomes in pytest's report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree


def python_with(work: Path, needs: Sequence[str]) -> str:
    """A Python with the packages ``needs`` in ``work``, made once."""
    folder = work / "venv"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "-q", *needs], check=True)
        (folder / "ready").touch()
    return str(folder / "bin/python")


def outcomes_in(report: Path, module_of: Callable[[str], str]) -> dict[str, str]:
    """The outcome of each test of a JUnit report by its name: passed, failed or skipped.

    ``module_of`` makes the name of a test's file of its class name, without its ending.
    """
    cases = ElementTree.parse(report).iter("testcase")
    return {f"{module_of(case.get('classname', ''))}.py::{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    kinds = {inner.tag for inner in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def report_lost(before: Iterable[str], passed: Iterable[str]) -> int:
    """Print what passed ``before`` and did not now; 1 if there is any, else 0."""
    lost = sorted(set(before) - set(passed))
    print(*(f"passed before: {name}" for name in lost), sep="\n")
    return 1 if lost else 0
