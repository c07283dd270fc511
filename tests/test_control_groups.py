"""Limits of control groups: of version 1 and 2, of the groups above, and of containers, whose own group looks like the root."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm import resources
from edge_llm.control_groups import UNLIMITED, cpu_quota, memory_limit, memory_room


@pytest.fixture
def system(tmp_path):
    """``system(cgroup, files)``: a root whose process is in the groups ``cgroup``, with ``files`` below /sys/fs/cgroup."""

    def made(cgroup, files):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(cgroup)
        for name, text in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return made


def in_2(folder, limit, taken=400, files=100):
    stat = f"anon {taken - files}\ninactive_file {files}"
    return {f"{folder}memory.max": limit, f"{folder}memory.current": taken, f"{folder}memory.stat": stat}


def in_1(folder, limit, taken=400, files=100):
    stat = f"inactive_file 1\ntotal_inactive_file {files}"
    return {
        f"memory/{folder}memory.limit_in_bytes": limit,
        f"memory/{folder}memory.usage_in_bytes": taken,
        f"memory/{folder}memory.stat": stat,
    }


UNIT = "0::/system.slice/edge-llm.service\n"
OLD = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n"
MEMORY = {
    "none": (UNIT, in_2("system.slice/edge-llm.service/", "max"), UNLIMITED, UNLIMITED),
    "nothing mounted": ("", {}, UNLIMITED, UNLIMITED),
    "a container": ("0::/\n", in_2("", 1000), 1000, 700),
    "a unit": (UNIT, in_2("system.slice/edge-llm.service/", 1000), 1000, 700),
    "the slice above a unit": (UNIT, {**in_2("system.slice/edge-llm.service/", 1000), **in_2("system.slice/", 900)}, 900, 600),
    "another group": (UNIT, in_2("user.slice/", 1000), UNLIMITED, UNLIMITED),
    "full": ("0::/\n", in_2("", 100), 100, 0),
    "nonsense": ("0::/\n", in_2("", "what"), UNLIMITED, UNLIMITED),
    "no statistics": ("0::/\n", {"memory.max": 1000, "memory.current": 400}, 1000, 600),
    "version 1": (OLD, in_1("docker/abc/", 1000), 1000, 700),
    "version 1 in a container": (OLD, in_1("", 1000), 1000, 700),
    "version 1 without a limit": (OLD, in_1("", 9223372036854771712), 9223372036854771712, 9223372036854771412),
    "outside of its root": ("0::/../../x\n", in_2("", 1000), 1000, 700),
    "not as it should be": ("\n:\nabc\n0::\n", in_2("", 1000), 1000, 700),
}


@pytest.mark.parametrize("way", MEMORY)
def test_memory(way, system):
    cgroup, files, limit, room = MEMORY[way]
    root = system(cgroup, files)
    assert (memory_limit(root), memory_room(root)) == (limit, room)


QUOTAS = {
    "none": (UNIT, {"system.slice/edge-llm.service/cpu.max": "max 100000"}, None),
    "a unit": (UNIT, {"system.slice/edge-llm.service/cpu.max": "250000 100000"}, 2),
    "less than one": ("0::/\n", {"cpu.max": "50000 100000"}, 1),
    "a slice": (UNIT, {"system.slice/edge-llm.service/cpu.max": "400000 1000", "system.slice/cpu.max": "3000 1000"}, 3),
    "version 1": (OLD, {"cpu/docker/abc/cpu.cfs_quota_us": 200000, "cpu/docker/abc/cpu.cfs_period_us": 100000}, 2),
    "version 1 without a quota": (OLD, {"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000}, None),
    "nonsense": ("0::/\n", {"cpu.max": "1 0", "system.slice/cpu.max": "a b"}, None),
}


@pytest.mark.parametrize("way", QUOTAS)
def test_processor_time(way, system):
    cgroup, files, quota = QUOTAS[way]
    assert cpu_quota(system(cgroup, files)) == quota


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40), st.text(max_size=20))
def test_no_text_of_the_system_breaks_a_start(tmp_path_factory, cgroup, text):
    root = tmp_path_factory.mktemp("system")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_bytes(cgroup.encode())
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name in ("memory.max", "memory.current", "memory.stat", "cpu.max"):
        (root / "sys/fs/cgroup" / name).write_bytes(text.encode())
    assert 0 <= memory_room(root) <= UNLIMITED or memory_limit(root) < UNLIMITED
    assert cpu_quota(root) is None or cpu_quota(root) >= 1


def test_memory_of_this_process_is_bounded(monkeypatch):
    monkeypatch.setattr(resources, "memory_limit", lambda: 1000)
    monkeypatch.setattr(resources, "memory_room", lambda: 700)
    assert (resources.total_memory(), resources.free_memory()) == (1000, 700)
