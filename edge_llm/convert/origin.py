"""What a bundle remembers of where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edge_llm.sources.base import BlockSource, PackedSource, Source
from edge_llm.sources.lora_places import made_with


def made_from(source: Source, made_by: Mapping[str, str], keep_float: bool) -> dict[str, str | None]:
    """The ``source`` of a manifest, with what was asked for in ``made_by``.

    A bundle that carries its float weights may travel: it keeps the source's name, not a path of this machine.
    """
    return {
        "kind": source.kind,
        "path": source.path if source.kind == "hub" or not keep_float else Path(source.path).name,
        **made_by,
        "float": "source" if keep_float else source.place,
        **({"from": source.quantization} if isinstance(source, PackedSource) else {}),
        **({"stamps": source.stamps} if isinstance(source, BlockSource) and not keep_float else {}),
        **made_with(source, travels=keep_float),
    }
