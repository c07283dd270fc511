"""What a model's weights take, for `edge-llm show`: schemes, sizes and bits per weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge_llm.formats.bundle import Bundle
from edge_llm.formats.sizes import sizes, sizes_by_kind


def weights_report(bundle: Bundle) -> dict[str, Any]:
    """What the weights take, in all and by kind."""
    return {
        **sizes(bundle).to_fields(),
        "file_bytes": bundle.size,
        "by_kind": {kind: found.to_fields() for kind, found in sizes_by_kind(bundle).items()},
    }


def weights_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A table with a row per kind of linear; behind schemes stands how many linears have them."""
    rows = [(kind, row, _schemes(row["schemes"])) for kind, row in [*report["by_kind"].items(), ("all", report)]]
    width = max(len(schemes) for _, _, schemes in rows)
    yield f"kind      {'scheme'.ljust(width)}     weights       bytes  bits per weight"
    for kind, row, schemes in rows:
        yield (
            f"{kind:9} {schemes.ljust(width)} {counted(row['weights']):>11} {_size(row['bytes']):>11}"
            f" {row['bits_per_weight']:16.2f}"
        )
    yield f"The file has {report['file_bytes'] / 2**20:.2f} MiB."


def counted(count: int) -> str:
    """``count`` of parameters: millions, and a small one as it is."""
    return f"{count / 1e6:.2f} M" if count >= 100_000 else str(count)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.2f} MiB" if nbytes >= 100 * 2**10 else f"{nbytes / 2**10:.2f} KiB"


def _schemes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
