"""The cost model: what it learns, forgets, merges, and refuses to read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.scheduler import CostModel, Span, Trace
from edge_llm.scheduler.cost import MEMORY

SECONDS = st.floats(0, 1e6)


def model(*observations, default=1.0) -> CostModel:
    cost = CostModel(default)
    for key, lane, seconds in observations:
        cost.observe(key, lane, seconds)
    return cost


def test_predicts_the_mean_of_each_key_on_each_lane():
    cost = model(("qkv", "npu", 1), ("qkv", "npu", 2), ("qkv", "cpu", 10))
    assert cost.predict("qkv", "npu") == 1.5
    assert cost.predict("qkv", "cpu") == 10
    assert cost.predict("qkv", "disk") == cost.predict("other", "npu") == 1.0


def test_follows_a_machine_that_drifts():
    cost = model(*[("k", "l", 1.0)] * 1000, *[("k", "l", 2.0)] * 3 * MEMORY)
    assert cost.predict("k", "l") == pytest.approx(2.0, abs=0.1)


def test_learns_from_a_trace():
    cost = CostModel()
    cost.learn(Trace((Span("a", "l", 0, 2, (), "k"), Span("b", "l", 5, 9, (), "k")), ("l",)))
    assert cost.predict("k", "l") == 3


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e9, True, "1", None])
def test_refuses_what_is_no_duration(seconds):
    with pytest.raises(ValueError, match="not a duration"):
        CostModel().observe("k", "l", seconds)
    with pytest.raises(ValueError, match="not a duration"):
        CostModel(default=seconds)


def test_merge_weighs_by_runs_and_changes_neither():
    a, b = model(*[("k", "l", 1)] * 3, ("a", "l", 7)), model(("k", "l", 5), ("b", "l", 9), default=2.0)
    merged = a.merge(b)
    assert [merged.predict(key, "l") for key in ("k", "a", "b")] == [2, 7, 9]
    assert merged.default == 1.0
    assert a.predict("k", "l") == 1 and b.predict("k", "l") == 5 and len(a) == len(b) == 2


@given(st.lists(SECONDS, max_size=100), st.lists(SECONDS, max_size=100))
def test_merge_does_not_care_who_merges_whom(left, right):
    a, b = model(*[("k", "l", s) for s in left]), model(*[("k", "l", s) for s in right])
    assert a.merge(b).predict("k", "l") == pytest.approx(b.merge(a).predict("k", "l"))


@given(st.dictionaries(st.tuples(st.text(), st.text()), st.lists(SECONDS, min_size=1, max_size=3)), SECONDS)
def test_load_gives_back_what_save_wrote(tmp_path_factory, observations, default):
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    cost = model(*[(key, lane, s) for (key, lane), many in observations.items() for s in many], default=default)
    cost.save(path)
    loaded = CostModel.load(path)
    assert list(loaded) == list(cost) and loaded.default == cost.default
    assert [file.name for file in path.parent.iterdir()] == ["cost.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "cost.json"
    model(("k", "l", 1)).save(path)
    before = path.read_bytes()

    def full_disk(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        model(("k", "l", 2)).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


ENTRY = {"key": "k", "lane": "l", "seconds": 1.0, "weight": 1}
GOOD = {"format": "scheduler-costs", "version": 1, "default": 1.0, "costs": [ENTRY]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[]", "exactly the fields"),
        ("{", "Expecting"),
        ("[" * 100_000, ""),
        (json.dumps(GOOD | {"format": "other"}), "`other`"),
        (json.dumps(GOOD | {"version": 2}), "version `2`"),
        (json.dumps(GOOD | {"version": True}), "version `True`"),
        (json.dumps(GOOD | {"extra": 0}), "exactly the fields"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "default"}), "exactly the fields"),
        (json.dumps(GOOD | {"default": -1}), "`-1` is not a duration"),
        (json.dumps(GOOD | {"default": float("nan")}), "`nan` is not a duration"),
        (json.dumps(GOOD | {"costs": {}}), "not a list"),
        (json.dumps(GOOD | {"costs": [1]}), "entry 0"),
        (json.dumps(GOOD | {"costs": [ENTRY, ENTRY]}), "entry 1: .* twice"),
        (json.dumps(GOOD | {"costs": [ENTRY | {"key": 1}]}), "must be text"),
        (json.dumps(GOOD | {"costs": [ENTRY | {"seconds": "1"}]}), "`1` is not a duration"),
        (json.dumps(GOOD | {"costs": [ENTRY | {"weight": 0}]}), "weight `0`"),
        (json.dumps(GOOD | {"costs": [ENTRY | {"weight": 1.0}]}), "weight `1.0`"),
        (json.dumps(GOOD).replace('"version": 1', '"version": 1, "version": 1'), "appears twice"),
        (json.dumps(GOOD).replace("1.0", "1" * 5000), ""),
    ],
)
def test_load_refuses_naming_the_file(tmp_path, text, message):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"cost.json` is an invalid cost table: .*{message}"):
        CostModel.load(path)


def test_load_refuses_bytes_that_are_no_text_and_files_too_large(tmp_path):
    path = tmp_path / "cost.json"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(ValueError, match="is an invalid cost table"):
        CostModel.load(path)
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ValueError, match="larger than"):
        CostModel.load(path)
