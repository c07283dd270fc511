"""The fuzzing finds what it looks for: planted errors, deaths and growth."""

import json
from pathlib import Path

import pytest
from driver import Finding, fuzz

PLANTED = """
import os, signal

class Target:
    def make(self, random):
        self.number = getattr(self, "number", -1) + 1
        return {{"text": str(random.random())}}

    def run(self, made):
        if self.number == 7:
            {wrong}
        return False
"""
WRONG = {
    "raised": ("raise ValueError(made['text'])", "ValueError: 0."),
    "died": ("os.kill(os.getpid(), signal.SIGSEGV)", "died with -11"),
    "ended": ("os._exit(0)", "died with 0"),
    "grew": ("bytearray(100 << 20)", "MiB while it was refused"),
    "kept": ("self.much = os.urandom(1) * (200 << 20)", "MiB while it was refused"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_planted_is_found(wrong, tmp_path, monkeypatch):
    """After a death it goes on behind the input, whose number is planted again in the new process."""
    code, said = WRONG[wrong]
    (tmp_path / "target_planted.py").write_text(PLANTED.format(wrong=code))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    budgets = (0.8, 4, 20)  # seconds: a busy machine may not come to the planted input at once
    found = (each for seconds in budgets for each in fuzz("planted", 0, seconds, tmp_path) if isinstance(each, Finding))
    first = next(found)
    assert said in first.what
    assert set(json.loads(Path(first.file).read_text())) == {"text"}
