"""Weights streamed from flash are the weights: whatever the budget, the order, and what the disk does in between."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.bench import synthetic
from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig
from edge_llm.errors import CorruptBundle, StorageError, UsageError
from edge_llm.formats import direct, layout
from edge_llm.formats.block_reader import BlockReader
from edge_llm.formats.bundle import Bundle, aligned_empty, open_bundle
from edge_llm.formats.direct import HUGE_PAGE_BYTES, DirectFile, direct_buffers, range_reader
from edge_llm.formats.layout import BLOCK_ALIGNMENT
from edge_llm.formats.manifest import encode_manifest
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.layout import gather_rows
from edge_llm.kernels.program import Program
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights import table
from edge_llm.weights.memory_plan import MemoryPlan
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.sizes import EMBEDDING_ALONE, WeightSizes
from edge_llm.weights.streamed import StreamedWeights

pytestmark = pytest.mark.thorough(file=8)

CONFIG = LlamaConfig(
    family="qwen2",
    vocab_size=300,
    hidden_size=64,
    intermediate_size=160,
    num_layers=7,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context=64,
    norm_eps=1e-6,
    rope_theta=1e4,
    qkv_bias=True,
)


@pytest.fixture(scope="module", autouse=True)
def short_requests() -> Iterator[None]:
    """Requests of a page, so that a tiny layer takes many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "REQUEST_BYTES", BLOCK_ALIGNMENT)
        yield


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, random_tensor = tmp_path_factory.mktemp("model"), synthetic._random_tensor

    def uneven(name: str, shape: tuple[int, ...], columns: int, random: np.random.Generator) -> np.ndarray:
        """Scales and gains of a layer's own."""
        array = random_tensor(name, shape, columns, random)
        return array * random.uniform(0.5, 1.5, shape).astype(np.float32) if array.dtype == np.float32 else array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "_random_tensor", uneven)
        write_random(path, dataclasses.replace(CONFIG, tied_embeddings=request.param))
    return path


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def plan_for(bundle: Bundle, streamed: int, slots: int) -> MemoryPlan:
    """The plan with the budget that leaves ``streamed`` layers on flash."""
    sizes = WeightSizes.of_bundle(bundle)
    resident = sum(size.held for size in sizes.layers[: CONFIG.num_layers - streamed])
    scales = streamed * max(size.held - size.stored for size in sizes.layers)
    streaming = slots * max(size.stored for size in sizes.layers) + scales
    plan = plan_memory(sizes, sizes.fixed + resident + streaming, slots=slots)
    assert (len(plan.streamed), plan.slots) == (streamed, slots)
    return plan


def arrays_of(block: BlockWeights) -> dict[str, Any]:
    """Everything in a block, flat."""
    flat: dict[str, Any] = {f"gains.{name}": gain for name, gain in block.gains.items()}
    for name, linear in block.linears.items():
        flat |= {f"{name}.{field.name}": getattr(linear, field.name) for field in dataclasses.fields(linear)}
    return flat


def assert_same(mine: BlockWeights, theirs: BlockWeights) -> None:
    left, right = arrays_of(mine), arrays_of(theirs)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert np.array_equal(value, right[name]), name


def sweep(weights: StreamedWeights) -> Iterator[tuple[int, BlockWeights]]:
    """The layers in order, as a runner visits them: `slots` requests ahead."""
    ahead = [*weights.streamed, *weights.streamed[: weights.slots]]
    for index in ahead[: weights.slots]:
        weights.request(index)
    for index in range(CONFIG.num_layers):
        weights.wait(index)
        yield index, weights.use(index)
        if index in weights.streamed:
            weights.request(ahead[ahead.index(index) + weights.slots])


@pytest.mark.parametrize(("streamed", "slots"), [(4, 3), (5, 3), (7, 3), (7, 2)])
def test_streamed_is_resident(folder: Path, streamed: int, slots: int) -> None:
    with open_bundle(folder) as bundle:
        resident = ResidentWeights(bundle)
        weights = StreamedWeights(bundle, plan_for(bundle, streamed, slots))
        for _ in range(3):
            for index, layer in sweep(weights):
                assert_same(layer, resident.use(index))
        assert_same(weights.head, resident.head)
        assert np.array_equal(weights.embedding.tiles, resident.embedding.tiles)
        weights.close()


