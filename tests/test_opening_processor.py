"""What doctor says of processors: by their own names, by the numbers that ARM cores tell, and of what kernels need."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.opening.processor import DOT_PRODUCT, Processor, processor_findings

ROOT = Path(__file__).resolve().parents[1]
X86 = ("portable", "avx2")
ARM = ("portable", "neondot", "neoni8mm")
KUNPENG = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma dcpop asimddp asimdfhm"
CORTEX_A53 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"


def core(number, maker, part, features=KUNPENG):
    return (
        f"processor\t: {number}\nBogoMIPS\t: 200.00\nFeatures\t: {features}\nCPU implementer\t: {maker}\n"
        f"CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 0\n\n"
    )


def build(folder, cpuinfo, variants, board=None, architecture="aarch64"):
    """A machine with these files; its best kernels are the last of ``variants``."""
    (folder / "proc/device-tree").mkdir(parents=True, exist_ok=True)
    (folder / "proc/cpuinfo").write_text(cpuinfo)
    if board is not None:
        (folder / "proc/device-tree/model").write_text(board)
    return Processor(folder, architecture, variants[-1], tuple(variants))


def findings(processor):
    return {finding.name: finding for finding in processor_findings(processor)}


NAMES = {
    "x86": ("processor\t: 0\nmodel name\t: AMD EPYC 9B14\nflags\t: avx2\n" * 4, None, "AMD EPYC 9B14"),
    "a server": ("".join(core(n, "0x48", "0xd01") for n in range(4)), None, "TaiShan-v110"),
    "a board": (core(0, "0x41", "0xd05") + core(1, "0x41", "0xd0b"), "Pear Pi 5\0", "Cortex-A55, Cortex-A76 on Pear Pi 5"),
    "cores of unknown kind": (core(0, "0x48", "0xd99"), None, "implementer 0x48, part 0xd99"),
    "a kernel that names ARM cores": ("model name\t: Phytium,D2000/8\n" + core(0, "0x70", "0x663"), None, "Phytium,D2000/8"),
    "an old kernel": ("Hardware\t: BCM2835\n", None, "BCM2835"),
    "a closed container": ("", None, "unknown"),
    "a board that hides its cores": ("", "Pear Pi 5\n\0", "Pear Pi 5"),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES.values(), ids=NAMES)
def test_the_processor_has_a_name(tmp_path, case):
    cpuinfo, board, name = case
    assert findings(build(tmp_path, cpuinfo, ARM, board))["processor"].value == f"{name} (aarch64)"


@pytest.mark.parametrize(
    ("variants", "words"),
    [(ARM[:2], "neondot, dot products (of portable, neondot)"), (ARM, "neoni8mm, dot and matrix products (of")],
)
def test_arm_cores_with_dot_products_are_all_right(tmp_path, variants, words):
    found = findings(build(tmp_path, core(0, "0x48", "0xd01"), variants))["kernels"]
    assert found.good and not found.advice
    assert found.value.startswith(words)


def test_cores_without_dot_products_are_told_so(tmp_path):
    found = findings(build(tmp_path, core(0, "0x41", "0xd03", CORTEX_A53), ("portable",)))["kernels"]
    assert found.good is False
    assert "this processor has no atomics, fphp, asimdhp, asimdrdm, asimddp: answers are the same" in found.advice
    assert "x86" not in found.advice


def test_the_weakest_core_counts(tmp_path):
    cores = core(0, "0x41", "0xd0b") + core(1, "0x41", "0xd03", KUNPENG.replace(" asimddp", ""))
    assert build(tmp_path, cores, ("portable",)).missing == ["asimddp"]


def test_a_system_that_hides_features_is_no_reason_to_name_any(tmp_path):
    processor = build(tmp_path, "model name\t: AMD EPYC\nflags\t\t: fpu avx2\n", ("portable",))  # as under qemu
    assert processor.missing == []
    assert "does not tell" in findings(processor)["kernels"].advice


def test_x86_without_avx2_is_told_so(tmp_path):
    found = findings(build(tmp_path, "", X86[:1], architecture="x86_64"))["kernels"]
    assert found.good is False and "AVX2" in found.advice
    assert findings(build(tmp_path, "", X86, architecture="x86_64"))["kernels"].good


def test_features_are_those_that_the_kernels_ask_for():
    """The kernels ask for bits by number; their names are in comments, and Linux calls them so in small letters."""
    code = (ROOT / "kernels/native/isa/neondot/cpu.h").read_text()
    body = re.search(r"bool has_it\(\) \{(.*?)\n\}", code, re.DOTALL)[1]
    assert re.findall(r"/\* (\w+) \*/", body) == [name.upper() for name in DOT_PRODUCT]


LINES = st.sampled_from(
    ["model name\t: ", "Hardware: ", "Features\t: ", "CPU implementer\t: ", "CPU part\t: ", "\0", "\x1b[2J"]
)


@given(st.lists(st.tuples(LINES, st.text(max_size=20)), max_size=12), st.none() | st.text(max_size=20))
def test_no_content_breaks_it(tmp_path_factory, lines, board):
    text = "\n".join(key + value for key, value in lines)
    folder = tmp_path_factory.mktemp("machine")
    (folder / "proc/device-tree").mkdir(parents=True)
    (folder / "proc/cpuinfo").write_bytes(text.encode("utf-8", "surrogatepass"))
    if board is not None:
        (folder / "proc/device-tree/model").write_bytes(board.encode("utf-8", "surrogatepass"))
    for finding in processor_findings(Processor(folder, "aarch64", "portable", ("portable",))):
        assert finding.value and finding.value.isprintable()
        json.dumps(finding.as_dict())
