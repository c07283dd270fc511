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
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

WHEEL_VARIABLE = "EDGE_LLM_TORCH_NPU"  # the folder that it is installed in
HERE = Path(__file__).resolve().parent
SOCS = ("Ascend310P3", "Ascend310B4", "Ascend910B1")


def wheel() -> str:
    """What to install: the torch_npu for the torch that is here."""
    return f"torch-npu=={version('torch').partition('+')[0]}"


def wheel_folder() -> Path:
    """Where torch_npu lies; skips the test if it is not here."""
    folder = os.environ.get(WHEEL_VARIABLE)
    if not folder:
        how = f"`pip install --no-deps --target FOLDER {wheel()}` and {WHEEL_VARIABLE}=FOLDER"
        pytest.skip(f"the real torch_npu is not here: {how} (installed beside torch, it breaks `import torch`)")
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
        self.libraries, self.nnal, self.cann = folder / "lib", folder / "nnal", folder / "cann"
        self.routes = folder / "routes"
        for part in (self.libraries, self.nnal, self.routes, *(self.cann / name for name in ("runtime", "compiler", "opp"))):
            part.mkdir(parents=True)  # torch_npu asks whether those of CANN are there
        _build(compiler, self.wheel / "torch_npu", self.libraries, self.nnal)
        _build_routes(compiler, self.wheel / "torch_npu", self.libraries, self.routes)

    def environment(
        self,
        soc: str = SOCS[0],
        *,
        devices: int = 1,
        memory: int | None = None,
        cann: str | None = "9.1.0",
        nnal: bool = True,
        fail: str = "",
        eager: bool = False,
        routes: bool = False,
        kernels: str | None = None,
        **more: str,
    ) -> dict[str, str]:
        """Environment of a process in which ``import torch_npu`` finds the card.

        ``memory`` is the card's, in bytes; without ``cann`` there are no libraries, without ``nnal`` none for attention.
        ``fail`` is a list like ``aclrtMalloc@3=207001`` (the third call returns 207001; without ``@3`` every call);
        ``eager`` lets streams work at once; ``routes`` has torch_npu's own code choose kernels, which compute nothing (see
        `standins.routes`).  ``kernels`` is the name of a module whose ``IMPLEMENTATIONS`` are installed
        when torch_npu is imported, for commands that know nothing of tests.
        """
        paths = [HERE / "site"] if kernels else []
        paths += [self.wheel, HERE.parent]
        libraries = [self.libraries, *([self.nnal] if nnal else []), *([self.routes] if routes else [])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "LD_LIBRARY_PATH": "" if cann is None else os.pathsep.join(map(str, libraries)),
            "ASCEND_HOME_PATH": str(self.cann),  # torch_npu walks through it; unset, through the working directory
            "ASCEND_OPP_PATH": str(self.cann / "opp"),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TASK_QUEUE_ENABLE": "0",  # torch_npu's own thread would copy while Python's kernels run
            "OMP_NUM_THREADS": "1",
            "STANDIN_SOC": soc,
            "STANDIN_DEVICES": str(devices),
            "STANDIN_MEMORY": str(memory or ""),
            "STANDIN_CANN": cann or "",
            "STANDIN_FAIL": fail,
            "STANDIN_EAGER": str(int(eager)),
            "STANDIN_ROUTES": str(int(routes)),
            "STANDIN_POISON": str(int(not routes)),  # what no kernel writes is zero
            "STANDIN_KERNELS": kernels or "",
            **more,
        }

    def run(self, body: Callable[..., Any], *arguments: Any, seconds: float = 300, **settings: Any) -> Any:
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


def _build(compiler: str, torch_npu: Path, folder: Path, nnal: Path) -> None:
    """The libraries that the wheel is linked against; what it needs and `cann.c` does not have does nothing."""
    wanted = set[str]()
    for library in [*torch_npu.glob("lib/*.so"), *torch_npu.glob("_C*.so")]:
        wanted |= _symbols(library, "--undefined-only")
    runtime = folder / "libascendcl.so"
    _link(compiler, runtime, [], "-Wall", "-Wno-unused", HERE / "cann.c")
    missing = {name for name in wanted - _symbols(runtime, "--defined-only") if re.match(r"acl|rt[A-Z]|Msprof", name)}
    _link(compiler, runtime, missing, HERE / "cann.c")
    # torch_npu looks for some functions here: it finds those of the library that this one needs
    _link(compiler, folder / "libacl_op_compiler.so", [], "-Wl,--no-as-needed", f"-L{folder}", "-lascendcl")
    _link(compiler, folder / "libhccl.so", ["HcclSetConfig"])
    for name in ("ge_runner", "graph", "acl_tdt_channel"):
        _link(compiler, folder / f"lib{name}.so", [])
    _link(compiler, nnal / "libatb.so", {name for name in wanted if re.match(r"_Z(TH)?N3atb", name)})


def _build_routes(compiler: str, torch_npu: Path, libraries: Path, folder: Path) -> None:
    """The library of the card's newer kernels: each writes down that it was called, and does nothing."""
    texts = (torch_npu / "lib" / "libtorch_npu.so").read_bytes()
    names = {name.decode() for name in re.findall(rb"(?<=\0)aclnn[A-Z]\w*?(?=\0)", texts)}
    asked = {name.removesuffix("GetWorkspaceSize") for name in names} - {"aclnnNpuFormatCastCalculateSizeAndFormat"}
    lines = ["void standin_route(const char* kind, const char* name, void* stream);"]
    for name in sorted(asked):
        lines.append(f"int {name}GetWorkspaceSize(void) {{ return 0; }}")
        given = "void* workspace, unsigned long size, void* executor, void* stream"
        lines.append(f'int {name}({given}) {{ standin_route("aclnn", "{name}", stream); return 0; }}')
    source = folder / "kernels.c"
    source.write_text("\n".join(lines))
    _link(compiler, folder / "libopapi.so", [], source, HERE / "opapi.c", f"-L{libraries}", "-lascendcl")


def _symbols(library: Path, which: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def _link(compiler: str, library: Path, nothing: Iterable[str], *arguments: Path | str) -> None:
    """A library of the sources among ``arguments`` and of functions that do nothing."""
    source = library.with_suffix(".c")
    source.write_text("".join(f"long {name}(void) {{ return {_refusal(name)}; }}\n" for name in sorted(nothing)))
    command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", "-o", library, source, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _refusal(function: str) -> int:
    """What would have to act says that it cannot."""
    return 207000 if re.match(r"aclrt|aclmdlRI", function) else 0
