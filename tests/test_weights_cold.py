"""Weights that lie on a card alone: what an overflow needs of them comes from flash, and is what it was."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig
from edge_llm.errors import CorruptBundle
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.kernels.linear import overflow_product
from edge_llm.kernels.types import Residual
from edge_llm.schemes.expanding import expanded
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.cold import ColdChannels, ColdWeight
from edge_llm.weights.memory_plan import NO_TABLES
from edge_llm.weights.pools import Budget
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.sizes import OUTPUT_ALONE, TABLES, WeightSizes
from edge_llm.weights.staged import StagedWeights
from edge_llm.weights.staging import plan_staging

CONFIG = LlamaConfig(
    family="qwen2", vocab_size=130, hidden_size=72, intermediate_size=75, num_layers=3, num_heads=3,
    num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
)  # fmt: skip
POOL = ThreadPool(1)


MATRIX = {"int8": "tiles", "w4": "codes"}
"""What lies on a card alone, by the scheme of the layers."""


@pytest.fixture(scope="module", params=MATRIX)
def scheme(request):
    return request.param


@pytest.fixture(scope="module")
def bundle(scheme, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, CONFIG if scheme == "int8" else replace(CONFIG, intermediate_size=76), seed=3, weights=scheme)
    return open_bundle(folder)


@pytest.fixture(scope="module")
def resident(bundle):
    return ResidentWeights(bundle)


def tiles_of(resident, layer):
    """The INT8 tiles of every linear of ``layer``."""
    return {name: linear.tiles for name, linear in expanded(resident.use(layer)).linears.items()}


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 255]))


def staged(bundle, budget=None):
    return StagedWeights(bundle, plan_staging(WeightSizes.of_bundle(bundle), (), budget, whole=False))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["qkv", "down"]), st.sets(st.integers(0, 17), max_size=9)), max_size=8), st.data())
def test_any_channels_are_those_of_the_whole_matrix_whatever_is_kept(bundle, scheme, resident, wishes, data):
    whole = tiles_of(resident, 1)
    room = data.draw(st.sampled_from([0, 5_000, 10**9]))
    cold = ColdChannels(bundle, Budget(room), room)
    for linear, groups in wishes:
        wanted = np.array(sorted(groups), np.int64)
        found = cold.tiles(f"layers.1.{linear}.{MATRIX[scheme]}", wanted)
        assert np.array_equal(found, whole[linear][:, wanted])
        assert cold.held <= room


def test_what_is_kept_is_not_read_again(bundle, scheme):
    cold = ColdChannels(bundle, Budget(10**9), 10**9)
    for groups, read in (([3, 4], 1), ([3], 1), ([4, 3][::-1], 1), ([4, 5], 2), ([], 2)):
        cold.tiles(f"layers.0.o.{MATRIX[scheme]}", np.array(groups, np.int64))
        assert cold.read == read


@pytest.mark.parametrize("name", ["qkv", "o", "gate_up", "down"])
def test_an_overflow_adds_the_same_bits(bundle, resident, name):
    weights = staged(bundle)
    weights.wait(2)
    cold, whole = weights.host_part(2).linears[name], resident.use(2).linears[name]
    assert isinstance(cold, ColdWeight) and cold.tiles.size == 0
    random = np.random.default_rng(4)
    counts = [0, 3, whole.columns, 1]
    columns = [np.sort(random.choice(whole.columns, count, replace=False)) for count in counts]
    column = np.concatenate(columns).astype(np.int32)
    residual = Residual(np.cumsum([0, *counts]), column, random.standard_normal(len(column)).astype(np.float32))
    found = []
    for linear in (cold, whole):
        tiles, given_residual = linear.overflow(residual)
        found.append(overflow_product(given_residual, tiles, linear.rows, 4 * tiles.shape[1], POOL))
    assert np.array_equal(*found)


def test_what_the_host_keeps_outlives_the_buffer_and_holds_no_matrix(bundle, scheme, resident):
    weights = staged(bundle)
    kept = []
    for index in range(3):  # the third takes the buffer of the first
        weights.wait(index)
        kept.append(weights.host_part(index))
    weights.forget_layers()
    for index, block in enumerate(kept):
        whole = resident.use(index)
        for name, linear in block.linears.items():
            assert isinstance(linear, Int8Weight)
            matrix = getattr(whole.linears[name], MATRIX[scheme])
            assert linear.nbytes == whole.linears[name].nbytes - matrix.nbytes
            for array in ("weight_scale", "row_sum", "hot_index", "hot_weight", "bias"):
                assert np.array_equal(getattr(linear, array), getattr(whole.linears[name], array))
        assert all(np.array_equal(block.gains[name], gain) for name, gain in whole.gains.items())


def test_a_matrix_that_is_damaged_is_not_used_and_can_be_mended(tmp_path):
    write_random(tmp_path, CONFIG, seed=3)
    bundle = open_bundle(tmp_path)
    whole = bundle.read("layers.1.o.tiles")
    cold = ColdChannels(bundle, Budget(10**9), 10**9)
    flip(tmp_path / "weights.bin", bundle.tensors["layers.1.o.tiles"].offset + 70)
    for _ in range(2):
        with pytest.raises(CorruptBundle, match=r"`layers.1.o.tiles` .* is damaged"):
            cold.tiles("layers.1.o.tiles", np.array([1]))
    assert cold.held == 0
    flip(tmp_path / "weights.bin", bundle.tensors["layers.1.o.tiles"].offset + 70)
    assert np.array_equal(cold.tiles("layers.1.o.tiles", np.array([1])), whole[:, [1]])


def test_the_host_keeps_the_embedding_if_it_looks_rows_up_and_the_budget_allows(tmp_path):
    """Beside a card that has all else; of tied tables it is the output matrix too, of others that one stays on flash."""
    for tied in (True, False):
        folder = tmp_path / str(tied)
        folder.mkdir()
        write_random(folder, replace(CONFIG, vocab_size=300_000, tied_embeddings=tied), seed=1)
        bundle = open_bundle(folder)
        sizes = WeightSizes.of_bundle(bundle)
        kept, there = (plan_staging(sizes, (), None, whole=True, host_embeds=one) for one in (True, False))
        assert kept.plan.flash_tables == (NO_TABLES if tied else OUTPUT_ALONE) and there.plan.flash_tables == TABLES
        least = plan_staging(sizes, (), there.plan.held_bytes, whole=True)
        assert least.plan.flash_tables == TABLES and least.plan.held_bytes <= there.plan.held_bytes < kept.plan.held_bytes
        weights, resident = StagedWeights(bundle, kept), ResidentWeights(bundle)
        before, tokens = weights.read_bytes, np.array([299_999, 0, 7])
        for source in (weights, StagedWeights(bundle, least)):
            table, places = source.embedding_rows(tokens)
            assert np.array_equal(rows_of(table, places), rows_of(*resident.embedding_rows(tokens)))
        assert weights.read_bytes == before, "no row is read from flash"


def rows_of(table, places):
    return unpack_tiles(table.tiles, table.rows, table.columns)[places]


def test_the_host_holds_what_was_planned(bundle):
    sizes = WeightSizes.of_bundle(bundle)
    staging = plan_staging(sizes, (), None, whole=False)
    weights = StagedWeights(bundle, staging)
    held = 0
    for index in range(3):
        weights.wait(index)
        block = weights.host_part(index)
        held += sum(linear.nbytes for linear in block.linears.values()) + sum(gain.nbytes for gain in block.gains.values())
    beside = sum(layer.beside_card for layer in sizes.layers)
    assert held <= beside <= held + 3 * 64 * 40 + 3 * 4096  # alignment of the tensors, and of the blocks
    least = staging.plan.held_bytes
    assert plan_staging(sizes, (), least, whole=False).cold_bytes == 0