def test_all_resident_when_the_budget_allows(folder: Path) -> None:
    with open_bundle(folder) as bundle:
        sizes = WeightSizes.of_bundle(bundle)
        weights = StreamedWeights(bundle, plan_memory(sizes, sizes.total))
        resident = ResidentWeights(bundle)
        assert (weights.streamed, weights.slots) == ((), 0)
        for index in range(CONFIG.num_layers):
            weights.wait(index)
            assert_same(weights.use(index), resident.use(index))


@settings(max_examples=20, deadline=None)
@given(order=st.lists(st.integers(0, CONFIG.num_layers - 1), max_size=30))
def test_the_last_layers_that_were_read_are_there(folder: Path, order: list[int]) -> None:
    with open_bundle(folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, CONFIG.num_layers, 3))
        asked: list[int] = []
        for index in order:
            weights.request(index)
            weights.wait(index)
            asked = [*(other for other in asked if other != index), index]
            for there in asked[-3:]:
                expected = bundle.read(f"layers.{there}.down.tiles")
                assert np.array_equal(weights.use(there).linears["down"].tiles, expected)
        weights.close()


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from([(4, 3), (5, 3), (7, 3), (7, 2)]),
    start=st.lists(st.integers(0, CONFIG.num_layers - 1), max_size=4),
    random=st.randoms(use_true_random=False),
)
def test_any_interleaving_of_the_lanes(folder: Path, shape: tuple[int, int], start: list[int], random: Random) -> None:
    """A request waits for the last use of the layer ``slots`` streamed layers earlier, a read for its request, a use for
    its read."""
    with open_bundle(folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, *shape))
        for index in start:  # a sweep that was given up
            weights.request(index)
        for _ in range(2):
            layers = [*weights.streamed, *weights.streamed[: weights.slots]]
            requested = read = used = 0
            while requested < len(layers) or used < len(weights.streamed):
                may_request = requested < len(layers) and requested - weights.slots < used
                may_read = read < min(requested, len(weights.streamed))
                step = random.choice([*["request"] * may_request, *["read"] * may_read, *["use"] * (used < read)])
                if step == "request":
                    weights.request(layers[requested])
                    requested += 1
                elif step == "read":
                    weights.wait(layers[read])
                    read += 1
                else:
                    index = weights.streamed[used]
                    expected = bundle.read(f"layers.{index}.o.tiles")
                    assert np.array_equal(weights.use(index).linears["o"].tiles, expected)
                    used += 1
        weights.close()


def test_memory_is_what_the_plan_says(folder: Path) -> None:
    with open_bundle(folder) as bundle:
        plan = plan_for(bundle, 5, 3)
        weights = StreamedWeights(bundle, plan)
        blocks = [*(weights.use(index) for index, _ in sweep(weights)), weights.head, weights.head]
        assert weights.nbytes == plan.held_bytes <= plan.budget < bundle.size
        buffers = {id(_owner(array)): _owner(array).nbytes for block in blocks for array in _tensors(block)}
        table = weights.embedding
        buffers |= {id(_owner(array)): _owner(array).nbytes for array in (table.tiles, table.product_scale)}
        padding = len(buffers) * BLOCK_ALIGNMENT + HUGE_PAGE_BYTES  # of buffers that begin on a page; slots on a huge one
        assert sum(buffers.values()) <= weights.nbytes + padding


def _tensors(block: BlockWeights) -> list[np.ndarray]:
    return [value for value in arrays_of(block).values() if isinstance(value, np.ndarray)]


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_reading_again_takes_no_new_memory(folder: Path) -> None:
    with open_bundle(folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2))
        places = {weights.use(index).linears["qkv"].tiles.ctypes.data for _ in range(3) for index, _ in sweep(weights)}
        assert len(places) == 2


