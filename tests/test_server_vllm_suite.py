"""How many of vLLM's own tests pass, as `tests/vllm_suite/run.py` found last, and what its stand-ins ask for."""

import json
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent / "vllm_suite"
LEAST = 80


def test_the_count_of_vllm_s_own_tests_does_not_fall():
    """vLLM | all | At least 80 of its own tests of endpoints pass, and each other has its reason."""
    found = json.loads((FOLDER / "results.json").read_text())
    assert len(found["passed"]) >= LEAST
    assert len(found["passed"]) + sum(found["others"].values()) == found["total"]
    assert not [name for name in found["passed"] if "lora" in name], "the base model answers for adapters"


def test_the_stand_in_says_the_same_in_our_flags(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("VLLM_STAND_IN_MODEL", "smollm2")
    from flags import arguments

    given = ["--max-model-len", "10100", "--served-model-name", "a", "b", "--enforce-eager", "--dtype", "bfloat16"]
    found = arguments("Qwen/Qwen3-0.6B", given, 5, {"VLLM_API_KEY": "secret"})
    assert found[:2] == ["serve", "smollm2"]
    pairs = list(pairwise(found))
    for pair in (("--port", "5"), ("--ctx", "8192"), ("--alias", "a"), ("--alias", "b"), ("--api-key", "secret")):
        assert pair in pairs
    assert ("--alias", "Qwen/Qwen3-0.6B") in list(pairwise(arguments("Qwen/Qwen3-0.6B", [], 5, {})))
