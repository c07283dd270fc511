"""The scheduling policies by name, and the choice of one for the lanes of a prefill window."""

from __future__ import annotations

from collections.abc import Sequence

from edge_llm import scheduler
from edge_llm.errors import UsageError
from edge_llm.subgraphs.ops import CARD_LANE

POLICIES: dict[str, scheduler.Policy] = {
    "in-order": scheduler.in_order,
    "first-ready": scheduler.first_ready,
    "longest-first": scheduler.longest_first,
    "critical-path": scheduler.critical_path,
    "c-value": scheduler.c_value(CARD_LANE),
    "feed": scheduler.feed(CARD_LANE),
}
AUTO = "auto"


def choose_policy(name: str, lanes: Sequence[str]) -> scheduler.Policy:
    """The policy called ``name``; `auto` is `feed` where several ``lanes`` compute, and program order where one does.

    Raises `UsageError` for an unknown name.
    """
    check_policy(name)
    return POLICIES[name] if name != AUTO else POLICIES["feed" if len(lanes) > 1 else "in-order"]


def check_policy(name: str) -> None:
    """Raise `UsageError` for the ``name`` of no policy."""
    if name != AUTO and name not in POLICIES:
        raise UsageError(f"unknown policy `{name}`; choose one of: {', '.join((AUTO, *POLICIES))}", param="policy")
