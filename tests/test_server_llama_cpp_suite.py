"""How many of llama.cpp's own tests pass, as `tests/llama_cpp_suite/run.py` found last, and what its shim asks for."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "llama_cpp_suite"
LEAST = 215


@pytest.fixture(autouse=True)
def shim(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("LLAMA_STAND_IN_MODEL", "stories260k")


def test_the_count_of_llama_cpp_s_own_tests_does_not_fall():
    """llama.cpp | all | At least 215 of its own server tests pass, and each other has its reason."""
    found = json.loads((FOLDER / "results.json").read_text())
    assert len(found["passed"]) >= LEAST
    assert len(found["passed"]) + sum(found["others"].values()) == found["total"]


def test_the_shim_says_the_same_in_our_flags():
    from llama_server import arguments

    found = arguments([
        "--port", "1", "--host", "127.0.0.1", "--alias", "b,a", "--ctx-size", "512", "--parallel", "2", "--no-slots",
        "--metrics",
        "--temp", "0.8", "--seed", "42", "--n-predict", "64", "--reasoning", "off", "--chat-template", "llama3", "--unheard-of",
    ])  # fmt: skip
    assert found[:2] == ["serve", "stories260k"]
    pairs = list(pairwise(found))
    assert [value for flag, value in pairs if flag == "--alias"] == ["a", "b"]
    for pair in (
        ("--ctx", "256"), ("--without", "slots"), ("--reasoning", "off"), ("--chat-template", "llama3"), ("--seed", "42"),
    ):
        assert pair in pairs
    assert ("--without", "metrics") not in pairs
