"""The rates that a plan reckons with: this machine's, measured; where a card multiplies, the chip's, by its law.

A law's times are estimates until a self-test of such a chip has measured them on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from edge_llm.ascend.devices.card_cost import card_costs, layer_seconds, step_seconds
from edge_llm.ascend.devices.card_plan import CardNeeds
from edge_llm.ascend.npu.chips import ChipLaw, MatmulRoute
from edge_llm.ascend.selftest.report import measured_law
from edge_llm.bench.disk import measure_disk
from edge_llm.bench.roofs import Costs, measure_layer
from edge_llm.config import RuntimeConfig
from edge_llm.devices.base import Device, Room
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.roofs import read_bandwidth
from edge_llm.models.layer import Decoder
from edge_llm.operations.linear import Linear
from edge_llm.schemes import int8, linear_tensors, scheme_of
from edge_llm.schemes.joint import is_multiplied_as_int8
from edge_llm.weights.speeds import Rates


@runtime_checkable
class CardDevice(Device, Protocol):
    """A card, emulated or not, beside ``cpu_threads`` threads of the CPU."""

    law: ChipLaw
    route: MatmulRoute
    """The way its chip multiplies."""
    cpu_threads: int

    def needs(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> CardNeeds:
        """What the model takes of the card's memory."""
        ...

    def most(self, weights: int) -> int:
        """Bytes of the card's memory that a model may take, ``weights`` bytes of weights among them."""
        ...


def law_of(device: Device) -> ChipLaw | None:
    """The law by which a plan reckons with the chip of ``device``, its times measured if they were; None without a chip."""
    return measured_law(device.law) if isinstance(device, CardDevice) else None


def device_rates(bundle: Bundle, runtime: RuntimeConfig, device: Device) -> Rates:
    """What ``bundle`` is read and multiplied at by ``device`` under the filled-in ``runtime``; takes a second or two."""
    assert runtime.threads is not None and runtime.chunk is not None
    pool = ThreadPool(runtime.threads)
    here = read_bandwidth(pool)
    disk = measure_disk(bundle)
    if isinstance(device, CardDevice):
        return card_rates(bundle, device, runtime.chunk, Rates(disk, here, 0.0))
    return Rates(disk, here, measure_layer(bundle.decoder.layers[0], pool, runtime.chunk) / _slowness(bundle.decoder))


def _slowness(decoder: Decoder) -> float:
    """How many times as long as in INT8 the CPU takes for the products of all layers; 1 where all linears are INT8."""
    linears = [linear for layer in decoder.layers for linear in layer.linears]
    return sum(scheme_of(linear).cost(linear) for linear in linears) / sum(int8.cost(linear) for linear in linears)


def card_rates(bundle: Bundle, device: CardDevice, chunk: int, here: Rates) -> Rates:
    """The rates beside the chip of ``device``: it does what its placement says; all else is the machine's, of ``here``.

    ``memory`` is the bytes of all weights of a token over the seconds of its products, launches and copies included.  In a
    prompt, a linear that the chip does not multiply takes the CPU the time that import reckons with.
    """
    costs, law, route = Costs.of_bundle(bundle), measured_law(device.law), device.route
    if device.placement.alone:
        seconds = {rows: _alone_seconds(bundle.decoder, law, route, rows) for rows in (1, chunk)}
        operations = chunk * costs.operations / seconds[chunk]
        return Rates(here.disk, costs.weight_bytes / seconds[1], operations, law.copy_rate)
    token, rows = (_card_seconds(bundle.decoder, law, route, count) for count in (1, chunk))
    beside = list(_beside(bundle.decoder))
    names = [(f"{name}.{tensor}", share) for name, one, share in beside for tensor, _, _ in linear_tensors(one, 0)]
    beside_bytes = sum(share * bundle.tensors[name].nbytes for name, share in names)
    beside_seconds = 1e-6 * sum(share * scheme_of(one).cost(one) for _, one, share in beside) / device.cpu_threads
    on_card = costs.weight_bytes / (token + (costs.logit_operations / 2 + beside_bytes) / here.memory)
    return Rates(
        disk=here.disk,
        memory=here.memory if device.placement.decodes_on_host else on_card,
        operations=chunk * costs.operations / (rows + chunk * beside_seconds),
        copies=law.copy_rate,
    )


def _beside(decoder: Decoder) -> Iterator[tuple[str, Linear, float]]:
    """The linears that the CPU multiplies beside a chip: names, and of how much of each a row takes part."""
    for index, layer in enumerate(decoder.layers):
        for operation in layer.operations:
            for one in layer.linears_of(operation):
                if one not in layer.for_cards or not is_multiplied_as_int8(one.scheme):
                    yield f"layers.{index}.{one.name}", one, operation.share
    if not is_multiplied_as_int8(decoder.output.scheme):
        yield "output", decoder.output, 1.0


def _alone_seconds(decoder: Decoder, law: ChipLaw, route: MatmulRoute, rows: int) -> float:
    """Of ``rows`` rows on the chip alone: a prompt from its beginning, layer by layer, or a whole step."""
    if rows > 1:
        return sum(layer_seconds(law, route, layer, rows, rows) for layer in decoder.layers)
    return step_seconds(law, route, decoder.layers, decoder.output, rows, keys=1)


def _card_seconds(decoder: Decoder, law: ChipLaw, route: MatmulRoute, rows: int) -> float:
    """Of the chip's products of all layers for ``rows`` rows."""
    on_card = ((one for one in layer.for_cards if is_multiplied_as_int8(one.scheme)) for layer in decoder.layers)
    return sum(sum(card_costs(law, route, linears, (rows,)).values()) for linears in on_card)
