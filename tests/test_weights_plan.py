"""The memory plan: what a budget means, which layers stay, and the speeds that follow."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_llm.errors import UsageError
from edge_llm.weights.base import OUTPUT
from edge_llm.weights.budget import MAX_BYTES, parse_memory
from edge_llm.weights.memory_plan import NO_TABLES, MemoryPlan, layer_ranges
from edge_llm.weights.plan import plan_memory, spread
from edge_llm.weights.sizes import EMBEDDING_ALONE, TABLES, BlockSize, ExpertSizes, NeuronSizes, WeightSizes
from edge_llm.weights.speeds import Rates, Work, predict

UNITS = {"": 1, "B": 1, "kB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "M": 2**20}


def sizes(layers: list[int], fixed: int = 100) -> WeightSizes:
    return WeightSizes(tuple(BlockSize(stored, stored + 8) for stored in layers), fixed)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("300MiB", 300 * 2**20), ("1.5GB", 1_500_000_000), ("2G", 2**31), (" 64 kib ", 65536), ("50%", 500),
        ("12.5 %", 125), ("100%", 1000), ("4096", 4096), (4096, 4096), (".5KiB", 512),
    ],
)  # fmt: skip
def test_amounts_of_memory(text: str | int, nbytes: int) -> None:
    assert parse_memory(text, 1000) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "0", 0, -1, "-5MiB", "0%", "MiB", "5x", "5 Mi B", "1e9", "nan", "inf%", "1,5GB", "0.1B", "9" * 30, "9" * 5000,
     "٣MiB", "5MiB 3", "%", "1" + "0" * 20 + "TB"],
)  # fmt: skip
def test_nonsense_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError) as error:
        parse_memory(text, 1000)
    assert error.value.param == "memory"


def test_a_refusal_names_the_forms_that_hold() -> None:
    with pytest.raises(UsageError, match="write 300MiB, 1.5GB or a number of bytes$") as error:
        parse_memory("5%", None, "card_memory")  # nothing to have a share of
    assert error.value.param == "card_memory"
    with pytest.raises(UsageError, match="or 50% of main memory$"):
        parse_memory("5x", 1000, "kv_memory", of="main memory")


@given(st.integers(1, 2**30), st.sampled_from(list(UNITS)), st.sampled_from(["", " "]))
def test_whole_numbers_mean_exactly_themselves(number: int, unit: str, space: str) -> None:
    assert parse_memory(f"{number}{space}{unit}", 7) == number * UNITS[unit]


@given(st.text(max_size=60))
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    try:
        assert 1 <= parse_memory(text, 10**9) <= MAX_BYTES
    except UsageError as error:
        assert "memory" in str(error)


@given(st.integers(1, 200), st.data())
def test_spread_is_even_around_the_circle(count: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(1, count))
    places = spread(chosen, count)
    assert len(set(places)) == chosen
    assert list(places) == sorted(places)
    assert set(places) <= set(range(count))
    gaps = [after - before for before, after in zip(places, (*places[1:], places[0] + count), strict=True)]
    assert set(gaps) <= {count // chosen, -(-count // chosen)}


@given(st.lists(st.integers(1, 50).map(lambda n: 4096 * n), min_size=1, max_size=40), st.integers(0, 10**6), st.data())
@example([4096, 4096], 0, None)
def test_a_plan_keeps_to_its_budget(layers: list[int], fixed: int, data: st.DataObject | None) -> None:
    weights = sizes(layers, fixed)
    budget = weights.total - 1 if data is None else data.draw(st.integers(1, weights.total + 4096))
    slots = 2 if data is None else data.draw(st.integers(2, 4))
    try:
        plan = plan_memory(weights, budget, slots=slots)
    except UsageError as error:
        least = int(str(error).split("works is ")[1].split()[0])
        assert plan_memory(weights, least, slots=slots).held_bytes == least > budget
        return
    assert plan.held_bytes <= budget
    assert sorted((*plan.resident, *plan.streamed)) == list(range(len(layers)))
    assert plan.streamed_bytes == sum(layers[index] for index in plan.streamed)
    if plan.streamed:
        assert slots == plan.slots < len(plan.streamed)
        assert plan.slot_bytes == max(layers[index] for index in plan.streamed)
        scales = sum(weights.layers[index].held - weights.layers[index].stored for index in plan.streamed)
        resident = sum(weights.layers[index].held for index in plan.resident)
        assert plan.held_bytes == fixed + resident + plan.slots * plan.slot_bytes + scales
    else:
        assert (plan.slots, plan.held_bytes) == (0, weights.total)


@given(st.integers(0, 3 * 10**6), st.integers(1, 24), st.integers(1, 24))
def test_tables_go_to_flash_where_that_streams_least(budget: int, embedding: int, output: int) -> None:
    embedding, output, rows, blocks = 40960 * embedding, 40960 * output, 20_000, 50_000
    without = sizes([40960] * 24, 100 + embedding + output)
    weights = replace(
        without,
        output=output,
        fixed_without_embedding=100 + output + rows,
        fixed_without_tables=100 + rows + blocks,
    )
    assert set(weights.choices_of_tables) == {NO_TABLES, EMBEDDING_ALONE, TABLES}
    streamed = {}
    for tables, fixed in weights.choices_of_tables.items():
        with suppress(UsageError):
            plan = plan_memory(replace(without, fixed=fixed), budget)
            streamed[tables] = plan.streamed_bytes + (output if OUTPUT in tables else 0)
    if not streamed:
        with pytest.raises(UsageError, match="too little"):
            plan_memory(weights, budget, flash_tables=True)
        return
    plan = plan_memory(weights, budget, flash_tables=True)
    assert plan.held_bytes <= budget
    assert streamed[plan.flash_tables] == plan.streamed_bytes == min(streamed.values())


def test_the_embedding_goes_first_for_a_step_reads_a_row_of_it() -> None:
    weights = WeightSizes((BlockSize(4096, 4104),) * 8, 40_000, 9_000, output=16_000, fixed_without_embedding=24_500)
    assert plan_memory(weights, weights.total, flash_tables=True).flash_tables == NO_TABLES
    plan = plan_memory(weights, weights.total - 1, flash_tables=True)
    assert (plan.flash_tables, plan.streamed, plan.streamed_bytes) == (EMBEDDING_ALONE, (), 0)


@pytest.mark.parametrize("beside", [0, 100_000, 10**7])
def test_more_memory_never_streams_more(beside: int) -> None:
    weights = sizes([4096 * 10] * 24)
    budgets = range(90_000, weights.total + 5000, 4096)
    streamed = [plan_memory(weights, budget, beside=beside).streamed_bytes for budget in budgets]
    assert streamed == sorted(streamed, reverse=True)
    assert streamed[0] == 24 * 40960
    assert streamed[-1] == 0


def test_layers_are_streamed_where_that_reads_less_than_tables_beside_neurons() -> None:
    neurons = NeuronSizes(4, 2, 3, 24, 0.0)
    weights = WeightSizes((BlockSize(34, 46),) * 4, 50, 10, output=137, neurons=neurons)
    read = [plan_memory(weights, budget, flash_tables=True).streamed_bytes for budget in (193, 194)]
    assert read == [136, 136]


@given(st.data(), st.integers(1, 6), st.integers(2, 40), st.integers(2, 9), st.integers(0, 500))
def test_more_memory_never_reads_more_experts_or_neurons(
    data: st.DataObject, layers: int, count: int, slot: int, beside: int
) -> None:
    fixed, experts, neurons = data.draw(st.integers(50, 400)), None, None
    if data.draw(st.booleans()):
        used = data.draw(st.integers(1, count))
        experts = ExpertSizes(layers, count, used, BlockSize(slot, slot + 1), layers * count * (slot + 1))
    else:
        neurons = NeuronSizes(layers, count, slot + 1, layers * count * (slot + 1), data.draw(st.floats(0, 1)))
    held = (BlockSize(30 + count * slot, 40 + count * (slot + 1)),) * layers
    tables = data.draw(st.none() | st.integers(10, fixed))
    output = data.draw(st.integers(10, 200))
    weights = WeightSizes(held, fixed, tables, output=output, experts=experts, neurons=neurons)
    streamed = []
    for budget in range(50, weights.total + 3, max(1, weights.total // 200)):
        with suppress(UsageError):
            plan = plan_memory(weights, budget, flash_tables=True, beside=beside)
            assert plan.held_bytes <= budget
            streamed.append(plan.streamed_bytes)
    assert streamed == sorted(streamed, reverse=True)


@given(st.integers(90_000, 1_100_000), st.integers(0, 300_000))
def test_the_whole_process_stays_near_the_budget_when_it_can(budget: int, beside: int) -> None:
    weights = sizes([4096 * 10] * 24)
    plain, frugal = plan_memory(weights, budget), plan_memory(weights, budget, beside=beside)
    if not plain.streamed:
        assert frugal == plain
        return
    assert frugal.streamed_bytes >= plain.streamed_bytes
    if frugal.held_bytes + beside > 1.15 * budget:  # then a quarter was given up, or there is nothing to give up
        assert frugal.held_bytes <= 0.75 * budget or len(frugal.streamed) == 24
    elif frugal != plain:
        assert plain.held_bytes + beside > 1.15 * budget


def test_the_least_that_works_is_named() -> None:
    with pytest.raises(UsageError, match=r"least that works is 2775100 bytes \(2\.7MiB\)"):
        plan_memory(WeightSizes((BlockSize(10**6, 1_155_000),) * 5, 100), 1000)


def test_speeds_follow_the_slowest_part() -> None:
    plan = MemoryPlan(0, (), (0, 1, 2), 2, 0, 0, streamed_bytes=200)
    rates = Rates(disk=100.0, memory=1000.0, operations=50.0)
    speeds = predict(plan, Work(operations=10, weight_bytes=500), rates, window=100)
    assert (speeds.decode, speeds.prefill, speeds.free_prompt) == (0.5, 5.0, 10)
    short = predict(plan, Work(operations=10, weight_bytes=500), rates, window=5)
    assert short.prefill == 2.5  # a window of 5 tokens waits for the disk
    resident = predict(MemoryPlan(0, (0, 1, 2), (), 0, 0, 0, 0), Work(10, 500), rates, window=100)
    assert (resident.decode, resident.free_prompt) == (2.0, 0)


@pytest.mark.parametrize(
    ("layers", "text"), [((), ""), ((4,), "4"), ((0, 1, 2, 3, 7), "0-3, 7"), ((1, 3, 5), "1, 3, 5"), ((2, 3), "2-3")]
)
def test_layers_are_written_as_ranges(layers: tuple[int, ...], text: str) -> None:
    assert layer_ranges(layers) == text
