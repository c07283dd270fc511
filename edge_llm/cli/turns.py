"""How a model with turns is quantized and what that costs, for `edge-llm show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge_llm.cli.shadow import outlier_profile
from edge_llm.config import ROW
from edge_llm.formats.bundle import Bundle


def turn_report(bundle: Bundle) -> dict[str, Any]:
    """Turns, errors and overflow by kind of linear; empty where nothing is turned."""
    linears = bundle.decoder.linears()
    if not any(linear.turn for linear in linears.values()):
        return {}
    heads, profile = bundle.decoder.head_turns, outlier_profile(bundle)
    kinds: dict[str, dict[str, Any]] = {}
    for name, linear in linears.items():
        kind = kinds.setdefault(name.rpartition(".")[2], {"linears": 0, "turn": linear.turn, "columns": linear.columns})
        kind["linears"] += 1
        seen = None if profile is None else profile.linears.get(name)
        if seen is not None:
            for key, value in (("error", seen.error), ("error_static", seen.error_full), ("overflow", seen.overflow)):
                kind[key] = kind.get(key, 0.0) + (value or 0.0)
    for kind in kinds.values():
        for key in ("error", "error_static", "overflow"):
            kind[key] = kind[key] / kind["linears"] if key in kind else None
    return {
        "activations": bundle.activations,
        "keys": heads.keys,
        "values": heads.values,
        "by_kind": kinds,
        "cost": None if profile is None else profile.choice.get("coded"),
    }


def turn_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A table with a row per kind of linear, and what all of it costs."""
    yield "linears      turn   error  error, static scales  overflow"
    for kind, row in report["by_kind"].items():
        if row["error"] is None:
            yield f"{kind:8} {row['linears']:3} {_turn(row['turn']):>4}"
            continue
        yield (
            f"{kind:8} {row['linears']:3} {_turn(row['turn']):>4} {row['error']:7.1e}  {row['error_static']:20.1e}"
            f"  {row['overflow']:8.2%}"
        )
    scales = "every row has a scale of its own" if report["activations"] == ROW else "all rows have one scale"
    yield f"Heads: keys {_turn(report['keys'])}, values {_turn(report['values'])}; {scales}, where the device can."
    if report["cost"] is not None:
        yield f"All of it costs {report['cost']:.2f} % of perplexity on the calibration text."


def _turn(block: int) -> str:
    return str(block) if block else "-"
