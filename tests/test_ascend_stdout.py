"""What torch_npu writes to standard output does not come out there, from Python or from C: at its import, later, at the end."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_llm.ascend.npu.stdout import own_stdout

pytestmark = pytest.mark.thorough(file=2)

pytest.importorskip("torch")

FAKE = """
import atexit, ctypes, os, subprocess, sys, types, torch
print("python said this", flush=False)
os.write(1, b"the driver said this\\n")
ctypes.CDLL(None).puts(b"C held this back")

def end():
    print("python said this at the end")
    os.write(1, b"the driver said this at the end\\n")

if "edge_llm" in sys.modules:
    atexit.register(end)
    import edge_llm.ascend.npu.torch_npu_runtime as real
    from edge_llm.ascend.npu.emulated_runtime import EmulatedRuntime
    class Opened(EmulatedRuntime):
        def __init__(self, law):
            os.write(1, b"the card said this\\n")
            super().__init__(law)
        def copy_in(self, card, host):
            os.write(1, b"a copy said this\\n")
            ctypes.CDLL(None).puts(b"C held this back in a copy")
            super().copy_in(card, host)
    if pids := os.environ.get("COMPILER_PID"):
        compiler = subprocess.Popen(["sleep", "60"])
        with open(pids, "w") as file:
            file.write(str(compiler.pid))
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


RUN = ("run", "builtin", "Who are you?", "--device", "ascend", "--max-tokens", "4", "--ctx", "128", "--json")


def run(fake, command, arguments=RUN, **more):
    environment = {**os.environ, "PYTHONPATH": str(fake), "EDGE_LLM_HOME": str(fake / "home"), **more}
    environment.pop("EDGE_LLM_NPU_OPS", None)
    return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("command", [("-m",), ("-u", "-m")], ids=["buffered", "not buffered"])
def test_the_answer_is_alone_on_stdout(fake, command):
    ran = run(fake, [sys.executable, *command, "edge_llm"])
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["timings"]
    assert "a copy said this" in ran.stderr and "the driver said this at the end" in ran.stderr


BENCH = ("bench", "builtin", "--device", "ascend", "-p", "8", "-n", "2", "-r", "1", "--no-warmup", "--json")


@pytest.mark.thorough
def test_measurements_are_alone_on_stdout(fake):
    ran = run(fake, [sys.executable, "-m", "edge_llm"], BENCH)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)


def test_a_process_that_a_library_leaves_behind_keeps_no_reader_waiting(fake, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(fake), "EDGE_LLM_HOME": str(fake / "home")}
    environment.pop("EDGE_LLM_NPU_OPS", None)
    pid = tmp_path / "pid"
    environment["COMPILER_PID"] = str(pid)
    command = [sys.executable, "-m", "edge_llm", *RUN]
    with (tmp_path / "errors").open("w") as errors:
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=120)
    os.kill(int(pid.read_text()), signal.SIGKILL)  # it is still there
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
