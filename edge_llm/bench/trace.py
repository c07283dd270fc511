"""Runs on lanes made visible, simulated or real: a Gantt chart as text or SVG, a table of bubbles, Chrome's format.

Everything takes named runs, ``{"window 1": trace, ...}``, of `scheduler.Trace`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from edge_llm.bench.report import Column, table_of
from edge_llm.errors import StorageError
from edge_llm.scheduler import Trace

Runs = Mapping[str, Trace]


def gantt(runs: Runs, width: int = 100) -> str:
    """Each run under its name, one line a lane, with the lane's utilization behind it; ``width`` is at least 60."""
    return "\n\n".join(f"{name}\n{trace.gantt(width)}" for name, trace in runs.items())


def lanes_table(runs: Runs) -> str:
    """Markdown: work and bubbles of every lane of every run."""
    rows: list[dict[str, Any]] = []
    for name, trace in runs.items():
        for lane in trace.lanes:
            idle = [end - start for start, end in trace.bubbles(lane)]
            rows.append({"run": name, "lane": lane, "busy": trace.work(lane), "idle": idle, "all": trace.makespan})
    return table_of(rows, LANE_COLUMNS)


LANE_COLUMNS = (
    Column("run", lambda row: row["run"], right=False),
    Column("lane", lambda row: row["lane"], right=False),
    Column("busy ms", lambda row: f"{1e3 * row['busy']:.1f}"),
    Column("idle", lambda row: f"{sum(row['idle']) / (row['all'] or 1.0):.1%}"),
    Column("bubbles", lambda row: str(len(row["idle"]))),
    Column("longest ms", lambda row: f"{1e3 * max(row['idle'], default=0.0):.1f}"),
)


def chrome_json(runs: Runs) -> str:
    """For https://ui.perfetto.dev: one process per run, all beginning at 0."""
    events: list[dict[str, Any]] = []
    for process, (name, trace) in enumerate(runs.items()):
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        events += trace.chrome_events(process)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def save_chrome(path: Path, runs: Runs) -> None:
    """Write `chrome_json` to a file; `StorageError` if the system refuses."""
    try:
        path.write_text(chrome_json(runs), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write `{path}`: {error.strerror}; give another path") from None


# -- as a picture -----------------------------------------------------------------------------------------------------

MARGIN, BAR, GAP, WIDTH = 96, 22, 5, 1100
PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#eeca3b", "#b279a2", "#9d755d")


def svg(runs: Runs, title: str) -> str:
    """The runs on one time axis, lane by lane; a task has the colour of what stands before the first dot of its name."""
    longest = max((trace.makespan for trace in runs.values()), default=0.0) or 1.0
    scale = (WIDTH - 2 * MARGIN) / longest
    groups = list(dict.fromkeys(_group(span.name) for trace in runs.values() for span in trace.spans))
    lines = [_text(GAP, 18, title, weight="bold"), _legend(groups)]
    top = 52
    for name, trace in runs.items():
        lines.append(_text(GAP, top + 14, f"{name}: {1e3 * trace.makespan:.0f} ms", weight="bold"))
        top += 22
        for lane in trace.lanes:
            lines.append(_text(GAP, top + 16, f"{lane} {trace.utilization(lane):.0%}"))
            lines.append(f'<rect x="{MARGIN}" y="{top}" width="{trace.makespan * scale:.1f}" height="{BAR}" fill="#eee"/>')
            lines += [_bars(trace, lane, group, groups.index(group), top, scale) for group in groups]
            top += BAR + GAP
        top += 2 * GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    body = "\n".join(lines)
    return f'{head} font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'


def _group(name: str) -> str:
    return name.partition(".")[0]


def _bars(trace: Trace, lane: str, group: str, index: int, top: int, scale: float) -> str:
    """All spans of one lane and group as one path of rectangles."""
    boxes = "".join(
        f"M{MARGIN + span.start * scale:.1f} {top}h{span.seconds * scale:.2f}v{BAR}h-{span.seconds * scale:.2f}z"
        for span in trace.on(lane)
        if _group(span.name) == group
    )
    return f'<path d="{boxes}" fill="{PALETTE[index % len(PALETTE)]}"/>'


def _legend(groups: list[str]) -> str:
    return "".join(
        f'<rect x="{MARGIN + 90 * i}" y="28" width="12" height="12" fill="{PALETTE[i % len(PALETTE)]}"/>'
        + _text(MARGIN + 90 * i + 17, 39, group)
        for i, group in enumerate(groups)
    )


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(text)}</text>'
