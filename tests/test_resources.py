"""What a start costs: the modules that a runner loads, and the threads that it gets when nobody says."""

import os
import subprocess
import sys

from edge_llm import resources


def test_a_runner_loads_neither_text_nor_float_path():
    script = "import sys, edge_llm.bench.own_start; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split())
    assert "edge_llm.runner.runner" in loaded
    slow = {"jinja2", "tokenizers", "psutil", "numpy.random", "subprocess", "edge_llm.formats.model_folder"}
    assert not loaded & (slow | {"edge_llm.models.reference", "edge_llm.engine.engine"})


def test_hyper_threads_of_a_core_count_once(tmp_path, monkeypatch):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / str(cpu)).write_text(siblings + "\n")
    monkeypatch.setattr(resources, "_TOPOLOGY", str(tmp_path / "{}"))
    monkeypatch.setattr(resources, "cpu_quota", lambda: None)
    for allowed, expected in [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({1}, 1), ({0, 1, 7}, 3)]:  # 7 hides its siblings
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert resources.usable_cores() == expected


def test_the_quota_of_a_container_bounds_the_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(resources, "cpu_quota", lambda: 1)
    assert resources.usable_cores() == 1
