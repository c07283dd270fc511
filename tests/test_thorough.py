"""What a plain `pytest` leaves out: cases marked `thorough`, which files, `-k`, `-m` and `--thorough` bring back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("number", range(6))
def test_of_six(number): ...

@pytest.mark.thorough
def test_slow(): ...

def test_quick(): ...
"""


@pytest.fixture
def ran(pytester: pytest.Pytester):
    """The names of the tests that ``pytest ARGUMENTS`` runs in a folder with `CASES`."""
    shutil.copy(Path(__file__).parent / "conftest.py", pytester.path / "conftest.py")
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "test_cases.py").write_text(CASES)
    pytester.makeini("[pytest]\ntestpaths = tests\nmarkers =\n    thorough\n")

    def run(*arguments: str) -> list[str]:
        result = pytester.runpytest_subprocess("-v", "-p", "no:cacheprovider", "--import-mode=importlib", *arguments)
        words = [line.split() for line in result.outlines if "PASSED" in line]
        return sorted(next(word for word in line if "::" in word).partition("::")[2] for line in words)

    return run


ALL = [*(f"test_of_six[{number}]" for number in range(6)), "test_quick", "test_slow"]
SOME = ["test_of_six[0]", "test_of_six[3]", "test_quick"]


def test_a_plain_run_keeps_some_cases(ran):
    assert ran() == SOME


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("asked", [("--thorough",), ("tests/test_cases.py",), ("-k", "test_"), ("-m", "not test_x")])
def test_what_is_asked_for_runs_whole(ran, asked):
    assert ran(*asked) == ALL


def test_the_processes_of_xdist_agree(ran):
    assert ran("-n", "1", "tests/test_cases.py") == ALL
