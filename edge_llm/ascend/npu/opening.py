"""Opens the card of this machine: finds its software without importing it, tries the import elsewhere, then does it here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from edge_llm.ascend.npu.chips import CHIPS, DEFAULT_CHIP, ChipLaw, chip_law
from edge_llm.ascend.npu.law import CHUNK_ATTENTION_V2, chunk_attention
from edge_llm.ascend.npu.machine import AscendMachine
from edge_llm.ascend.npu.packages import AUTOLOAD, CPU_WHEELS, find_package, import_torch_npu, package_findings
from edge_llm.ascend.npu.runtime import Runtime
from edge_llm.ascend.npu.settings import setting_findings
from edge_llm.ascend.npu.stdout import own_stdout
from edge_llm.ascend.npu.toolkit import attention_refusal
from edge_llm.errors import DeviceError

OPERATORS = "EDGE_LLM_NPU_OPS"
"""Environment variable: `emulated` has PyTorch compute the card's operators on the CPU, to try the code without a card."""
EMULATED = "emulated"
DOCTOR = "`edge-llm doctor` says what is missing"


def open_runtime(chip: str | None, environment: Mapping[str, str] | None = None) -> Runtime:
    """The card of this machine; ``chip`` says which one is emulated, or is checked against the one that is there.

    Raises `DeviceError` for what is missing, with the remedy.
    """
    environment = os.environ if environment is None else environment
    asked = environment.get(OPERATORS)
    if asked not in (None, "", EMULATED):
        raise DeviceError(f"{OPERATORS}=`{asked}`: the only value is `{EMULATED}`; leave it out to use the card")
    if asked == EMULATED:
        return _emulated(chip_law(chip or DEFAULT_CHIP))
    return _real(chip, environment)


def _emulated(law: ChipLaw) -> Runtime:
    _check_torch()
    from edge_llm.ascend.npu.emulated_runtime import EmulatedRuntime

    return EmulatedRuntime(law)


def _check_torch() -> None:
    if find_package("torch", tuple(sys.path)) is None:
        raise DeviceError(f"the package torch is not installed; its CPU build is `pip install torch==2.13.0 {CPU_WHEELS}`")


def _real(chip: str | None, environment: Mapping[str, str]) -> Runtime:
    asked = None if chip is None else chip_law(chip)
    search = tuple(sys.path)
    for finding in package_findings(find_package("torch", search), find_package("torch_npu", search)):
        if finding.good is False:
            gap = f"{finding.name} {finding.value}; {finding.advice}"
            raise DeviceError(f"no Ascend card can be used: {gap}, or use --device host; {DOCTOR}")
    tried = import_torch_npu(environment)
    if not tried.works:
        raise DeviceError(f"torch_npu cannot be imported: {tried.line}; {DOCTOR}")
    if not tried.cards:
        raise DeviceError(f"torch_npu sees no card; {DOCTOR}")
    law = _law_of(tried.chip)
    if asked is not None and asked.name != law.name:
        raise DeviceError(f"the card is an {tried.chip} and not a {chip}; use --device ascend")
    _check_settings(law, environment)
    load_torch_npu()
    from edge_llm.ascend.npu.torch_npu_runtime import TorchNpuRuntime

    with own_stdout("torch_npu"):
        runtime: Runtime = TorchNpuRuntime(law)
    _, total = runtime.memory()
    runtime.law = runtime.law.of_memory(total)
    if not runtime.attention_missing and chunk_attention(law) == CHUNK_ATTENTION_V2:
        runtime.attention_missing = attention_refusal(AscendMachine(environment=environment))
    return runtime


def _check_settings(law: ChipLaw, environment: Mapping[str, str]) -> None:
    """Raises `DeviceError` for a variable with which no weight could be laid out on the chip."""
    for finding in setting_findings(environment):
        if finding.good is False and not finding.dispensable and law.weights_are_nz:
            raise DeviceError(f"no Ascend card can be used: {finding.name}={finding.value}; {finding.advice}; {DOCTOR}")


def load_torch_npu() -> None:
    """Import torch_npu into this process.  Raises `DeviceError` where that fails."""
    os.environ[AUTOLOAD] = "0"
    try:
        with own_stdout("torch_npu"):
            import torch_npu  # type: ignore[import-not-found] # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(f"torch_npu cannot be imported: {error}; {DOCTOR}") from error


def _law_of(name: str) -> ChipLaw:
    """The law of a chip by the name that the driver gives it, such as Ascend310P3."""
    for law in CHIPS.values():
        if name.lower().startswith(f"ascend{law.name}"):
            return law
    known = ", ".join(law.soc for law in CHIPS.values())
    raise DeviceError(f"the chip `{name}` is unknown to this version, which knows {known}; use --device host")
