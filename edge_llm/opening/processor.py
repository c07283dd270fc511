"""The processor of this machine: its name, and what its instructions mean for the kernels.

Boards and many servers with an Ascend card have ARM cores, which tell numbers in place of a name.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edge_llm import kernels
from edge_llm.ascend.npu.finding import Finding
from edge_llm.ascend.npu.pci import small_text

ARM = "aarch64"
DOT_PRODUCT = ("asimd", "crc32", "atomics", "fphp", "asimdhp", "asimdrdm", "asimddp")
"""What the ARM kernels with dot products use, as Linux calls it; the list in kernels/native/isa/neondot/cpu.h."""
_CORES = {
    "0x41": {
        "0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72",
        "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76", "0xd0c": "Neoverse-N1", "0xd0d": "Cortex-A77",
        "0xd40": "Neoverse-V1", "0xd41": "Cortex-A78", "0xd42": "Cortex-A78AE", "0xd46": "Cortex-A510",
        "0xd47": "Cortex-A710", "0xd49": "Neoverse-N2", "0xd4d": "Cortex-A715", "0xd4f": "Neoverse-V2",
        "0xd80": "Cortex-A520", "0xd81": "Cortex-A720",
    },
    "0x48": {"0xd01": "TaiShan-v110", "0xd02": "TaiShan-v120", "0xd40": "Cortex-A76", "0xd41": "Cortex-A77"},
    "0x70": {"0x303": "FTC310", "0x660": "FTC660", "0x661": "FTC661", "0x662": "FTC662", "0x663": "FTC663", "0x664": "FTC664"},
}  # fmt: skip
"""Core by implementer (ARM, HiSilicon, Phytium) and part, as `lscpu` of util-linux names them."""


@dataclass(frozen=True)
class Processor:
    """Where to look, and which kernels run.  By itself it is this machine; a test builds another one."""

    root: Path = Path("/")
    architecture: str = field(default_factory=platform.machine)
    isa: str = field(default_factory=kernels.isa)
    variants: tuple[str, ...] = field(default_factory=lambda: tuple(kernels.isa_variants()))
    refusal: str = field(default_factory=kernels.isa_refusal)

    @property
    def name(self) -> str:
        """The processor as it calls itself, or the cores that it is made of; on a board, the board as well."""
        cores = ", ".join(dict.fromkeys(self._values("model name") or self._cores() or self._values("Hardware")))
        board = small_text(self.root / "proc/device-tree/model").strip(" \0\n")
        board = "".join(char for char in board if char.isprintable())
        return " on ".join(filter(None, (cores, board))) or "unknown"

    def _cores(self) -> list[str]:
        """By what ARM cores tell of themselves; a processor may have several kinds."""
        told = zip(self._values("CPU implementer"), self._values("CPU part"), strict=False)
        return [_CORES.get(maker, {}).get(part) or f"implementer {maker}, part {part}" for maker, part in told]

    def _values(self, key: str) -> list[str]:
        """What /proc/cpuinfo says of each core under ``key``."""
        pattern = rf"^{key}[ \t]*:[ \t]*([!-~](?:[ -~]*[!-~])?)"  # what a terminal may be shown
        return re.findall(pattern, small_text(self.root / "proc/cpuinfo"), re.MULTILINE)

    @property
    def missing(self) -> list[str]:
        """Features of `DOT_PRODUCT` that a core does not list, in their order."""
        cores = [set(features.split()) for features in self._values("Features")]
        return [name for name in DOT_PRODUCT if cores and not all(name in features for features in cores)]


def processor_findings(processor: Processor) -> Iterator[Finding]:
    """What runs the model: the processor, and the kernels that it has instructions for."""
    yield Finding("processor", f"{processor.name} ({processor.architecture})")
    value = f"{processor.isa}{_words(processor)} (of {', '.join(processor.variants)})"
    fast = processor.isa != "portable"
    yield Finding("kernels", value, good=fast, advice=processor.refusal if fast else _portable(processor))


def _words(processor: Processor) -> str:
    """What the ARM kernels are named after."""
    return {"neondot": ", dot products", "neoni8mm": ", dot and matrix products"}.get(processor.isa, "")


def _portable(processor: Processor) -> str:
    """Why the portable kernels run, and what that costs."""
    if processor.architecture != ARM:
        return "x86-64 with AVX2 and FMA is much faster; this processor runs the portable kernels"
    lacking = ", ".join(processor.missing)
    why = f"this processor has no {lacking}" if lacking else "this system does not tell of dot products"
    return f"{why}: answers are the same, but prompts take longer than on cores with dot products; how much was not measured"
