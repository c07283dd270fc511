"""How a model with turns is quantized and what that costs, for `edge-llm show`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edge_llm.cli.shadow import outlier_profile
from edge_llm.config import INT8, ROW
from edge_llm.formats.bundle import Bundle
from edge_llm.quant.profile import LinearProfile
from edge_llm.quant.report import mean_errors
from edge_llm.quant.shadow import NONE


def turn_report(bundle: Bundle) -> dict[str, Any]:
    """Turns, errors and overflow of linears that are alike, by their kind; empty where nothing is turned.

    Errors were measured of INT8 alone: other schemes have none.
    """
    linears = bundle.decoder.linears()
    if not any(linear.turn for linear in linears.values()):
        return {}
    heads, profile = bundle.decoder.head_turns, outlier_profile(bundle)
    alike: dict[tuple[str, str, int], list[LinearProfile]] = {}
    counts: Counter[tuple[str, str, int]] = Counter()
    for name, linear in linears.items():
        key = name.rpartition(".")[2], linear.scheme, linear.turn
        counts[key] += 1
        group = alike.setdefault(key, [])
        seen = None if profile is None else profile.linears.get(name)
        if seen is not None and linear.scheme == INT8:
            group.append(seen if bundle.shadows[name] != NONE else replace(seen, error_full=seen.error_without_shadow))
    return {
        "activations": bundle.activations,
        "keys": heads.keys,
        "values": heads.values,
        "linears": [
            {"kind": kind, "scheme": scheme, "count": counts[kind, scheme, turn], "turn": turn, **mean_errors(seen)}
            for (kind, scheme, turn), seen in alike.items()
        ],
    }


def turn_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A table with a row for linears that are alike."""
    yield "linears  scheme       turn   error  error, static scales  overflow"
    for row in report["linears"]:
        line = f"{row['kind']:8} {row['scheme']:9} {row['count']:3} {_turn(row['turn']):>4}"
        if None not in (row["error"], row["error_static"]):
            line += f" {row['error']:7.1e}  {row['error_static']:20.1e}  {row['overflow']:8.2%}"
        yield line
    scales = "every row has a scale of its own" if report["activations"] == ROW else "all rows have one scale"
    yield f"Heads: keys {_turn(report['keys'])}, values {_turn(report['values'])}; {scales}, where the device can."


def _turn(block: int) -> str:
    return str(block) if block else "-"
