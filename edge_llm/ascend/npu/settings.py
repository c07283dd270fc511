"""Environment variables and Python packages that decide whether a card works: what is wrong with them, and the remedy.

Sources as in `edge_llm.ascend.npu.machine`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from edge_llm.ascend.npu.finding import Finding
from edge_llm.ascend.npu.packages import find_package

TASK_QUEUE, ALLOCATOR, BLOCKING = "TASK_QUEUE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_LAUNCH_BLOCKING"
OLD_OPERATORS = "ACL_OP_INIT_MODE"
COMPILER_PACKAGES = (
    "attrs", "numpy", "decorator", "sympy", "cffi", "pyyaml", "pathlib2", "psutil", "protobuf", "scipy", "requests", "absl-py",
)  # fmt: skip
"""[vllm] What CANN's compiler of operators imports; on a 310P it lays out every weight."""
_NO_GRAPHS = "refused by captured graphs, so steps are given operator by operator"
_PINNED_SEGMENTS = re.compile(r"[ \t]*pin_memory_expandable_segments[ \t]*:[ \t]*true[ \t]*", re.IGNORECASE)


def setting_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The variables that are set to what a card cannot work with, or not well; nothing where there are none."""
    yield from graph_findings(environment)
    if environment.get(OLD_OPERATORS, "").strip() == "2":  # [run] "Acl op is disabled!"
        value = "`2` forbids npu_format_cast on a 310P, so no weight can be loaded"
        yield Finding(OLD_OPERATORS, value, good=False, advice=f"`unset {OLD_OPERATORS}`")


def graph_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Those with which no graph is captured: [run] torch_npu refuses with the first two, [vllm] and does not with the third."""
    if environment.get(TASK_QUEUE, "").strip() == "2":
        advice = f"`export {TASK_QUEUE}=1`"
        yield Finding(TASK_QUEUE, f"`2` is {_NO_GRAPHS}", good=False, advice=advice, dispensable=True)
    parts = environment.get(ALLOCATOR, "").split(",")
    others = [part for part in parts if not _PINNED_SEGMENTS.fullmatch(part)]
    if len(others) < len(parts):
        kept = "".join(char for char in ",".join(others) if char.isprintable())
        advice = f"`export {ALLOCATOR}={shlex.quote(kept)}`" if kept else f"`unset {ALLOCATOR}`"
        value = f"`pin_memory_expandable_segments:True` is {_NO_GRAPHS}"
        yield Finding(ALLOCATOR, value, good=False, advice=advice, dispensable=True)
    if environment.get(BLOCKING, "").strip() == "1":
        advice = f"`unset {BLOCKING}`"
        yield Finding(BLOCKING, f"`1` is {_NO_GRAPHS}", good=False, advice=advice, dispensable=True)


def compiler_finding(search: tuple[str, ...], needed: bool) -> Finding:
    """Whether CANN's compiler has its packages; without them the first weight on a 310P fails with error 500001 [web].

    A chip for which it is not ``needed`` has compiled operators for all that is called.
    """
    missing = [name for name in COMPILER_PACKAGES if find_package(name, search) is None]
    if not missing:
        return Finding("CANN compiler", "has its Python packages", good=True)
    value = f"lacks Python packages: {', '.join(missing)}"
    return Finding("CANN compiler", value, good=False if needed else None, advice=f"`pip install {' '.join(missing)}`")
