"""Rows of measurements as the tables that llama-bench prints, so that the two paste side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = ("md", "json", "jsonl", "csv")


def render(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """``rows`` in one of `FORMATS`; no newline at the end."""
    return {"md": markdown, "json": _json, "jsonl": _json_lines, "csv": _csv}[form](rows)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """llama-bench's markdown layout: | model | size | params | backend | threads | test | t/s |."""
    head = ("model", "size", "params", "backend", "threads", "test", "t/s")
    cells = [
        (
            row["model_type"],
            f"{row['model_size'] / 2**20:.2f} MiB",
            f"{row['model_n_params'] / 1e6:.2f} M",
            row["backends"],
            str(row["n_threads"]),
            row["test"],
            f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    right = (False, True, True, False, True, True, True)

    def line(values: Sequence[str]) -> str:
        padded = (v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = "| " + " | ".join("-" * (w - 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True)) + " |"
    return "\n".join([line(head), rule, *map(line, cells)])


def _json(rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(rows), indent=2)


def _json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    names = [name for name in rows[0] if not name.startswith("samples")] if rows else []
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
