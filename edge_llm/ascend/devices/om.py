"""Compiled products (OM files) on a chip that `torch_npu` does not list, such as a 310B, beside this machine's CPU.

An export that `atc.sh` compiled is a folder; its files multiply the chunks of a prompt.  All that is float runs on the CPU's
lane, and steps run there as a whole (placement *split,host*), with the chip's rounding.  The chip has its own copy of the
weights in each compiled number of rows, so only those numbers are loaded that chunks need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edge_llm.ascend.devices.card_plan import CardNeeds
from edge_llm.ascend.devices.card_weights import CardBlock, CardSlot, CardWeights, Load, int8_linears, rounded_linears
from edge_llm.ascend.devices.om_folder import OmFile, OmFolder, read_om_folder
from edge_llm.ascend.npu.law import check_product
from edge_llm.ascend.npu.om_models import Chip, Compiled, Model, Models, open_chip, shared_bytes
from edge_llm.config import STATIC
from edge_llm.devices.arrays import HostArrays
from edge_llm.devices.base import (
    INT8_KEYS,
    Buffers,
    DeviceModel,
    DeviceOptions,
    Room,
    Rows,
    RunSubgraph,
    Watch,
    check_int8_keys,
    no_device,
)
from edge_llm.devices.host import HostDevice
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.devices.model import PlacedModel
from edge_llm.devices.watched import builder
from edge_llm.errors import DeviceError
from edge_llm.files import shown
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.linear import linear_rounded
from edge_llm.kv.pages import kv_bytes, page_bytes
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.subgraphs.ops import CARD_LANE, Subgraph
from edge_llm.subgraphs.placement import choose_placement, unfit_beside_cards
from edge_llm.weights.base import Weights

NAME = "om"
ABLE = ("split,host",)
ROUTE = "float16"
VALUE_BYTES = 2  # rows and products are float16

Loaded = Mapping[int, Mapping[str, Mapping[int, Model]]]
"""Models by layer, linear and number of rows."""


class OmDevice:
    """The compiled products of ``folder`` on ``chip`` beside ``options.threads`` threads of the CPU."""

    keys = INT8_KEYS
    activations = (STATIC,)
    host_embeds = True

    def __init__(self, folder: OmFolder, chip: Chip, options: DeviceOptions) -> None:
        law = folder.law
        if not chip.name.lower().startswith(f"ascend{law.name}"):
            raise DeviceError(f"`{shown(folder.path)}` is compiled for {law.soc}, and the chip here is {shown(chip.name)}")
        self.name = self.numerics = f"{NAME}:{law.name}"
        self.placement, self.placement_reason = choose_placement(
            options.placement, ABLE, f"the device `{self.name}`", unfit_beside_cards(options.decoder)
        )
        self.law = law.of_memory(_main_memory()) if law.shares_memory else law
        self.route = law.route(ROUTE)
        self.cpu_threads = options.threads
        self._folder = folder
        self._known: dict[OmFile, Compiled] = {}
        self._chip = chip
        self._memory = options.card_memory
        self._host = HostDevice(options.threads, shadow=options.shadow)

    @property
    def pool(self) -> ThreadPool:
        return self._host.pool

    @property
    def overflow(self) -> int | None:
        return self._host.overflow

    def open(
        self, decoder: Decoder, weights: Weights, tables: RopeTables, room: Room, watch: Watch | None = None
    ) -> DeviceModel:
        loaded = self._load(self._files(room))
        _check_layers(loaded, weights, self._host.pool)
        products = CardWeights(weights, _loader(loaded), len(decoder.layers))
        return PlacedModel(decoder, products, self.placement, builder(self.build, tables, watch), HostArrays(), room)

    def streamed(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> tuple[int, ...]:
        """None: the chip's weights are in the OM files.  Raises `DeviceError` for those of another model, and missing ones."""
        self._folder.check_model(decoder, tensors)
        needs = self.needs(decoder, tensors, room)
        most = self.most(needs.weights(()))
        if needs.total > most:
            lengths = ", ".join(str(length) for length in self._folder.compiled(room.lengths))
            raise DeviceError(
                f"the OM files of {lengths} rows take {needs.total} bytes, and only {most} may be taken; nothing of them is "
                "streamed: compile fewer numbers of rows, raise --card-memory, or use --device host"
            )
        return ()

    def needs(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> CardNeeds:
        """What the model takes of the chip's memory."""
        files = self._files(room)
        layers = [0] * len(decoder.layers)
        for file in files:
            layers[file.layer] += self._compiled(file).weights
        return CardNeeds(tuple(layers), sum(shared_bytes([self._compiled(file) for file in files])))

    def most(self, weights: int) -> int:
        """Bytes of the chip's memory that a model may take, ``weights`` bytes of weights among them."""
        return self.law.ceiling(weights) if self._memory is None else self._memory

    def page_bytes(self, decoder: Decoder) -> int:
        return page_bytes(decoder.attentions)

    def kv_bytes(self, decoder: Decoder, tokens: int) -> int:
        return kv_bytes(decoder.attentions, tokens)

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        if subgraph.lane == CARD_LANE:
            return self._build_products(subgraph)
        return self._host.build(subgraph, tables)

    def _build_products(self, subgraph: Subgraph) -> RunSubgraph:
        steps = tuple(_Product(op, *self._folder.compiled((subgraph.rows,))) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            for step in steps:
                step.run(weights, buffers, rows.count)

        return run

    def _files(self, room: Room) -> list[OmFile]:
        """Those that are loaded.  Raises `DeviceError` for missing ones."""
        lengths = self._folder.compiled(room.lengths)
        return [file for file in self._folder.files if file.length in lengths]

    def _compiled(self, file: OmFile) -> Compiled:
        """``file`` as the chip knows it, which reads it once."""
        if file not in self._known:
            sizes = (VALUE_BYTES * file.length * width for width in (file.columns, file.outputs))
            self._known[file] = self._chip.look_at(file.path, *sizes)
        return self._known[file]

    def _load(self, files: Sequence[OmFile]) -> Loaded:
        """All ``files`` on the chip."""
        for file in files:
            sizes = self.law.padded(file.columns, file.outputs)
            check_product(self.law, self.route, file.length, *sizes, bias=True)
        loaded: dict[int, dict[str, dict[int, Model]]] = {}
        models = Models(self._chip, self.name).load([self._compiled(file) for file in files])
        for file, model in zip(files, models, strict=True):
            loaded.setdefault(file.layer, {}).setdefault(file.part, {})[file.length] = model
        return loaded


def _main_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _loader(loaded: Loaded) -> Load[Mapping[int, Model]]:
    """Finds the models of a layer; the host keeps all of its weights, and rounds what it multiplies as the chip does."""

    def load(host: Weights, index: int, slot: CardSlot[Mapping[int, Model]]) -> CardBlock[Mapping[int, Model]]:
        here = host.host_part(index)
        return CardBlock(rounded_linears(here.linears), here.gains, experts=here.experts, card=loaded.get(index, {}))

    return load


def _check_layers(loaded: Loaded, weights: Weights, pool: ThreadPool) -> None:
    """Ask every model for a product that the host knows; streamed layers are read once for it."""
    for index, models in loaded.items():
        weights.request(index)
        weights.wait(index)
        for name, linear in int8_linears(weights.use(index)).items():
            for length, model in models[name].items():
                _check_bits(model, linear, length, pool)


def _check_bits(model: Model, weight: Int8Weight, length: int, pool: ThreadPool) -> None:
    """Raises `DeviceError` unless ``model`` gives the host's bits: else a token's keys would depend on where it was computed.

    One row of extremes, and one of all values.
    """
    columns = np.arange(weight.columns)
    asked = np.stack([np.full(weight.columns, 127), 37 * columns % 255 - 127]).astype(np.int8)[:length]
    rows, product = np.zeros((length, weight.columns), np.float16), np.empty((length, weight.rows), np.float16)
    rows[: len(asked)] = asked
    model.run(rows, product)
    found = product[: len(asked)].astype(np.float32)
    wanted = linear_rounded(asked, weight.tiles, weight.rows, weight.rounding, weight.row_sum, pool)
    other = found != wanted
    if other.any():
        raise DeviceError(
            f"`{shown(model.path)}` gives other values than float16((rows @ weight + bias) * scale): {other.sum()} of "
            f"{other.size} differ, such as {found[other][0]:g} for {wanted[other][0]:g}; it was compiled from another export, "
            "or this chip rounds in another way: compile it again, and report it if that does not help; --device host does "
            "without"
        )


class _Product:
    """One INT8 product of a static subgraph in models of ``length`` rows, and the rows that go in and come out."""

    def __init__(self, op: Op, length: int) -> None:
        self._length = length
        self._name = op.linear.name
        self._reads, self._writes = op.reads[0], op.writes[0]
        self._rows = np.zeros((length, op.linear.columns), np.float16)
        self._product = np.empty((length, op.linear.rows), np.float16)

    def run(self, weights: BlockWeights, buffers: Buffers, count: int) -> None:
        """The product of ``count`` rows; the other rows of the model hold what was there before."""
        assert isinstance(weights, CardBlock), "the weights are not on the chip"
        self._rows[:count] = buffers[self._reads][:count]
        weights.card[self._name][self._length].run(self._rows, self._product)
        buffers[self._writes][:count] = self._product[:count]


def open_device(name: str, options: DeviceOptions) -> OmDevice:
    """The device called ``om:FOLDER``.

    Raises `UsageError` where there is no folder, `DeviceError` for one that is no compiled export, and when the chip cannot be
    used, with the remedy.
    """
    _, _, folder = name.partition(":")
    if not folder:
        raise no_device(name, f"compiled products are called `{NAME}:FOLDER`")
    check_int8_keys(options.keys, f"the device `{NAME}`")
    return OmDevice(read_om_folder(Path(folder)), open_chip(), options)
