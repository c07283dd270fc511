"""`edge-llm bench experts`: a trace of routing through caches of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge_llm.bench import experts
from edge_llm.cli.bench.options import numbers_option, output_form, output_options, show
from edge_llm.errors import UsageError
from edge_llm.weights.budget import parse_memory
from edge_llm.weights.routing_trace import read_trace


@click.command("experts")
@click.argument("trace", type=click.Path(path_type=Path))
@numbers_option("--slots", help="Experts of a layer that are in memory.  Default: an eighth of them to three quarters.")
@click.option("--memory", multiple=True, help="The same as memory of all experts (600MiB, 25%); may be repeated.")
@output_options
def experts_command(trace: Path, slots: tuple[int, ...], memory: tuple[str, ...], **options: Any) -> None:
    """Say what caches of experts do with TRACE, which `run --trace-experts` has written.

    A row is a size of the cache under a policy: lru (least recently used), lfu (least frequently used), lrfu (both, which is
    what runs have), and the optimum, which knows what comes.  Nothing is run or measured.
    """
    if slots and memory:
        raise UsageError("--slots and --memory cannot be combined; leave one out", param="memory")
    read = read_trace(trace)
    total = sum(read.shape.expert_bytes) * read.shape.experts
    within = [experts.slots_within(read, parse_memory(one, total, "memory")) for one in memory]
    show(experts.rows(read, slots or within or experts.curve(read)), output_form(options), experts.markdown)
