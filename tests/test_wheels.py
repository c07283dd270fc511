"""What assets/wheels.py decides before and after it compiles: which wheel a Python makes, and what a wheel must not hold."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
X86, ARM = (b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") for machine in (62, 183))
MODULE = "edge_llm/kernels/_native.abi3.so"


@pytest.fixture(scope="module")
def wheels():
    sys.path.insert(0, str(ROOT / "assets"))
    try:
        import wheels
    finally:
        sys.path.pop(0)
    return wheels


@pytest.fixture
def problems(wheels, tmp_path):
    """What is found in a wheel for x86-64 that has ``more``, and all that one needs but ``without``."""

    def found(more, without=""):
        wheel = tmp_path / "a.whl"
        needed = {f"edge_llm/{name}": b"" for name in wheels.NEEDED if name != without}
        with zipfile.ZipFile(wheel, "w") as opened:
            for name, content in {**needed, **more}.items():
                opened.writestr(name, content)
        return " ".join(wheels.found_problems(wheel, "x86_64"))

    return found


def test_a_wheel_that_is_fit_has_no_problem(problems):
    assert problems({MODULE: X86, "edge_llm-0.1.0.dist-info/METADATA": b""}) == ""


@pytest.mark.parametrize("name", ["kernels/__init__.py", "scheduler/lanes.py", "edge_llm.py", "edge_llm-0.1.0.data/data/x"])
def test_nothing_is_installed_beside_the_package(problems, name):
    """Hugging Face's `kernels` has files of these names."""
    assert name in problems({MODULE: X86, name: b""})


@pytest.mark.parametrize("name", ["edge_llm/kernels/native/vec.h", "edge_llm/kernels/native/isa.cpp", "edge_llm/a.pyc"])
def test_sources_and_caches_stay_out(problems, name):
    assert name in problems({MODULE: X86, name: b""})


@pytest.mark.parametrize(
    ("tags", "fits"),
    [("manylinux_2_24_x86_64.manylinux_2_28_x86_64", True), ("manylinux_2_28_x86_64", True), ("manylinux_2_31_x86_64", False),
     ("manylinux_2_24_aarch64", False), ("linux_x86_64", False)],
)  # fmt: skip
def test_old_systems_can_install_it(wheels, tags, fits):
    assert wheels.runs_on(f"edge_llm-0.1.0-cp312-abi3-{tags}.whl", "x86_64") is fits


def test_the_module_is_one_and_for_the_processor(problems):
    assert "one edge_llm/kernels/_native is wanted" in problems({})
    assert "one edge_llm/kernels/_native is wanted" in problems({MODULE: X86, MODULE.replace("abi3", "cpython-311"): X86})
    assert "machine 183" in problems({MODULE: ARM})


def test_a_part_that_is_missing_is_named(wheels, problems):
    for name in wheels.NEEDED:
        assert (ROOT / "edge_llm" / name).is_file()
        assert problems({MODULE: X86}, without=name) == f"`edge_llm/{name}` is missing"


def test_zig_has_words_for_every_processor_of_the_kernels(wheels):
    """A word that the compiler's wrapper does not know would leave instructions of a variant out."""
    assert set(wheels.CPUS) == set(re.findall(r"-march=(\S+?)\)", (ROOT / "CMakeLists.txt").read_text()))


@pytest.mark.parametrize(
    ("version", "tag"), [((3, 11), "cp311-cp311"), ((3, 12), "cp312-abi3"), ((3, 13), "cp312-abi3"), ((3, 20), "cp312-abi3")]
)
def test_one_wheel_is_for_all_pythons_from_312_on(wheels, version, tag):
    assert wheels.Python("python", version, Path("/usr/include"), "-").tag == tag


def test_a_python_that_cannot_compile_is_refused(wheels, tmp_path, capsys):
    """One line, and nothing is fetched."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 3 9 /usr/include -\n")
    fake.chmod(0o755)
    assert wheels.main(["--python", str(fake)]) == 1
    assert capsys.readouterr().err == f"error: `{fake}` is Python 3.9; wheels are for 3.11 and later\n"
    fake.write_text(f"#!/bin/sh\necho 3 12 {tmp_path} -\n")
    assert wheels.main(["--python", str(fake)]) == 1
    assert "Python.h; install its headers (Debian: python3.12-dev)" in capsys.readouterr().err
    assert wheels.main(["--python", str(tmp_path / "none")]) == 1
    assert "name one with --python" in capsys.readouterr().err


def test_debians_headers_lead_to_those_of_no_other_machine(wheels, tmp_path, monkeypatch):
    """Its pyconfig.h includes that of its processor, which the compiler of another does not have."""
    includes = tmp_path / "include"
    python = wheels.Python("python", (3, 12), includes / "python3.12", "x86_64-linux-gnu")
    real = includes / "x86_64-linux-gnu" / "python3.12" / "pyconfig.h"
    for file, words in ((python.include / real.name, "#include <x86_64-linux-gnu/...>"), (real, "#define SIZEOF_LONG 8")):
        file.parent.mkdir(parents=True)
        file.write_text(words)
    monkeypatch.setattr(wheels, "INCLUDES", includes)
    copy = wheels.headers(tmp_path, python)
    assert copy.name == "python3.12" and (copy / "pyconfig.h").read_text() == "#define SIZEOF_LONG 8"
    real.unlink()
    assert wheels.headers(tmp_path, python) == python.include
