"""What to do about an error of the card, by what torch_npu says of it.  Sources as in `edge_llm.ascend.npu.machine`."""

from __future__ import annotations

import re
import sys

from edge_llm.ascend.npu.packages import RELEASES
from edge_llm.ascend.npu.settings import OLD_OPERATORS, compiler_finding

_STREAMS = "end other processes on the card, and install Ascend HDK 25.5.1 or newer"  # [doc][vllm]
_REMEDIES = (
    (r"Acl op is disabled", f"`unset {OLD_OPERATORS}`"),  # [run]
    (r"\b561103\b", "`edge-llm doctor`, row `CANN kernels`: they may be missing, or be another chip's"),  # [web]
    (r"\b207008\b|Stream resources|[Ss]q cq", _STREAMS),
    (r"libatb", "install NNAL for this CANN, then `source .../nnal/atb/set_env.sh`"),  # [whl]
    (r"has no attribute", f"install a torch_npu that has it, {RELEASES}"),
)  # fmt: skip
_COMPILER = re.compile(r"\b500001\b|SetPrecisionMode|GEInitialize")
_INVALIDATED_CAPTURE = 507903


def means_lost(text: str) -> bool:
    """Whether the card itself failed: its codes are 507xxx, all but the one of a capture that something else ended."""
    return any(int(code) != _INVALIDATED_CAPTURE for code in re.findall(r"\b507[0-9]{3}\b", text))


def remedy(text: str) -> str:
    """The way out of an error that says ``text``; empty where none is known."""
    if _COMPILER.search(text):
        lacking = compiler_finding(tuple(sys.path), needed=True)
        return lacking.advice or "`edge-llm doctor`: toolkit, kernels and torch_npu may be of different versions"
    return next((advice for said, advice in _REMEDIES if re.search(said, text)), "")


def with_remedy(line: str, text: str) -> str:
    """``line`` and the way out of the error that says ``text``."""
    found = remedy(text)
    return f"{line}; {found}" if found else line
