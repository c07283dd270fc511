"""Which lengths ATB takes from the host, by chip: a 310P takes those of keys from the card, other chips from the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CHUNKS = {"atb::_npu_paged_attention_splitfuse": {"seq_len"}, "atb::_npu_paged_attention_splitfuse_v2": {"seq_len"}}
_KEYS = {name: {"context_lens"} for name in (*_CHUNKS, "atb::_npu_paged_attention")}


def on_host(soc: str, operator: str) -> set[str]:
    """The operands that ``operator`` wants in host memory."""
    keys = set() if "310P" in soc else _KEYS.get(operator, set())
    return keys | _CHUNKS.get(operator, set())


def check_lengths(soc: str, operator: str, operands: Mapping[str, Any]) -> None:
    """Raises as ATB does for lengths that lie on the card and not on the host."""
    for name in on_host(soc, operator):
        if operands[name].device.type != "cpu":
            raise RuntimeError(f"{operator.removeprefix('atb::')} setup failed: {name}: tensor.hostData is null")