def test_a_program_of_a_layer_whose_buffer_has_another_one_multiplies_by_its_own_weights(folder: Path) -> None:
    x, pool = np.random.default_rng(1).standard_normal((1, 160), np.float32), ThreadPool(1)
    row = (np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int32))
    with open_bundle(folder) as bundle:
        weights, resident = StreamedWeights(bundle, plan_for(bundle, 7, 2)), ResidentWeights(bundle).use(0)
        weights.wait(0)
        layer = weights.use(0)
        inputs = {name: x[:, : linear.columns].copy() for name, linear in layer.linears.items()}
        products = {name: np.empty((1, linear.rows), np.float32) for name, linear in layer.linears.items()}
        for other in (1, 2):  # the second is in the buffer of layer 0
            weights.wait(other)
        program, how = Program(), {"add": None, "shadow": True, "gain": None, "eps": 0.0, "gate": None}
        assert all(one.add_to(program, inputs[name], **how, out=products[name]) for name, one in layer.linears.items())
        for other in (3, 0):
            weights.wait(other)
        assert weights.use(0) is layer
        program.run(*row, np.zeros((1, 1), np.int32), pool)
        for name, linear in resident.linears.items():
            assert np.array_equal(products[name], linear.apply(inputs[name], pool)), name
        weights.close()


def test_a_flipped_byte_is_found_and_a_repaired_file_works_again(own_folder: Path) -> None:
    path = own_folder / "weights.bin"
    good = path.read_bytes()
    with open_bundle(own_folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2))
        resident = ResidentWeights(bundle)
        block = bundle.blocks["layers.3"]
        weights.wait(2)
        for at in (block.offset, block.offset + block.nbytes // 2, block.offset + block.nbytes - 1):
            _write(path, at, bytes([good[at] ^ 0x10]))
            with pytest.raises(CorruptBundle, match=r"`layers\.3\..*damaged"):
                weights.wait(3)
            assert_same(weights.use(2), resident.use(2))
            with pytest.raises(KeyError):
                weights.use(3)
            _write(path, at, good[at : at + 1])
            weights.wait(3)
            assert_same(weights.use(3), resident.use(3))
            weights.wait(4)
            weights.wait(2)


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_file_that_is_cut_while_it_is_streamed(own_folder: Path) -> None:
    path = own_folder / "weights.bin"
    good = path.read_bytes()
    with open_bundle(own_folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2))
        block = bundle.blocks["layers.5"]
        for size in (0, block.offset, block.offset + 1, block.offset + 5000, block.offset + block.nbytes - 4096):
            os.truncate(path, size)
            with pytest.raises(CorruptBundle, match=r"was cut while it was open: `layers\.5` is incomplete"):
                weights.wait(5)
            path.write_bytes(good)
            weights.wait(5)
            assert np.array_equal(weights.use(5).linears["o"].tiles, bundle.read("layers.5.o.tiles"))
            weights.wait(0)
            weights.wait(1)


def test_a_file_that_is_put_in_its_place_changes_nothing(own_folder: Path) -> None:
    with open_bundle(own_folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2))
        expected = bundle.read("layers.1.o.tiles")
        (own_folder / "other").write_bytes(b"other")
        (own_folder / "other").replace(own_folder / "weights.bin")
        weights.wait(1)
        assert np.array_equal(weights.use(1).linears["o"].tiles, expected)


class FaultyFile(DirectFile):
    """Fails the next ``failures`` reads; none is made in the background."""

    failures = 0
    descriptor = -1

    def read_into(self, out: np.ndarray, offset: int) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageError("cannot read `weights.bin`: Input/output error; check the disk")
        super().read_into(out, offset)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_failing_disk_is_an_error_and_the_next_read_tries_again(folder: Path, failures: int) -> None:
    with open_bundle(folder) as bundle:
        file = FaultyFile(folder / "weights.bin")
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2), file=file)
        resident = ResidentWeights(bundle)
        for index in (0, 1, 2, 0):
            file.failures = failures
            while file.failures:
                with pytest.raises(StorageError, match="Input/output"):
                    weights.wait(index)
            weights.wait(index)
            assert_same(weights.use(index), resident.use(index))


