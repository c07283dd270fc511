"""The INT8 bundle that a bundle with codes stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.bundle_writer import BundleWriter
from edge_llm.kernels import ThreadPool, w4


def int8_twin(bundle: Bundle, folder: Path) -> Bundle:
    """A bundle in the new ``folder`` with the INT8 weights that the codes of ``bundle`` stand for; the rest is the same."""
    folder.mkdir()
    linears = bundle.decoder.linears()
    with BundleWriter(folder) as writer:
        for record in bundle.manifest["files"]:
            writer.add_file(record["name"], [bundle.read_file(record["name"])])
        tiles: list[np.ndarray] = []  # of the parts of a linear, which come first
        for name in bundle.tensors:
            linear, _, kind = name.rpartition(".")
            array = bundle.read(name)
            if kind.startswith(("codes", "tiles")):
                columns = linears["output" if linear == "embedding" else linear].columns
                tiles.append(w4.expand(array, 16 * len(array), columns, ThreadPool(1)) if kind.startswith("codes") else array)
                continue
            if tiles:
                writer.add(f"{linear}.tiles", np.concatenate(tiles))
                tiles.clear()
            writer.add(name, array)
        writer.finish(
            bundle.config,
            {name: facts["input_scale"] for name, facts in bundle.facts.items()},
            shadows=bundle.shadows,
            profile=bundle.manifest["profile"],
            source=bundle.manifest["source"],
            created_with=bundle.manifest["created_with"],
        )
    return open_bundle(folder)
