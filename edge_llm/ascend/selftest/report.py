"""What a card of this machine was measured to do: the report of its self-test is kept, and replaces estimates of its law."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_llm.ascend.npu.chips import ChipLaw
from edge_llm.errors import EdgeLLMError, StorageError
from edge_llm.files import write_whole
from edge_llm.paths import selftest_folder

Report = Mapping[str, Any]
MOST_BYTES = 4 << 20
"""Of a report."""
ESTIMATES = "estimates"
LARGEST = 1e30
"""Figures above this are none."""


def report_path(chip: str) -> Path:
    """Where the last report of a chip lies, whether there is one or not."""
    return selftest_folder() / f"{chip}.json"


def save_report(report: Report) -> Path:
    """Keep ``report`` in place of an earlier one of the same chip."""
    path = report_path(report["chip"]["name"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(report, indent=2).encode())
    except OSError as error:
        raise StorageError(f"cannot keep the report in `{path}`: {error.strerror}") from None
    return path


def saved_report(chip: str) -> Report | None:
    """The last report of a chip; None where there is none that can be read."""
    try:
        with report_path(chip).open("rb") as file:
            report = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError, EdgeLLMError):
        return None
    return report if isinstance(report, dict) else None


def measured_law(law: ChipLaw) -> ChipLaw:
    """``law`` with what the kept report of its chip measured, if there is one."""
    report = saved_report(law.name)
    return law if report is None else law_with_report(law, report)


def law_with_report(law: ChipLaw, report: Report) -> ChipLaw:
    """``law`` with the times that the self-test of such a chip measured; estimates stay where its probes failed.

    What emulated operators took says nothing of a chip.
    """
    chip = _part(report, "chip")
    if chip.get("name") != law.name or chip.get("emulated") is not False:
        return law
    times: dict[str, Any] = {name: value for name, value in _times(law, report).items() if value is not None}
    when = report.get("when")
    return replace(law, **times, measured=str(when)[:40] if when else "a day unknown") if times else law


def _times(law: ChipLaw, report: Report) -> dict[str, float | None]:
    """Of the fields of a law; None for what was not measured.  A rate that was reached is no peak: its share is 1."""
    figure = _Figures(report)
    launch, with_wait = figure("launch", "seconds"), figure("launch", "seconds_with_wait")
    wait = max(0.0, with_wait - launch) if launch and with_wait else None
    int8, float16 = figure("product_speed", "operations_per_second"), figure("float_product", "operations_per_second")
    bandwidth = figure("product_speed", "bytes_per_second")
    return {
        "launch_seconds": launch,
        "wait_seconds": wait,
        "copy_latency": _slower(figure("copies", "in_seconds"), figure("copies", "out_seconds"), max),
        "copy_rate": _slower(figure("copies", "in_bytes_per_second"), figure("copies", "out_bytes_per_second"), min),
        "replay_seconds": figure("replay", "replay_seconds"),
        "capture_seconds": figure("eager_and_replay", "capture_seconds"),
        "int8_rate": int8,
        "float16_rate": (float16 or law.float16_rate * law.rate_share) if int8 else None,
        "rate_share": 1.0 if int8 else None,
        "slow_share": 1.0 if int8 else None,
        "bandwidth": bandwidth,
        "bandwidth_share": 1.0 if bandwidth else None,
    }


def _slower(into: float | None, out: float | None, choose: Any) -> float | None:
    return choose(into, out) if into and out else into or out


class _Figures:
    """Numbers above 0 that good probes of a report gave."""

    def __init__(self, report: Report) -> None:
        self._probes = _part(report, "probes")

    def __call__(self, probe: str, name: str) -> float | None:
        figures = _part(self._probes, probe)
        value = figures.get(name)
        if figures.get("ok") is not True or isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 < value < LARGEST else None


def _part(whole: Report, name: str) -> Report:
    part = whole.get(name)
    return part if isinstance(part, dict) else {}


def source_of_times(law: ChipLaw) -> str:
    """Where the times of a law come from, for a person."""
    return f"measured by the self-test of {law.measured}" if law.measured else ESTIMATES
