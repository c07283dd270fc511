"""Where threads may run: lists of CPUs, NUMA nodes, the node of the card."""

import os

import pytest

from edge_llm.errors import UsageError
from edge_llm.opening.begin import bind
from edge_llm.opening.cpus import chosen_cpus, node_cpus, parse_cpus
from edge_llm.opening.machine import NumaNodes, numa_nodes


@pytest.fixture
def system(tmp_path):
    """A machine of two nodes with a card on the second and a network card of the same maker on the first."""
    for node, cpus in ((0, "0-3"), (1, "4-5,7")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for name, kind, node in (("0000:01:00.0", "0x020000", 0), ("0000:82:00.0", "0x120000", 1)):
        folder = tmp_path / "bus/pci/devices" / name
        folder.mkdir(parents=True)
        for file, text in (("vendor", "0x19e5"), ("class", kind), ("numa_node", str(node))):
            (folder / file).write_text(text + "\n")
    return tmp_path


@pytest.fixture
def affinity():
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), (" 2,2,1-2\n", {1, 2}), ("4095", {4095})]
)
def test_lists_of_cpus(text, cpus):
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "4096", "0-99999", "1.5", "0x1"])
def test_what_is_no_list_is_refused(text):
    with pytest.raises(UsageError, match="invalid (list|range) of CPUs"):
        parse_cpus(text)


def test_nodes_and_the_node_of_the_card(system):
    nodes = numa_nodes(system)
    assert node_cpus("0", nodes) == {0, 1, 2, 3}
    assert node_cpus("1", nodes) == node_cpus("card", nodes) == {4, 5, 7}


def test_a_node_or_card_that_is_not_there_is_refused(system, tmp_path):
    for node in ("2", "-1", "x", "", "../node0"):
        with pytest.raises(UsageError, match="choose one of: 0, 1"):
            node_cpus(node, numa_nodes(system))
    with pytest.raises(UsageError, match="no Ascend card"):
        node_cpus("card", numa_nodes(tmp_path / "bare"))


def test_a_node_without_cpus_concerns_only_who_asks_for_it(system):
    (system / "devices/system/node/node1/cpulist").write_text("\n")
    nodes = numa_nodes(system)
    assert chosen_cpus(None, "0", range(8), nodes) == {0, 1, 2, 3}
    with pytest.raises(UsageError, match="invalid list of CPUs"):
        chosen_cpus(None, "1", range(8), nodes)


def test_binding_changes_where_this_process_runs(affinity):
    one = min(affinity)
    bind(chosen_cpus(str(one), None, affinity, NumaNodes({})))
    assert os.sched_getaffinity(0) == {one}
    bind(None)
    assert os.sched_getaffinity(0) == {one}


def test_to_choose_refuses_what_cannot_be(affinity):
    nodes = NumaNodes({})
    with pytest.raises(UsageError, match="not both"):
        chosen_cpus("0", "0", affinity, nodes)
    with pytest.raises(UsageError, match="may not use CPU 4000-4001; it may use"):
        chosen_cpus("4000-4001", None, affinity, nodes)
    assert chosen_cpus(None, None, affinity, nodes) is None
