"""Models that a process of its own brings here: progress, errors, stopping at any moment, and the end of whoever asked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stub_hub import environment, hub_of, serving

from edge_llm.config import RuntimeConfig
from edge_llm.convert.apart import fetch
from edge_llm.errors import EdgeLLMError, ModelNotFound, Unavailable, UsageError
from edge_llm.models.known import known_models
from edge_llm.paths import models_folder
from edge_llm.providers.local import LocalCatalogue

pytestmark = pytest.mark.thorough(file=5)

ROOT = Path(__file__).resolve().parents[1]
LARGE = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 24}
"""Of a model whose import takes long enough to be stopped in the middle."""
HOLD = """
import sys
from edge_llm.convert.apart import fetch
running = fetch(sys.argv[1])
for step in running:
    print(running._process.pid, flush=True)
"""


def wait_until(done, seconds=120.0):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.01)


def is_running(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def visible():
    """Names of the models that are here, whole or not."""
    folder = models_folder()
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []


def test_a_model_arrives(tiny_model):
    folder = tiny_model()
    fetching = LocalCatalogue(RuntimeConfig(threads=1)).fetch(f" {folder} ")
    assert fetching.name == ""
    steps = list(fetching)
    assert fetching.name == folder.name and visible() == [folder.name]
    assert {step.stage for step in steps} >= {"layers", "output"}
    assert all(0 <= step.done <= step.total for step in steps)
    assert any(step.seconds_left_in_all is not None for step in steps)
    assert fetching.name in [row.name for row in LocalCatalogue(RuntimeConfig()).rows()]


@pytest.mark.thorough
def test_a_download_tells_its_bytes_its_rate_and_what_is_left_in_all(tiny_model, tmp_path, monkeypatch):
    with serving(hub_of(tiny_model("qwen3", **LARGE), "Qwen/Qwen3-0.6B", pace=0.02)) as hub:
        for name, value in environment(tmp_path, hub.endpoint, HF_HUB_OFFLINE="0").items():
            monkeypatch.setenv(name, value)
        fetching = LocalCatalogue(RuntimeConfig()).fetch("qwen3")
        steps = list(fetching)
    assert fetching.name == "Qwen3-0.6B"
    size = sum(len(data) for data in hub.files.values())
    coming = [step for step in steps if step.stage == "download"]
    assert coming[-1].done == coming[-1].total == size and any(step.per_second for step in coming)
    assert all(step.seconds_left_in_all is not None for step in steps)
    rows = LocalCatalogue(RuntimeConfig()).rows()
    others = [model.name for model in known_models() if "qwen3" in model.name and model.name != "qwen3:0.6b"]
    assert [row.name for row in rows if "qwen3" in row.name.lower()] == ["Qwen3-0.6B", *others]


def test_the_catalogue_has_what_is_here_then_what_could_be(tiny_model, monkeypatch):
    list(fetch(str(tiny_model())))
    for free in (1 << 30, 8 << 30, 64 << 30):
        monkeypatch.setattr("edge_llm.providers.local.free_memory", lambda free=free: free)
        rows = LocalCatalogue(RuntimeConfig()).rows()
        here = [row for row in rows if not row.source]
        assert rows[: len(here)] == here and [row.name for row in here] == ["builtin", tiny_model().name]
        offered = rows[len(here) :]
        assert [row.source for row in offered] == [model.repository for model in known_models()]
        assert all(row.size > 0 and row.precision == "int8" for row in offered)
        assert [row.name for row in offered if row.download <= row.size] == ["gpt-oss:20b"]  # its experts come in 4 bits
        small, large = (row for row in offered if row.name in ("qwen3:0.6b", "llama3.1:8b"))
        assert small.fits is (free > 1 << 30) and large.fits is (free > 8 << 30)


def test_a_known_name_that_is_not_here_is_told_how_to_come():
    with pytest.raises(ModelNotFound, match="`qwen3` is not here yet: `/pull qwen3` downloads Qwen/Qwen3-0.6B \\(1.5 GB\\)"):
        LocalCatalogue(RuntimeConfig()).check("qwen3")
    with pytest.raises(ModelNotFound, match="no model `nonsense`"):
        LocalCatalogue(RuntimeConfig()).check("nonsense")


def test_a_trained_model_arrives(stories_folder):
    fetching = fetch(str(stories_folder))
    assert list(fetching) and fetching.name == "stories260k"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere/at/all", "nowhere"),
        ("--help", "--help"),
        ("org/model", "HF_HUB_OFFLINE|offline"),
        ("a\x1b[31mb", "a"),
        ("a\x00b", "cannot start|null"),
    ],
)
def test_what_the_import_says_is_the_error(source, said):
    with pytest.raises(EdgeLLMError, match=said) as refused:
        list(fetch(source))
    message = str(refused.value)
    assert message.isprintable() and not message.startswith("error") and "Traceback" not in message


def test_nothing_is_no_source():
    with pytest.raises(UsageError, match="hub id"):
        fetch("  ")


def test_a_name_that_is_taken_is_an_error(tiny_model, tmp_path):
    source = tmp_path / "tiny"
    source.symlink_to(tiny_model())
    list(fetch(str(source)))
    source.unlink()
    source.symlink_to(tiny_model("qwen2"))
    with pytest.raises(EdgeLLMError, match="tiny"):
        list(fetch(str(source)))
    assert visible() == ["tiny"]


def test_cancelled_in_the_middle_nothing_is_visible(tiny_model):
    fetching = fetch(str(tiny_model(**LARGE)))
    with pytest.raises(Unavailable, match="stopped"):
        for _ in fetching:
            fetching.cancel()
    assert visible() == [] and not is_running(fetching._process.pid)
    fetching.cancel()  # it has ended: no effect


def test_cancelled_before_it_begins_nothing_is_started(tiny_model):
    fetching = fetch(str(tiny_model()))
    fetching.cancel()
    with pytest.raises(Unavailable, match="stopped"):
        list(fetching)
    assert fetching._process is None


def test_a_process_that_does_not_hear_is_killed(tiny_model, monkeypatch):
    monkeypatch.setattr("edge_llm.convert.apart.GRACE_SECONDS", 0.05)
    fetching = fetch(str(tiny_model(**LARGE)))
    with pytest.raises(Unavailable, match="stopped"):
        for _ in fetching:
            os.kill(fetching._process.pid, signal.SIGSTOP)
            fetching.cancel()
    assert fetching._process.returncode == -signal.SIGKILL and visible() == []


def test_a_process_that_is_killed_says_so(tiny_model):
    fetching = fetch(str(tiny_model(**LARGE)))
    with pytest.raises(EdgeLLMError, match="signal 9.*memory"):
        for _ in fetching:
            os.kill(fetching._process.pid, signal.SIGKILL)
    assert visible() == []


def test_an_iteration_that_is_left_ends_the_process(tiny_model):
    fetching = fetch(str(tiny_model(**LARGE)))
    steps = iter(fetching)
    next(steps)
    steps.close()
    assert not is_running(fetching._process.pid) and visible() == []


def test_the_import_ends_with_its_parent(tiny_model):
    command = [sys.executable, "-c", HOLD, str(tiny_model(**LARGE))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}) as parent:
        importing = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not is_running(importing))
    assert visible() == []