def test_weights_that_cannot_be_loaded_are_an_error(folder: Path) -> None:
    with open_bundle(folder) as bundle:
        file = FaultyFile(folder / "weights.bin")
        file.failures = 1
        with pytest.raises(StorageError):
            StreamedWeights(bundle, plan_for(bundle, 7, 2), file=file)


Preadv = Callable[[int, list[Any], int], int]


def read_with(monkeypatch: pytest.MonkeyPatch, folder: Path, faulty: Callable[[Preadv, int, int], int | None]) -> None:
    """Check that layer 1 is read right although ``faulty(preadv, call, descriptor)`` may answer in the system's place."""
    real, calls = os.preadv, [0]

    def preadv(descriptor: int, views: list[Any], offset: int) -> int:
        calls[0] += 1
        most = faulty(real, calls[0], descriptor)
        return real(descriptor, views if most is None else [views[0][:most]], offset)

    with open_bundle(folder) as bundle:
        expected = bundle.read_block("layers.1")
        file = FaultyFile(folder / "weights.bin")
        reader = BlockReader(bundle, range_reader(), file)
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", preadv)
            found = reader.read("layers.1")
        reader.close()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("most", [1, 4095, 4096, 5000])
def test_short_reads_go_on(monkeypatch: pytest.MonkeyPatch, folder: Path, most: int) -> None:
    read_with(monkeypatch, folder, lambda real, call, descriptor: most if call % 2 else None)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.EAGAIN, errno.ENOMEM])
def test_a_direct_read_that_is_refused_goes_through_the_page_cache(
    monkeypatch: pytest.MonkeyPatch, folder: Path, number: int
) -> None:
    def refuse(real: Preadv, call: int, descriptor: int) -> None:
        if os.get_blocking(descriptor):  # only the direct descriptor is
            raise OSError(number, os.strerror(number))

    read_with(monkeypatch, folder, refuse)


def test_an_error_that_stays_is_reported(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def fail(real: Preadv, call: int, descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(StorageError, match="Input/output error; check the disk"):
        read_with(monkeypatch, folder, fail)


def test_an_error_of_the_device_itself(folder: Path) -> None:
    """Reads of a process's unmapped memory fail with EIO, as those of a broken disk do."""
    with open_bundle(folder) as bundle, DirectFile(folder / "weights.bin") as file, Path("/proc/self/mem").open("rb") as broken:
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2), file=file)
        good = [os.dup(descriptor) for descriptor in (file._direct_fd, file._fd)]
        for descriptor in (file._direct_fd, file._fd):
            os.dup2(broken.fileno(), descriptor)
        for _ in range(2):
            with pytest.raises(StorageError, match="Input/output error; check the disk"):
                weights.wait(2)
        for descriptor, original in zip((file._direct_fd, file._fd), good, strict=True):
            os.dup2(original, descriptor)
            os.close(original)
        for index, layer in sweep(weights):
            assert np.array_equal(layer.linears["o"].tiles, bundle.read(f"layers.{index}.o.tiles"))


def test_closing_does_not_disturb_what_is_on_its_way(folder: Path) -> None:
    with open_bundle(folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2))
        weights.request(4)
        weights.close()
        weights.wait(4)
        assert np.array_equal(weights.use(4).linears["down"].tiles, bundle.read("layers.4.down.tiles"))


def test_a_file_system_without_direct_reads(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest)

    with open_bundle(folder) as bundle, monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        file = DirectFile(folder / "weights.bin")
        assert not file.direct
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2), file=file)
        for index, layer in sweep(weights):
            assert np.array_equal(layer.linears["down"].tiles, bundle.read(f"layers.{index}.down.tiles"))


def test_unaligned_direct_reads_are_programming_errors(folder: Path) -> None:
    file = DirectFile(folder / "weights.bin")
    page = aligned_empty(2 * BLOCK_ALIGNMENT)
    for out, offset in ((page[:100], 0), (page[:4096], 7), (page[64 : 64 + 4096], 0)):
        with pytest.raises(ValueError, match="aligned to 4096"):
            file.read_into(out, offset)
    file.close()


def count_held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def test_descriptors_are_given_back(folder: Path) -> None:
    with open_bundle(folder) as bundle:
        gc.collect()
        before = count_held()
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2))
        weights.wait(0)
        del weights
        assert count_held() == before


