"""What torch_npu writes to standard output while it is loaded does not come out there, from Python or from C."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_llm.ascend.npu.stdout import own_stdout

pytest.importorskip("torch")

FAKE = """
import ctypes, os, types, torch
print("python said this", flush=False)
os.write(1, b"the driver said this\\n")
ctypes.CDLL(None).puts(b"C held this back")
import sys
if "edge_llm" in sys.modules:
    import edge_llm.ascend.npu.torch_npu_runtime as real
    from edge_llm.ascend.npu.emulated_runtime import EmulatedRuntime
    class Opened(EmulatedRuntime):
        def __init__(self, law):
            os.write(1, b"the card said this\\n")
            super().__init__(law)
    real.TorchNpuRuntime = Opened
torch.npu = types.SimpleNamespace(device_count=lambda: 1, get_device_name=lambda index: "Ascend310P3")
"""


@pytest.fixture
def fake(tmp_path):
    """A folder with a torch_npu that writes to standard output, of torch's own release."""
    import torch

    version = torch.__version__.partition("+")[0]
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text(FAKE)
    about = tmp_path / f"torch_npu-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n")
    return tmp_path


def run(fake, command):
    environment = {**os.environ, "PYTHONPATH": str(fake), "EDGE_LLM_HOME": str(fake / "home")}
    environment.pop("EDGE_LLM_NPU_OPS", None)
    arguments = ["run", "builtin", "Who are you?", "--device", "ascend", "--max-tokens", "4", "--ctx", "128", "--json"]
    return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=120)


def test_the_answer_is_alone_on_stdout(fake):
    ran = run(fake, [sys.executable, "-m", "edge_llm"])
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["timings"]


def test_a_process_without_stdout_is_left_as_it_is(fake):
    script = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'edge_llm', *sys.argv[1:]])"
    assert "Traceback" not in run(fake, [sys.executable, "-c", script]).stderr


def test_what_was_written_is_logged_and_stdout_comes_back(capfd, caplog):
    caplog.set_level(logging.INFO, "edge_llm.devices")
    with own_stdout("somebody"):
        os.write(1, b"a line\nanother \x1b[1mone\n")
    os.write(1, b"an answer\n")
    assert capfd.readouterr().out == "an answer\n"
    assert "somebody: a line" in caplog.text and "\x1b" not in caplog.text


def test_stdout_comes_back_after_a_failure(capfd):
    with pytest.raises(ImportError), own_stdout("somebody"):
        os.write(1, b"lost\n")
        raise ImportError("no library")
    os.write(1, b"an answer\n")
    assert capfd.readouterr().out == "an answer\n"


def test_descriptors_are_given_back():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with own_stdout("somebody"):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before
