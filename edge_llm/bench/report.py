"""Rows of measurements as the tables that llama-bench prints, so that the two paste side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

FORMATS = ("md", "json", "jsonl", "csv")

Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column of the Markdown table."""

    head: str
    cell: Callable[[Row], str]
    right: bool = True


COLUMNS = (
    Column("model", lambda row: row["model_type"], right=False),
    Column("size", lambda row: f"{row['model_size'] / 2**20:.2f} MiB"),
    Column("params", lambda row: f"{row['model_n_params'] / 1e6:.2f} M"),
    Column("backend", lambda row: row["backends"], right=False),
    Column("threads", lambda row: str(row["n_threads"])),
    Column("test", lambda row: row["test"]),
    Column("t/s", lambda row: f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"),
)
"""Exactly llama-bench's."""
OPTIONAL = (
    Column("bits/weight", lambda row: _number(row.get("bits_per_weight"), ".2f")),
    Column("KL x 1000", lambda row: _number(row.get("mean_kl"), ".2f", of=1e-3)),
    Column("top-1", lambda row: _number(row.get("top1_agreement"), ".1%")),
    Column("GOP/s", lambda row: _number(row["gops"], ".0f")),
    Column("GB/s", lambda row: _number(row["gb_s"], ".1f")),
    Column("of roof", lambda row: _number(row["gops_share"] or row["gb_s_share"], ".0%")),
    Column("streamed", lambda row: _number(row.get("streamed_bytes_per_token"), ".0f", " MiB", 2**20)),
    Column("hits", lambda row: _number(row.get("expert_hit_rate", row.get("neuron_hit_rate")), ".0%")),
    Column("guessed", lambda row: _number(row.get("expert_guess_rate"), ".0%")),
    Column("disk", lambda row: _number(row.get("disk_bytes_per_s"), ".2f", " GB/s", 1e9)),
    Column("of disk", lambda row: _number(row.get("disk_share"), ".0%")),
    Column("disk busy", lambda row: _number(row.get("disk_busy_share"), ".0%")),
    Column("edge-llm / peer", lambda row: _ratio(row)),
    Column("first token", lambda row: _number(row["ttft_ms"], ".0f", " ms")),
    Column("from flash", lambda row: _number(row.get("ttft_cold_ms"), ".0f", " ms")),
    Column("peak memory", lambda row: _number(row["ttft_peak_rss_bytes"], ".0f", " MiB", 2**20)),
    Column("vs. saved", lambda row: _number(row.get("saved_ratio"), ".2f", "x")),
)
"""Each is shown when the run was asked for it, see `_wanted`."""


def render(rows: Sequence[Row], form: str) -> str:
    """``rows`` in one of `FORMATS`; no newline at the end."""
    return {"md": markdown, "json": _json, "jsonl": _json_lines, "csv": _csv}[form](rows)


def markdown(rows: Sequence[Row]) -> str:
    """llama-bench's layout, | model | size | params | backend | threads | test | t/s |, and behind it what was asked for."""
    return table_of(rows, [*COLUMNS, *(column for column in OPTIONAL if _wanted(column.head, rows))])


def table_of(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A Markdown table, aligned for reading as plain text too."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [[c.head for c in columns], *cells]) for i in range(len(columns))]

    def line(values: Sequence[str]) -> str:
        padded = (
            value.rjust(width) if column.right else value.ljust(width)
            for value, width, column in zip(values, widths, columns, strict=True)
        )
        return markdown_line(padded)

    rule = (
        "-" * (width - 1) + (":" if column.right else "-") for width, column in zip(widths, columns, strict=True)
    )
    return "\n".join([line([c.head for c in columns]), markdown_line(rule), *map(line, cells)])


def markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> list[str]:
    """The lines of a Markdown table of texts; with ``right`` all columns but the first are aligned to the right."""
    rule = ["---", *["---:" if right else "---"] * (len(head) - 1)]
    return [markdown_line(cells) for cells in (head, rule, *rows)]


def markdown_line(cells: Iterable[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _wanted(head: str, rows: Sequence[Row]) -> bool:
    key = {
        "bits/weight": "bits_per_weight", "KL x 1000": "mean_kl", "top-1": "top1_agreement",
        "GOP/s": "gops_share", "GB/s": "gb_s_share", "of roof": "roof_gops", "edge-llm / peer": "ratio",
        "first token": "ttft_ms", "from flash": "ttft_cold_ms", "peak memory": "ttft_ms", "vs. saved": "saved_ratio",
        "streamed": "disk_bytes_per_s", "disk": "disk_bytes_per_s", "of disk": "disk_share",
        "disk busy": "disk_busy_share", "hits": "expert_hit_rate", "guessed": "expert_guess_rate",
    }[head]  # fmt: skip
    return any(row.get(key) is not None for row in rows)


def _number(value: float | None, form: str, unit: str = "", of: float = 1) -> str:
    return "" if value is None else f"{value / of:{form}}{unit}"


def _ratio(row: Row) -> str:
    return "" if row["ratio"] is None else f"{row['ratio']:.2f}x ({row['ratio_low']:.2f}-{row['ratio_high']:.2f})"


def _json(rows: Sequence[Row]) -> str:
    return json.dumps(list(rows), indent=2)


def _json_lines(rows: Sequence[Row]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def _csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    nested = [name for name, value in rows[0].items() if isinstance(value, list | dict)] if rows else []
    names = [name for name in (rows[0] if rows else ()) if name not in nested and not name.startswith("samples")]
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
