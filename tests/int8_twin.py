"""The INT8 bundle that a W4 bundle stands for."""

from __future__ import annotations

from pathlib import Path

from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.bundle_writer import BundleWriter
from kernels import ThreadPool, w4


def int8_twin(bundle: Bundle, folder: Path) -> Bundle:
    """A bundle in the new ``folder`` with the INT8 weights that the codes of ``bundle`` stand for; the rest is the same."""
    folder.mkdir()
    linears = bundle.decoder.linears()
    with BundleWriter(folder) as writer:
        for record in bundle.manifest["files"]:
            writer.add_file(record["name"], [bundle.read_file(record["name"])])
        for name in bundle.tensors:
            linear, _, kind = name.rpartition(".")
            array = bundle.read(name)
            if kind == "codes":
                of = linears["output" if linear == "embedding" else linear]
                array = w4.expand(array, of.rows, of.columns, ThreadPool(1))
                name = f"{linear}.tiles"
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