@pytest.mark.usefixtures("short_pieces", "short_blocks")
@pytest.mark.parametrize("closed", [False, True])
def test_what_was_read_ahead_keeps_nothing_alive(large_vocabulary: Path, closed: bool) -> None:
    with open_bundle(large_vocabulary) as bundle:
        gc.collect()
        before = count_held()
        weights = StreamedWeights(bundle, tables_plan(bundle))
        weights.embedding_rows(np.array([1, 2000]))
        assert list(weights.head_blocks())
        if closed:
            weights.close()
        del weights
        assert count_held() == before


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks of the output matrix, of one piece or two."""
    monkeypatch.setattr(table, "BLOCK_BYTES", 5 * BLOCK_ALIGNMENT)
    monkeypatch.setattr(table, "BLOCK_BUFFERS", 3)
    monkeypatch.setattr(table, "ROW_BUFFERS", 2)
    monkeypatch.setattr(table, "ROW_PIECES", 3)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def large_vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tables have many pieces, the last one short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "PIECE_BYTES", 3 * BLOCK_ALIGNMENT // 2)
        path = tmp_path_factory.mktemp("large")
        write_random(path, dataclasses.replace(CONFIG, num_layers=4, vocab_size=2990, tied_embeddings=request.param))
    return path


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "PIECE_BYTES", 3 * BLOCK_ALIGNMENT // 2)


def tables_plan(bundle: Bundle) -> MemoryPlan:
    """Everything on flash that can be."""
    sizes = WeightSizes.of_bundle(bundle)
    with pytest.raises(UsageError) as error:
        plan_memory(sizes, 1, flash_tables=True)
    plan = plan_memory(sizes, int(str(error.value).split("works is ")[1].split()[0]), flash_tables=True)
    assert plan.flash_tables
    return plan


@pytest.mark.usefixtures("short_pieces", "short_blocks")
def test_tables_on_flash_are_the_tables(large_vocabulary: Path) -> None:
    with open_bundle(large_vocabulary) as bundle:
        resident = ResidentWeights(bundle)
        weights = StreamedWeights(bundle, tables_plan(bundle))
        for tokens in ([0], [2989, 0, 2989, 250], list(range(2990))):
            found, rows = weights.embedding_rows(np.array(tokens))
            assert np.array_equal(embedding(found, rows), embedding(resident.embedding, np.array(tokens)))
        whole = resident.head.linears["output"]
        for _ in range(2):
            blocks = [(rows, copy_of(head.linears["output"])) for rows, head in weights.head_blocks()]
            assert len(blocks) > 3
            assert [row for rows, _ in blocks for row in range(rows.start, rows.stop)] == list(range(2990))
            assert np.array_equal(np.concatenate([part.tiles for _, part in blocks]), whole.tiles)
            for name in ("product_scale", "weight_scale", "row_sum"):
                assert np.array_equal(np.concatenate([getattr(part, name) for _, part in blocks]), getattr(whole, name))
            assert np.array_equal(np.concatenate([part.hot_weight for _, part in blocks], axis=1), whole.hot_weight)
        weights.close()


@pytest.mark.usefixtures("short_pieces", "short_blocks")
def test_the_embedding_alone_is_on_flash(large_vocabulary: Path) -> None:
    with open_bundle(large_vocabulary) as bundle:
        sizes = WeightSizes.of_bundle(bundle)
        assert (sizes.fixed_without_embedding is None) == bundle.decoder.tied
        if sizes.fixed_without_embedding is None:
            return
        resident, plan = ResidentWeights(bundle), plan_memory(sizes, sizes.total, flash_tables=True)
        weights = StreamedWeights(bundle, dataclasses.replace(plan, flash_tables=EMBEDDING_ALONE))
        tokens = np.array([2989, 0, 2989, 250])
        found, rows = weights.embedding_rows(tokens)
        assert np.array_equal(embedding(found, rows), embedding(resident.embedding, tokens))
        assert not weights.embedding.tiles.size
        ((rows_of_head, head),) = weights.head_blocks()
        assert rows_of_head == slice(0, 2990)
        assert np.array_equal(head.linears["output"].tiles, resident.head.linears["output"].tiles)
        weights.close()


def embedding(linear: Int8Weight, rows: np.ndarray) -> np.ndarray:
    values = gather_rows(linear.tiles, rows, linear.columns) * linear.weight_scale[rows, None]
    values[:, linear.hot_index] = linear.hot_weight[:, rows].T
    return values


def copy_of(linear: Int8Weight) -> Int8Weight:
    return dataclasses.replace(linear, tiles=linear.tiles.copy())


def test_resident_tables_answer_the_same_questions(folder: Path) -> None:
    with open_bundle(folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 7, 2))
        found, rows = weights.embedding_rows(np.array([3, 200]))
        assert (found, rows.tolist()) == (weights.embedding, [3, 200])
        assert list(weights.head_blocks()) == [(slice(0, 300), weights.head)]


@pytest.mark.usefixtures("short_pieces", "short_blocks")
def test_damaged_tables_are_found_and_repaired_ones_work(large_vocabulary: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(large_vocabulary, tmp_path / "own"))
    with open_bundle(own) as bundle:
        weights = StreamedWeights(bundle, tables_plan(bundle))
        for name in ("embedding.tiles", "output.tiles" if "output.tiles" in bundle.tensors else "embedding.tiles"):
            tensor = bundle.tensors[name]
            at = tensor.offset + tensor.nbytes - 1
            good = (own / "weights.bin").read_bytes()[at : at + 1]
            _write(own / "weights.bin", at, bytes([good[0] ^ 1]))
            with pytest.raises(CorruptBundle, match=f"`{name}` .*damaged"):
                weights.embedding_rows(np.array([2989]))
                list(weights.head_blocks())
            weights.embedding_rows(np.array([0]))
            _write(own / "weights.bin", at, good)
            weights.embedding_rows(np.array([2989]))
            assert list(weights.head_blocks())[-1][0].stop == 2990


@pytest.mark.usefixtures("short_pieces", "short_blocks")
def test_blocks_that_were_read_ahead_are_checked_and_read_again(large_vocabulary: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(large_vocabulary, tmp_path / "own"))
    with open_bundle(own) as bundle:
        weights = StreamedWeights(bundle, tables_plan(bundle))
        first = bundle.tensors.get("output.tiles", bundle.tensors["embedding.tiles"]).offset
        good = (own / "weights.bin").read_bytes()[first : first + 1]
        _write(own / "weights.bin", first, bytes([good[0] ^ 1]))
        for _ in range(2):  # also what is asked for again right after the error
            with pytest.raises(CorruptBundle, match="damaged"):
                list(weights.head_blocks())
        _write(own / "weights.bin", first, good)
        whole = [(rows, copy_of(head.linears["output"])) for rows, head in weights.head_blocks()]
        given_up = weights.head_blocks()
        next(given_up)
        given_up.close()  # type: ignore[attr-defined]
        again = [(rows, copy_of(head.linears["output"])) for rows, head in weights.head_blocks()]
        assert [rows for rows, _ in again] == [rows for rows, _ in whole]
        assert all(np.array_equal(a.tiles, b.tiles) for (_, a), (_, b) in zip(again, whole, strict=True))


@pytest.mark.usefixtures("short_pieces", "short_blocks")
def test_blocks_are_read_once_a_sweep_and_only_the_first_ones_ahead(
    large_vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []

    class Watched(direct.RangeReading):
        def __init__(self, file: Any, reader: Any, out: np.ndarray, offset: int, ends: np.ndarray, *, urgent: bool) -> None:
            asked.append((offset, urgent))
            super().__init__(file, reader, out, offset, ends, urgent=urgent)

    monkeypatch.setattr(table, "RangeReading", Watched)
    with open_bundle(large_vocabulary) as bundle:
        weights = StreamedWeights(bundle, tables_plan(bundle))
        sweeps = []
        for _ in range(3):
            asked.clear()
            count = len(list(weights.head_blocks()))
            sweeps.append(list(asked))
        whole = sorted(offset for offset, urgent in sweeps[0] if urgent)
        assert len(whole) == len(set(whole)) == count > table.BLOCK_BUFFERS
        ahead = [(offset, False) for offset in whole[: table.BLOCK_BUFFERS]]
        assert sweeps[0] == [*((offset, True) for offset in whole), *ahead]
        assert sweeps[1] == sweeps[2] == [*((offset, True) for offset in whole[table.BLOCK_BUFFERS :]), *ahead]


@pytest.mark.parametrize(("count", "pages"), [(0, 3), (3, 0), (1, 1), (2, 700), (5, 3)])
def test_direct_buffers_are_aligned_and_apart(count: int, pages: int) -> None:
    buffers = direct_buffers(count, pages * BLOCK_ALIGNMENT)
    assert len(buffers) == (count if pages else 0)
    for value, buffer in enumerate(buffers):
        assert (len(buffer), buffer.ctypes.data % BLOCK_ALIGNMENT) == (pages * BLOCK_ALIGNMENT, 0)
        buffer.fill(value + 1)
    assert [set(buffer.tolist()) for buffer in buffers] == [{value + 1} for value in range(len(buffers))]


@pytest.mark.usefixtures("short_pieces", "short_blocks")
def test_tables_count_in_the_plan(large_vocabulary: Path) -> None:
    with open_bundle(large_vocabulary) as bundle:
        plan = tables_plan(bundle)
        weights = StreamedWeights(bundle, plan)
        output = bundle.tensors.get("output.tiles", bundle.tensors["embedding.tiles"])
        layers = sum(bundle.blocks[f"layers.{index}"].nbytes for index in plan.streamed)
        assert plan.streamed_bytes == layers + output.nbytes
        assert (len(weights.embedding.tiles), len(weights.head.linears["output"].tiles)) == (0, 0)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("change", [lambda p: p[:-1], lambda p: [*p, 0], lambda p: [], lambda p: [True, *p[1:]], lambda p: 7])
def test_wrong_pieces_in_the_manifest_are_refused(large_vocabulary: Path, tmp_path: Path, change: Any) -> None:
    own = Path(shutil.copytree(large_vocabulary, tmp_path / "own"))
    change_pieces(own, change)
    with pytest.raises(CorruptBundle, match=r"`embedding\.tiles`"):
        open_bundle(own)


def test_a_bundle_without_pieces_keeps_its_tables_in_memory(large_vocabulary: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(large_vocabulary, tmp_path / "own"))
    change_pieces(own, None)
    with open_bundle(own) as bundle:
        sizes = WeightSizes.of_bundle(bundle)
        assert sizes.fixed_without_tables is None
        plan = plan_memory(sizes, sizes.total - 1, flash_tables=True)
        assert not plan.flash_tables


def change_pieces(folder: Path, change: Callable[[list[int]], Any] | None) -> None:
    """Rewrite the manifest with other pieces, or none, and a valid checksum."""
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["checksum"]
    for record in fields["tensors"]:
        if "pieces" in record:
            record["pieces"] = change(record["pieces"]) if change else None
            if not change:
                del record["pieces"]
    path.write_bytes(encode_manifest(fields))


@given(st.sets(st.integers(0, 200), max_size=60))
def test_runs_cover_what_is_wanted_and_little_else(wanted: set[int]) -> None:
    pieces = sorted(wanted)
    runs = [(run.first, run.pieces) for run in table._runs("embedding", pieces)]
    covered = [piece for first, count in runs for piece in range(first, first + count)]
    assert covered == sorted(set(covered))
    assert wanted <= set(covered)
    assert all(first in wanted and first + count - 1 in wanted and count <= table.ROW_PIECES for first, count in runs)
    unwanted = [piece for piece in covered if piece not in wanted]
    assert all({piece - 1, piece + 1} <= wanted for piece in unwanted)  # as gaps are one piece wide


def test_a_file_that_cannot_be_opened_is_a_storage_error(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, open_ = own_folder / "weights.bin", os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path) == weights:
            raise OSError(errno.EMFILE, "Too many open files")
        return open_(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="cannot open `.*weights.bin`: too many files are open"):
        DirectFile(weights)
