"""CANN and NNAL as they are installed and set up, each gap with its remedy.

Sources as in `edge_llm.ascend.npu.machine`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from edge_llm.ascend.npu.finding import Finding
from edge_llm.ascend.npu.machine import INSTALLED, VERSION, AscendMachine
from edge_llm.ascend.npu.packages import RELEASES
from edge_llm.ascend.npu.pci import names_in, small_text
from edge_llm.ascend.npu.versions import dotted, older

KERNELS = "built-in/op_impl/ai_core/tbe/kernel"  # [doc] below opp: a folder per chip, such as ascend310p
NO_KERNELS = {"ops_oam"}  # [web] all that lies in a chip's folder where the toolkit came without kernels
OLDEST_CANN = (9, 1, 0)  # [src] CANN of torch_npu 2.10.0.post4, 2.11 and 2.12; for 2.13 and 2.14 nobody says
OLDEST_NNAL = (9, 1, 0)  # [src] the first whose attention over chunks takes one causal mask, as it is used on a 310P
SOURCE = "`source set_env.sh` of the toolkit"


def cann_finding(machine: AscendMachine) -> Finding:
    home = machine.toolkit
    script = _script(machine, home)
    if not home:
        value, advice = ("installed, but not set up", f"`source {script}`") if script else ("not installed", _install(machine))
        return Finding("CANN", value, good=False, advice=advice)
    if not machine.has(home):
        advice = f"`source {script}`" if script else _install(machine)
        return Finding("CANN", f"`{home}` is not there, or closed to this user", good=False, advice=advice)
    version = _cann_version(machine)
    value = f"{version or 'of unknown version'} in {home}"
    if not has_libraries(machine):
        advice = f"`source {script}`" if script else SOURCE
        return Finding("CANN", f"{value}, but LD_LIBRARY_PATH has no libascendcl.so", good=False, advice=advice)
    too_old = older(version, OLDEST_CANN)
    if too_old is None:
        return Finding("CANN", value, advice=f"torch_npu {RELEASES} go with CANN {dotted(OLDEST_CANN)} or newer")
    if too_old:
        advice = f"{_install(machine)}; torch_npu {RELEASES} are built for it"
        return Finding("CANN", f"{value}: older than {dotted(OLDEST_CANN)}", good=False, advice=advice, dispensable=True)
    return Finding("CANN", value, good=True)


def _script(machine: AscendMachine, home: str) -> str:
    """The `set_env.sh` of an installed toolkit, or nothing."""
    places = [home, f"{home}/.."] if home else []
    for base in (INSTALLED, f"{machine.environment.get('HOME', '')}/Ascend"):  # [doc] of root, of another user
        places += [f"{base}/cann", f"{base}/ascend-toolkit"]  # [doc] since CANN 8.5, and before
    return next((os.path.normpath(file) for place in places if machine.has(file := f"{place}/set_env.sh")), "")


def _install(machine: AscendMachine) -> str:
    return f"install the CANN toolkit {dotted(OLDEST_CANN)} or newer and the kernels of this chip, then {SOURCE}"


def _cann_version(machine: AscendMachine) -> str:
    """[doc] `version` in ARCH-linux/ascend_toolkit_install.info."""
    folders = [name for name in names_in(machine.at(machine.toolkit)) if name.endswith("-linux")]
    found = (machine.version(f"{machine.toolkit}/{folder}/ascend_toolkit_install.info", "version") for folder in folders)
    return next(filter(None, found), "")


def has_libraries(machine: AscendMachine) -> bool:
    return bool(machine.on_path("LD_LIBRARY_PATH", "libascendcl.so"))  # [whl] what torch_npu is linked to


def kernel_findings(machine: AscendMachine, chips: list[str]) -> Iterator[Finding]:
    """Another chip's kernels are a frequent mistake [web: vllm-ascend 5599]."""
    if not machine.toolkit or not machine.has(machine.toolkit):
        return
    folder = f"{machine.folder('ASCEND_OPP_PATH') or f'{machine.toolkit}/opp'}/{KERNELS}"
    there = [name for name in names_in(machine.at(folder)) if re.fullmatch("ascend[0-9a-z_]{1,20}", name)]
    there = [name for name in there if set(names_in(machine.at(f"{folder}/{name}"))) - NO_KERNELS]
    value = f"for {', '.join(there)}" if there else f"none in {folder}"
    missing = [chip for chip in chips if f"ascend{chip.lower()}" not in there]
    if not missing and there:
        yield Finding("CANN kernels", value, good=True if chips else None)
        return
    name = missing[0].lower() if missing else "CHIP"
    advice = f"install Ascend-cann-{name}-ops (before CANN 8.5: Ascend-cann-kernels-{name}) of the toolkit's version"  # [doc]
    yield Finding("CANN kernels", value, good=False, advice=advice)


def nnal_finding(machine: AscendMachine, needed: bool) -> Finding:
    """libatb.so: without it the first call of an ATB operator, such as attention on a 310P, raises OSError [whl][run].

    A chip of which it is not ``needed`` has its keys in rows, and takes older ones.
    """
    found = machine.on_path("LD_LIBRARY_PATH", "libatb.so")
    if found:
        return _of_version(found, nnal_version(machine), needed)
    home = machine.folder("ATB_HOME_PATH")
    script = f"{INSTALLED}/nnal/atb/set_env.sh"  # [doc]
    if (home and machine.has(f"{home}/lib/libatb.so")) or machine.has(script):
        advice = f"`source {script if machine.has(script) else 'set_env.sh'}` of NNAL, after that of the toolkit"
        value = "installed, but LD_LIBRARY_PATH has no libatb.so"
        return Finding("NNAL", value, good=False, advice=advice, dispensable=True)
    advice = f"install Ascend-cann-nnal of the toolkit's version and `source {script}`"
    return Finding("NNAL", "not installed: attention on the card needs it", good=False, advice=advice, dispensable=True)


def _of_version(library: str, version: str, needed: bool) -> Finding:
    wanted = dotted(OLDEST_NNAL)
    if older(version, OLDEST_NNAL) is False:
        return Finding("NNAL", f"{version} ({library})", good=True)
    if not version:
        return Finding("NNAL", f"of unknown version ({library})", advice=f"attention on a 310P needs {wanted} or newer")
    value = f"{version} ({library}): older than {wanted}, attention on a 310P needs that"
    advice = f"install Ascend-cann-nnal {wanted} or newer"
    return Finding("NNAL", value, good=False if needed else None, advice=advice, dispensable=True)


def nnal_version(machine: AscendMachine) -> str:
    """Of the NNAL whose libatb.so is found; empty if it does not say."""
    home = machine.on_path("LD_LIBRARY_PATH", "libatb.so").removesuffix("/lib/libatb.so")
    for file in (f"{home}/../../version.info", f"{home}/version.info"):  # [web] home is nnal/atb/latest/atb/cxx_abi_1
        text = small_text(machine.at(os.path.normpath(file))) if home else ""
        found = re.search(r"^[ \t]*Ascend-cann-atb[ \t]*[:=][ \t]*(\S+)", text, re.MULTILINE)
        if found and VERSION.fullmatch(found[1]):
            return found[1]
    return ""


def attention_refusal(machine: AscendMachine) -> str:
    """Why this NNAL cannot do attention on a 310P, with the remedy; empty if it can, or does not say."""
    version = nnal_version(machine)
    if not older(version, OLDEST_NNAL):
        return ""
    wanted = dotted(OLDEST_NNAL)
    return f"NNAL {version} is too old for attention on a 310P: install Ascend-cann-nnal {wanted} or newer"
