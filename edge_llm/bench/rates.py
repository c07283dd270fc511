"""The rates that a plan reckons with: this machine's, measured; where a card multiplies, the chip's, assumed from its law."""

from __future__ import annotations

from edge_llm.bench.disk import measure_disk
from edge_llm.bench.roofs import Costs, measure_layer
from edge_llm.config import RuntimeConfig
from edge_llm.devices.base import Device
from edge_llm.devices.emulated import EmulatedDevice
from edge_llm.formats.bundle import Bundle
from edge_llm.weights.plan import Rates
from kernels import ThreadPool
from kernels.roofs import read_bandwidth


def device_rates(bundle: Bundle, runtime: RuntimeConfig, device: Device) -> Rates:
    """What ``bundle`` is read and multiplied at by ``device`` under the resolved ``runtime``; takes a second or two."""
    assert runtime.threads is not None
    pool = ThreadPool(runtime.threads)
    here = read_bandwidth(pool)
    disk = measure_disk(bundle)
    if isinstance(device, EmulatedDevice):
        return card_rates(bundle, device, runtime.chunk, Rates(disk, here, 0.0))
    return Rates(disk, here, measure_layer(bundle.decoder.layers[0], pool, runtime.chunk))


def card_rates(bundle: Bundle, device: EmulatedDevice, chunk: int, here: Rates) -> Rates:
    """The rates beside the chip of ``device``: it multiplies the layers; disk and output matrix are the machine's, of ``here``.

    ``memory`` is the bytes of all weights of a token over the seconds of its products, launches and copies included.
    """
    costs, layers = Costs.of_bundle(bundle), len(bundle.decoder.layers)
    token, rows = (_layer_seconds(bundle, device, count) for count in (1, chunk))
    output_bytes = costs.logit_operations / 2
    return Rates(
        disk=here.disk,
        memory=costs.weight_bytes / (layers * token + output_bytes / here.memory),
        operations=chunk * costs.operations / (layers * rows),
    )


def _layer_seconds(bundle: Bundle, device: EmulatedDevice, rows: int) -> float:
    return sum(device.costs(bundle.decoder.layers[0].linears, (rows,)).values())
