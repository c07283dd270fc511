"""The real torch_npu on a machine without a card: stand-ins for Ascend's libraries, and code run under them.

`Card.run` runs a function of a test in a process of its own, because torch_npu cannot be loaded beside the other tests.
Kernels for the operators are in `standins.kernels`, which such a function installs.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

WHEEL = "torch-npu==2.13.0"
WHEEL_VARIABLE = "EDGE_LLM_TORCH_NPU"  # the folder that it is installed in
HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
SOCS = ("Ascend310P3", "Ascend310B4", "Ascend910B1")
EMPTY_LIBRARIES = ("ge_runner", "graph", "acl_tdt_channel")  # linked against, nothing of them is called


def wheel_folder() -> Path:
    """Where torch_npu lies; skips the test if it is not here."""
    folder = os.environ.get(WHEEL_VARIABLE)
    if not folder:
        pytest.skip(
            f"the real torch_npu is not here: pip install --no-deps --target FOLDER {WHEEL}, and {WHEEL_VARIABLE}=FOLDER"
        )
    if not (Path(folder) / "torch_npu").is_dir():
        raise FileNotFoundError(f"{WHEEL_VARIABLE} is {folder}, but there is no torch_npu in it")
    return Path(folder).resolve()


class Card:
    """Stand-ins in a folder, with the wheel that they are for."""

    def __init__(self, folder: Path) -> None:
        self.wheel = wheel_folder()
        compiler = shutil.which(os.environ.get("CC", "gcc"))
        if compiler is None or shutil.which("nm") is None:
            pytest.skip("the stand-ins for Ascend's libraries need gcc and nm")
        self.folder = folder
        self.libraries = folder / "lib"
        self.cann = folder / "cann"
        self.libraries.mkdir()
        for part in ("runtime", "compiler", "opp"):  # torch_npu asks whether they are there
            (self.cann / part).mkdir(parents=True)
        _build(compiler, self.wheel / "torch_npu", self.libraries)

    def environment(
        self,
        soc: str = SOCS[0],
        *,
        devices: int = 1,
        memory: int | None = None,
        fail: str = "",
        eager: bool = False,
        cann: str = "9.1.0",
        kernels: bool = False,
        **more: str,
    ) -> dict[str, str]:
        """Environment of a process in which ``import torch_npu`` finds the card.

        ``fail`` is a list like ``aclrtMalloc@3=207001`` (the third call returns 207001; without ``@3`` every call);
        ``eager`` lets streams work at once; ``kernels`` installs the package's CPU implementations when torch_npu is
        imported, for commands that know nothing of tests.
        """
        ours = [HERE / "site"] if kernels else []
        paths = [*map(str, [*ours, self.wheel, HERE.parent, REPOSITORY]), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "LD_LIBRARY_PATH": str(self.libraries),
            "ASCEND_HOME_PATH": str(self.cann),  # torch_npu walks through it; unset, through the working directory
            "ASCEND_OPP_PATH": str(self.cann / "opp"),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TASK_QUEUE_ENABLE": "0",  # torch_npu's own thread would copy while Python's kernels run
            "OMP_NUM_THREADS": "1",
            "STANDIN_SOC": soc,
            "STANDIN_DEVICES": str(devices),
            "STANDIN_MEMORY": str(memory or ""),
            "STANDIN_FAIL": fail,
            "STANDIN_EAGER": str(int(eager)),
            "STANDIN_CANN": cann,
            **more,
        }

    def run(self, body: Callable[..., Any], *arguments: Any, seconds: float = 120, **settings: Any) -> Any:
        """What ``body(*arguments)`` returns in a process of its own; ``settings`` are those of `environment`.

        ``body`` is a function at the top of a test module; arguments and result are pickled.
        """
        module = sys.modules[body.__module__].__file__
        with_arguments = pickle.dumps((module, body.__name__, arguments))
        done = subprocess.run(
            [sys.executable, "-m", "standins.child"],
            input=with_arguments,
            capture_output=True,
            env=self.environment(**settings),
            timeout=seconds,
            check=False,
        )
        result, separator, pickled = done.stdout.partition(RESULT)
        if done.returncode or not separator:
            said = f"{result.decode(errors='replace')}{done.stderr.decode(errors='replace')}"
            pytest.fail(f"{body.__name__} ended with {done.returncode}:\n{said[-6000:]}", pytrace=False)
        return pickle.loads(pickled)


RESULT = b"\n--- result ---\n"


# ---- building


def _build(compiler: str, torch_npu: Path, folder: Path) -> None:
    wanted = set[str]()
    for library in [*torch_npu.glob("lib/*.so"), *torch_npu.glob("_C*.so")]:
        wanted |= _symbols(library, "--undefined-only")
    runtime = folder / "libascendcl.so"
    _link(compiler, folder, runtime.name, HERE / "cann.c", "-Wall", "-Wno-unused")
    missing = sorted(name for name in wanted - _symbols(runtime, "--defined-only") if re.match(r"acl|rt[A-Z]|Msprof", name))
    _link(compiler, folder, runtime.name, HERE / "cann.c", _source(folder, "rest", map(_do_nothing, missing)))
    atb = sorted(name for name in wanted if re.match(r"_Z(TH)?N3atb", name))
    _link(compiler, folder, "libatb.so", _source(folder, "atb", map(_do_nothing, atb)))
    _link(compiler, folder, "libhccl.so", _source(folder, "hccl", [_do_nothing("HcclSetConfig")]))
    for name in EMPTY_LIBRARIES:
        _link(compiler, folder, f"lib{name}.so", _source(folder, "empty", ()))
    # torch_npu looks for some functions here: it finds those of the library that this one needs
    _link(compiler, folder, "libacl_op_compiler.so", _source(folder, "empty", ()), "-Wl,--no-as-needed", "-lascendcl")


def _do_nothing(symbol: str) -> str:
    """A function that the wheel is linked against and that no test gets to: what would have to act refuses."""
    code = 207000 if re.match(r"aclrt|aclmdlRI", symbol) else 0
    return f"long {symbol}(void) {{ return {code}; }}"


def _symbols(library: Path, which: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def _source(folder: Path, name: str, lines: Any) -> Path:
    path = folder / f"{name}.c"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _link(compiler: str, folder: Path, name: str, *arguments: Path | str) -> None:
    command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", "-L", folder, "-o", folder / name, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
