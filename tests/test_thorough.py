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

@pytest.mark.parametrize("number", range(9))
def test_of_nine(number): ...
"""
FEW = """
import pytest

from hypothesis import given, settings, strategies

pytestmark = pytest.mark.thorough(file=2)
found = []

@pytest.mark.parametrize("number", range(2))
def test_a(number): ...

def test_b(): ...

@pytest.mark.thorough
def test_c(): ...

@settings(max_examples=80, database=None)
@given(strategies.integers())
def test_d(number):
    found.append(number)

def test_e():
    assert not found or 80 > len(found)
"""


@pytest.fixture
def ran(pytester: pytest.Pytester):
    """The names of the tests that ``pytest ARGUMENTS`` runs in a folder with `CASES`."""
    shutil.copy(Path(__file__).parent / "conftest.py", pytester.path / "conftest.py")
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "test_cases.py").write_text(CASES)
    (pytester.path / "tests" / "test_few.py").write_text(FEW)
    pytester.makeini("[pytest]\ntestpaths = tests\nmarkers =\n    thorough\n")

    def run(*arguments: str, file: str = "test_cases.py") -> list[str]:
        result = pytester.runpytest_subprocess("-v", "-p", "no:cacheprovider", "--import-mode=importlib", *arguments)
        words = [line.split() for line in result.outlines if "PASSED" in line and f"{file}::" in line]
        return sorted(next(word for word in line if "::" in word).partition("::")[2] for line in words)

    return run


ALL = [
    *(f"test_of_nine[{number}]" for number in range(9)), *(f"test_of_six[{number}]" for number in range(6)), "test_quick",
    "test_slow",
]  # fmt: skip


def numbers(names, test):
    return [int(name[-2]) for name in names if name.startswith(f"{test}[")]


def test_a_plain_run_keeps_some_cases(ran):
    found = ran()
    assert "test_quick" in found and "test_slow" not in found
    assert [number // 3 for number in numbers(found, "test_of_six")] == [0, 1]
    assert [sum(number >= end for end in (2, 4, 6)) for number in numbers(found, "test_of_nine")] == [0, 1, 2, 3]
    assert ran("-n", "2") == found


def test_a_plain_run_keeps_some_tests_of_a_file(ran):
    functions = {name.partition("[")[0] for name in ran(file="test_few.py")}
    assert len(functions) == 2 and functions & {"test_a", "test_b"} and functions & {"test_d", "test_e"}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("asked", [("--thorough",), ("tests/test_cases.py",), ("-k", "test_"), ("-m", "not test_x")])
def test_what_is_asked_for_runs_whole(ran, asked):
    assert ran(*asked) == ALL


def test_the_processes_of_xdist_agree(ran):
    assert ran("-n", "1", "tests/test_cases.py") == ALL
