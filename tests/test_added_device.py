"""A device is one file: here one that multiplies with the schemes' references, and so gives the host's bits."""

from dataclasses import replace

import numpy as np
import pytest
from model_files import tiny_config, write_model
from scheme_references import reference as scheme_reference

from edge_llm import devices
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.devices.arrays import HostArrays
from edge_llm.devices.host import HostDevice
from edge_llm.devices.model import PlacedModel
from edge_llm.devices.watched import builder
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import reference
from edge_llm.opening.runner import load_runner
from edge_llm.operations.linear import Linear
from edge_llm.subgraphs.placement import PLACEMENTS

OPENED = []


class PlainDevice(HostDevice):
    """Products, norms and SwiGLU in NumPy, and all else as on the host.  It counts its products."""

    placement = PLACEMENTS["host"]

    def __init__(self, name, options):
        super().__init__(options.threads, shadow=options.shadow)
        self.name, self.products = name, 0

    def open(self, decoder, weights, tables, room, watch=None):
        return PlacedModel(decoder, weights, self.placement, builder(self.build, tables, watch), HostArrays(), room)

    def build(self, subgraph, tables):
        steps = [self._step(subgraph, op, tables) for op in subgraph.ops]

        def run(*given):
            for step in steps:
                step(*given)

        return run

    def _step(self, subgraph, op, tables):
        if not isinstance(op.of, Linear):
            return super().build(replace(subgraph, ops=(op,)), tables)

        def run(weights, buffers, rows, pages):
            x = buffers[op.reads[0]][: rows.count]
            x = reference.rms_norm(x, weights.gains[op.norm.gain.name], op.norm.eps) if op.norm else x
            y = scheme_reference(x, weights.linears[op.linear.name])
            y = y + buffers[op.adds][: rows.count] if op.adds else y
            buffers[op.writes[0]][: rows.count] = reference.swiglu(y) if op.kind == "linear_glu" else y
            self.products += 1

        return run


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    devices.add_device("plain", lambda *given: OPENED.append(PlainDevice(*given)) or OPENED[-1])
    folder = tmp_path_factory.mktemp("device")
    write_model(folder / "source", tiny_config("qwen3"))
    return open_bundle(import_model(folder / "source", target=folder / "bundle"))


def run(bundle, **runtime):
    runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 1, "context": 128, "activations": "static", **runtime}), 100)
    return runner.forward(runner.open(), list(range(70)), wanted=70)


@pytest.mark.parametrize("way", [{}, {"chunk": 16, "window": 3}])
def test_it_is_opened_by_name_and_gives_the_hosts_bits(bundle, way):
    OPENED.clear()
    assert np.array_equal(run(bundle, device="plain:any", **way), run(bundle))
    (device,) = OPENED
    linears = sum(len(layer.linears) for layer in bundle.decoder.layers)
    assert device.name == "plain:any" and device.products > linears  # all of them, and the head


def test_what_is_not_there_is_refused_with_what_is(bundle):
    for name, words in {"abacus": r"no device `abacus`.*host, emulated:CHIP", "host:2": "no device `host:2`"}.items():
        with pytest.raises(UsageError, match=words):
            run(bundle, device=name)
