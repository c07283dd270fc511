"""The self-test of a card: what probes find, that none of them stops the others, what becomes of the report.

No card was at hand: the operators are PyTorch's on the CPU, or the real torch_npu's on stand-ins for its libraries.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import selftest_probes
from hypothesis import given
from hypothesis import strategies as st
from test_npu_machine import FILES, build

from edge_llm.ascend.npu.chips import CHIPS, chip_law
from edge_llm.ascend.npu.emulated_runtime import EmulatedRuntime
from edge_llm.ascend.npu.opening import open_runtime
from edge_llm.ascend.selftest.copies import installed
from edge_llm.ascend.selftest.ground import Ground
from edge_llm.ascend.selftest.probes import PROBES, Probe
from edge_llm.ascend.selftest.products import packed_scale
from edge_llm.ascend.selftest.report import law_with_report, measured_law, report_path, save_report, saved_report
from edge_llm.ascend.selftest.runs import SelfTest
from edge_llm.cli.main import run
from edge_llm.errors import DeviceError
from edge_llm.paths import selftest_folder

pytestmark = pytest.mark.thorough(file=12)

NOT_EMULATED = {"int32_product", "row_scales", "s8gemm", "run_mode"}
"""Questions that emulated operators have no answer to."""


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")


# ---- probes


@pytest.fixture(scope="module")
def grounds():
    return {chip: Ground(EmulatedRuntime(chip_law(chip))) for chip in ("310p", "910b")}


@pytest.mark.thorough(keep=9)
@pytest.mark.parametrize(
    ("chip", "probe"),
    [
        pytest.param(chip, probe, id=f"{chip}-{probe.name}")
        for probe in PROBES
        for chip in ("310p", "910b")
        if probe.name not in NOT_EMULATED
    ],
)
def test_a_probe_is_content_with_emulated_operators(grounds, chip, probe):
    """Its oracle is another way to the same numbers, and all that it calls passes the chip's law."""
    figures = probe.run(grounds[chip])
    assert "error" not in figures
    assert json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize("name", sorted(NOT_EMULATED))
def test_a_question_that_has_no_answer_says_why(grounds, name):
    (probe,) = (probe for probe in PROBES if probe.name == name)
    assert not probe.needed
    with pytest.raises(DeviceError, match=r"emulated|there is no"):
        probe.run(grounds["310p"])


def flipped(values):
    """One value of many is another."""
    values = values.clone()
    values.view(-1)[-1] += 1
    return values


WRONG = {
    "quant_matmul": ("quant_matmul", "output_matrix", "saturation"),
    "to_nz": ("float_fractals",),
    "quantize": ("quantize", "int8_keys_written"),
    "rms_norm": ("rms_norm",),
    "swiglu": ("swiglu",),
    "attend_int8": ("int8_keys",),
    "to_nd": ("weight_formats", "keys_out_and_back", "write_keys"),
}
"""Operators that give one wrong value, and the probes that see it."""


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, names in WRONG.items() for name in names])
def test_a_wrong_operator_is_seen(monkeypatch, call, name):
    ground = Ground(EmulatedRuntime(chip_law("310p")))
    right = getattr(ground.calls, call)
    monkeypatch.setattr(ground.calls, call, lambda *values: flipped(right(*values)))
    (probe,) = (probe for probe in PROBES if probe.name == name)
    assert probe.run(ground)["error"]


def test_scales_that_are_rounded_and_not_cut_are_seen(monkeypatch):
    ground = Ground(EmulatedRuntime(chip_law("310p")))
    right = ground.operator("npu", "npu_trans_quant_param")
    rounded = lambda scale: right(scale=(scale.view(ground.torch.int32) + 0x1000).view(ground.torch.float32))  # noqa: E731
    monkeypatch.setattr(ground, "operator", lambda space, name: rounded)
    assert "packed otherwise" in packed_scale(ground)["error"]


@pytest.mark.parametrize(
    ("call", "name", "nothing"),
    [
        ("rotate", "rotate", lambda query, key, cos, sin: (query, key)),
        ("attend", "paged_attention", lambda query, *others: 0 * query),
        ("attend_chunk", "chunk_attention", lambda query, *others: 0 * query),
        ("attend_chunk", "long_chunk_attention", lambda query, *others: 0 * query),
        ("attend_chunk", "chunk_limits", lambda query, *others: 0 * query),
        ("attend_chunk", "prefill", lambda query, *others: query - query[-1:]),
        ("attend", "chunk_equals_rows", lambda query, *others: 0 * query),
        ("write_keys", "write_keys", lambda *values: None),
    ],
)
def test_an_operator_that_does_nothing_is_seen(monkeypatch, call, name, nothing):
    ground = Ground(EmulatedRuntime(chip_law("310p")))
    monkeypatch.setattr(ground.calls, call, nothing)
    (probe,) = (probe for probe in PROBES if probe.name == name)
    assert probe.run(ground)["error"]


REPLAYS = ("replay", "replay_lengths", "eager_and_replay", "many_graphs", "int8_keys_captured")


@pytest.mark.parametrize("name", [*REPLAYS, "copies_while_capturing"])
def test_a_replay_that_does_nothing_is_seen(monkeypatch, name):
    ground = Ground(EmulatedRuntime(chip_law("310p")))
    capture = ground.runtime.capture

    def broken(work):
        graph = capture(work)
        graph._calls = [lambda: None]
        return graph

    monkeypatch.setattr(ground.runtime, "capture", broken)
    (probe,) = (probe for probe in PROBES if probe.name == name)
    assert probe.run(ground)["error"]


def probe_named(name):
    return next(probe for probe in PROBES if probe.name == name)


@pytest.fixture
def ground():
    return Ground(EmulatedRuntime(chip_law("310p")))


@pytest.mark.parametrize("name", ["counting", "small_writes", "indexed_writes"])
def test_what_comes_back_otherwise_is_seen(monkeypatch, ground, name):
    right = ground.result
    monkeypatch.setattr(ground, "result", lambda *given: flipped(right(*given)))
    assert probe_named(name).run(ground)["error"]


def test_of_several_ways_each_is_told(monkeypatch, ground):
    torch = ground.torch
    monkeypatch.setattr(torch.Tensor, "index_copy_", lambda *_: (_ for _ in ()).throw(RuntimeError("IndexPutV2 fails")))
    found = probe_named("indexed_writes").run(ground)
    wrong = {name for name, one in found["cases"].items() if "error" in one}
    assert wrong == {"int8 index_copy_", "float16 index_copy_"} and found["failed"] == 2
    assert "IndexPutV2 fails" in found["error"]


def test_of_several_ways_none_is_asked_of_a_lost_card(monkeypatch, ground):
    lost = RuntimeError("ACL stream synchronize failed, error code:507018")
    monkeypatch.setattr(ground.torch.Tensor, "index_put_", lambda *_: (_ for _ in ()).throw(lost))
    found = probe_named("indexed_writes").run(ground)
    assert found["spoiled"] and list(found["cases"]) == ["int8 index_copy_", "int8 assignment"]


def test_a_chip_that_saturates_is_told_from_one_that_has_inf_and_nan(monkeypatch):
    ground, overflow = Ground(EmulatedRuntime(chip_law("910b"))), probe_named("overflow")
    assert {"saturates": False, "has_nan": True}.items() <= overflow.run(ground).items()
    right = ground.result
    monkeypatch.setattr(ground, "result", lambda *given: tuple(one.nan_to_num(nan=0.0) for one in right(*given)))
    found = overflow.run(ground)
    assert {"saturates": True, "has_nan": False}.items() <= found.items() and "error" not in found
    monkeypatch.setattr(ground, "result", lambda *given: tuple(one * 0.0 + 3.0 for one in right(*given)))
    assert "float16_sum" in overflow.run(ground)["error"]


def test_zeros_as_bias_that_change_a_product_are_seen(monkeypatch, ground):
    right = ground.calls.quant_matmul

    def wrong(x, weight, scale, bias):
        product = right(x, weight, scale, bias)
        return product if bias is None else flipped(product)

    assert "error" not in probe_named("many_rows").run(ground)
    monkeypatch.setattr(ground.calls, "quant_matmul", wrong)
    assert probe_named("many_rows").run(ground)["error"]


def test_a_sum_with_its_norm_has_both(monkeypatch, ground):
    from edge_llm.ascend.npu.emulated_ops import npu_rms_norm

    probe = probe_named("add_rms_norm")
    of_sum = lambda x1, x2, gamma, epsilon: (*npu_rms_norm(x1 + x2, gamma, epsilon), x1 + x2)  # noqa: E731
    of_first = lambda x1, x2, gamma, epsilon: (*npu_rms_norm(x1, gamma, epsilon), x1 + x2)  # noqa: E731
    without = lambda x1, x2, gamma, epsilon: (*npu_rms_norm(x1 + x2, gamma, epsilon), x1)  # noqa: E731
    seen = {}
    for name, operator in (("right", of_sum), ("no sum before", of_first), ("no sum behind", without)):
        monkeypatch.setattr(ground, "operator", lambda space, name, operator=operator: operator)
        seen[name] = "error" in probe.run(ground)
    assert seen == {"right": False, "no sum before": True, "no sum behind": True}


def test_a_swiglu_that_is_rounded_to_float16_is_seen(monkeypatch, ground):
    right = ground.operator("npu", "npu_swiglu")
    monkeypatch.setattr(ground, "operator", lambda space, name: lambda input, dim: right(input=input, dim=dim).half().float())
    assert probe_named("swiglu_float32").run(ground)["error"]


def test_each_kind_of_launch_has_its_seconds_whatever_becomes_of_the_others(monkeypatch, ground):
    right = probe_named("launch_kinds").run(ground)
    kinds = set(right["cases"])
    assert {"add", "cast", "copy", "addmm", "quantize", "quant_matmul", "rms_norm", "rotate", "write_keys", "attend"} < kinds
    assert all(0 < one["seconds_to_give"] <= one["seconds"] for one in right["cases"].values())

    def refuses(*values):
        raise DeviceError("Ascend310P3 refuses npu_swiglu: x is one")

    monkeypatch.setattr(ground.calls, "swiglu", refuses)
    found = probe_named("launch_kinds").run(ground)
    assert found["error"] == "swiglu failed"
    assert {name for name, one in found["cases"].items() if "seconds" in one} == kinds - {"swiglu"}


def test_a_copy_that_is_refused_while_a_graph_is_recorded_is_told(monkeypatch, ground):
    def load(work, after=None):
        raise RuntimeError("the stream is being captured")

    monkeypatch.setattr(ground.runtime, "load", load)
    assert probe_named("copies_while_capturing").run(ground)["error"] == "copy: the stream is being captured"


@pytest.mark.parametrize(("mode", "code"), [(1, 0), (0, 0), (0, 507033)])
def test_pyacl_is_asked_where_this_code_runs(monkeypatch, ground, mode, code):
    monkeypatch.setitem(sys.modules, "acl", SimpleNamespace(rt=SimpleNamespace(get_run_mode=lambda: (mode, code))))
    found = probe_named("run_mode").run(ground)
    assert (found["run_mode"], "error" in found) == (mode, code != 0)


def test_versions_that_no_library_tells_are_read_from_files(tmp_path):
    assert installed(build(tmp_path, FILES)) == {"nnal": "9.1.0", "driver": "25.5.1"}
    assert installed(build(tmp_path / "nothing", {}, environment={})) == {}


def software_under_torch_npu():
    """What the first row says with the real torch_npu; for a process of its own."""
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS

    runtime = open_runtime(None)
    kernels.install(IMPLEMENTATIONS)
    return probe_named("software").run(Ground(runtime))


@pytest.mark.torch_npu
def test_the_first_row_says_how_the_process_is_set_up(card):
    found = card.run(software_under_torch_npu)
    assert found["jit_compile"] is False
    assert {type(found[name]) for name in ("internal_format", "inf_and_nan")} == {bool}
    assert found["torch_npu"] and found["cann"] == "9.1.0"


def under_torch_npu(names):
    """What probes find with the real torch_npu; for a process of its own."""
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS

    runtime = open_runtime(None)
    kernels.install(IMPLEMENTATIONS)
    Ground.size = lambda self, full, small: small
    ground = Ground(runtime)
    found = {}
    for probe in PROBES:
        if probe.name in names:
            figures = probe.run(ground)
            found[probe.name] = figures.get("error")
            json.dumps(figures)
    return found


@pytest.mark.thorough(keep=1)
@pytest.mark.torch_npu
@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910B1"])
def test_probes_under_the_real_torch_npu(card, soc):
    """All but those of PyTorch's own operators that the stand-ins do not have."""
    names = [probe.name for probe in PROBES if probe.needed and probe.name != "float_operators"]
    names += ["weight_formats", "float_fractals", "swiglu_float32", "chunk_limits", "rows_of_products", "chunk_equals_rows"]
    names += ["rows_of_layers", "int8_keys", "int8_keys_captured"]
    assert card.run(under_torch_npu, names, soc=soc) == dict.fromkeys([probe.name for probe in PROBES if probe.name in names])


def test_rows_and_tests_that_the_page_names_are_there():
    page = (Path(__file__).parents[1] / "docs" / "ascend.md").read_text()
    table = page.partition("| row | what we would like to know |")[2].partition("\n\n")[0]
    rows = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if line)))
    assert rows and rows <= {probe.name for probe in PROBES}
    assert {probe.name for probe in PROBES if not probe.needed} - rows <= {"bfloat16", "int8_keys_written"}
    told = set(re.findall(r"`(test_\w+)`", page))
    here = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert told and [name for name in told if f"def {name}(" not in here] == []


UNKNOWN = {
    "whether rows can be put where an array says": "indexed_writes",
    "whether attention takes INT8 keys in blocks": "int8_keys",
    "whether fractals are fractals": "weight_formats",
    "whether there are infinities": "overflow",
    "whether sums in int64 are slow": "counting",
    "where code of pyACL runs": "run_mode",
    "whether operators are there that documents leave out": "float_operators",
    "whether writes of 4 bytes reach their neighbours": "small_writes",
    "whether another model may be loaded while a graph is captured": "copies_while_capturing",
    "how many heads attention over chunks takes": "chunk_limits",
    "whether rows have scales of their own": "dynamic_quant",
}
"""What only a card can say, and the row that asks it."""


def test_what_would_fail_or_be_slow_is_tried_or_counted_and_what_is_unknown_is_asked():
    page = (Path(__file__).parents[1] / "docs" / "ascend.md").read_text()
    for head, count in (("| what would fail |", 9), ("| what would be slow |", 8)):
        table = page.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
        assert len(rows) == count
        for what, done, tried in rows:
            files = re.findall(r"`(tests/test_\w+\.py)`", tried)
            assert done and all((Path(__file__).parents[1] / file).is_file() for file in files), what
            assert files or "`test_" in tried or re.search(r"\d", tried), f"neither a test nor a figure: {what}"
    asked = page.partition("| row | what we would like to know |")[2].partition("\n\n")[0]
    assert set(UNKNOWN.values()) <= {probe.name for probe in PROBES}
    assert {row for row in UNKNOWN.values() if f"`{row}`" not in asked} == set()


# ---- none of them stops the others


def probes(*names, seconds=60.0):
    return [Probe(getattr(selftest_probes, name), seconds=seconds) for name in names]


@pytest.mark.thorough
@pytest.mark.usefixtures("emulated")
def test_a_probe_that_raises_dies_or_hangs_does_not_stop_the_others():
    bad = [*probes("raises", "dies"), *probes("hangs", seconds=3.0), *probes("wrong", "refuses", "loses")]
    told = []
    found = SelfTest([*probes("good"), *bad, *probes("last")]).run(lambda *told_of: told.append(told_of))
    results = found["probes"]
    assert found["chip"] == {"name": "310p", "soc": "Ascend310P3", "emulated": True}
    assert list(results) == ["good", "raises", "dies", "hangs", "wrong", "refuses", "loses", "last"]
    assert [name for name, result in results.items() if result["ok"]] == ["good", "last"]
    assert results["raises"]["error"] == "IndexError: list index out of range"
    assert results["dies"]["error"] == "its process ended with -9"
    assert results["dies"]["log"] == "the driver's last words"
    assert results["hangs"]["error"] == "no answer within 3 s"
    assert results["hangs"]["log"] == "it waits for the card"
    assert results["wrong"]["differing"] == 3
    assert "refuses npu_swiglu" in results["refuses"]["error"]
    assert "ERR01100 OPS call acl api failed" in results["loses"]["error"]
    assert [name for name, _, _ in told] == ["opening", *results, ""]
    assert results["good"]["no_fallback"] == "1"


@pytest.mark.usefixtures("emulated")
def test_only_what_may_have_spoiled_the_card_costs_a_new_process():
    found = SelfTest(probes("good", "refuses", "wrong", "another", "raises", "last")).run()["probes"]
    assert found["good"]["process"] == found["another"]["process"] != found["last"]["process"]
    found = SelfTest(probes("good", "loses_one_of_several", "last")).run()["probes"]
    assert found["good"]["process"] != found["last"]["process"]
    assert found["loses_one_of_several"]["failed"] == 1
    assert "spoiled" not in found["loses_one_of_several"]


@pytest.mark.usefixtures("emulated")
def test_what_libraries_print_and_odd_numbers_do_not_break_the_report():
    found = SelfTest(probes("chatters", "infinite", "last")).run()["probes"]
    assert found["chatters"]["said"]
    assert found["infinite"]["rate"] == "inf"
    assert found["infinite"]["nested"] == {"none": "nan"}
    assert found["last"]["ok"]


@pytest.mark.usefixtures("emulated")
def test_a_card_that_cannot_be_opened_again_is_left_alone(monkeypatch):
    selftest = SelfTest(probes("good", "raises", "another", "wrong", "last"))
    opened = []
    right = selftest._open

    def once():
        opened.append(1)
        return right() if len(opened) == 1 else {"error": "torch_npu sees no card"}

    monkeypatch.setattr(selftest, "_open", once)
    found = selftest.run()["probes"]
    assert len(opened) == 3
    assert [result["ok"] for result in found.values()] == [True, False, False, False, False]
    assert found["another"]["error"] == "the card cannot be opened again: torch_npu sees no card"
    assert found["last"]["error"] == "not asked: the card could not be opened again"


# ---- the command


@pytest.fixture(scope="module")
def report():
    """What `doctor --selftest --json` prints, made once."""
    import contextlib
    import io

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("EDGE_LLM_NPU_OPS", "emulated")
        assert run(["doctor", "--selftest", "--json"]) == 0
    return json.loads(out.getvalue())


def test_the_report_is_one_json_object_of_a_known_shape(report):
    assert list(report) == ["version", "when", "machine", "versions", "chip", "probes"]
    assert report["chip"] == {"name": "310p", "soc": "Ascend310P3", "emulated": True}
    assert list(report["probes"]) == [probe.name for probe in PROBES]
    assert report["machine"]["processor"]["value"]
    assert report["versions"]["torch"]
    for probe in PROBES:
        result = report["probes"][probe.name]
        assert result["ok"] is (probe.name not in NOT_EMULATED)
        assert result["needed"] is probe.needed
        assert result["took_seconds"] >= 0
        assert ("error" in result) is not result["ok"]


@pytest.mark.usefixtures("emulated")
def test_the_table_names_every_probe_and_times_of_an_emulation_are_not_kept(monkeypatch, capsys):
    monkeypatch.setattr(SelfTest, "_run", lambda self, told: {"chip": CHIP, "probes": TABLE})
    assert run(["doctor", "--selftest"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == [
        "+ overflow  saturates yes, has nan no",
        "+ launch    15.1 us, to give 3.5 us",
        "! copies    in 19.2 us, in 5.12 GB/s, differing 3",
        "            -> 3 of 4 values differ",
        "- s8gemm",
        "            -> there is no pyACL",
        "what models rely on fails: copies",
    ]
    assert "times mean nothing" in err
    assert not selftest_folder().exists()


CHIP = {"name": "310p", "soc": "Ascend310P3", "emulated": True}
TABLE = {
    "overflow": {"ok": True, "needed": True, "took_seconds": 0.1, "saturates": True, "has_nan": False},
    "launch": {"ok": True, "needed": True, "took_seconds": 0.1, "seconds": 15.1e-6, "seconds_to_give": 3.5e-6},
    "copies": {
        "ok": False, "needed": True, "took_seconds": 0.1, "in_seconds": 19.2e-6, "in_bytes_per_second": 5.12e9,
        "differing": 3, "error": "3 of 4 values differ",
    },
    "s8gemm": {"ok": False, "needed": False, "took_seconds": 0.1, "error": "there is no pyACL"},
}  # fmt: skip


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_without_a_card_one_line_says_what_to_do(monkeypatch, capsys, form):
    monkeypatch.delenv("EDGE_LLM_NPU_OPS", raising=False)
    assert run(["doctor", "--selftest", *form]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "no Ascend card can be used" in line
    assert "edge-llm doctor" in line


# ---- what becomes of the report


def measured(**more):
    """A report of a card, as far as a law wants it."""
    numbers = {
        "launch": {"seconds": 8e-6, "seconds_with_wait": 30e-6},
        "copies": {"in_seconds": 9e-6, "out_seconds": 12e-6, "in_bytes_per_second": 14e9, "out_bytes_per_second": 11e9},
        "product_speed": {"operations_per_second": 90e12, "bytes_per_second": 150e9},
        "float_product": {"operations_per_second": 40e12},
        "replay": {"replay_seconds": 80e-6},
        "eager_and_replay": {"capture_seconds": 0.2},
    }
    results = {name: {"ok": True, "needed": True, **figures} for name, figures in numbers.items()}
    chip = {"name": "310p", "soc": "Ascend310P3", "emulated": False}
    return {"when": "2027-01-02T03:04:05Z", "chip": chip, "probes": results} | more


def test_a_report_replaces_the_estimates_of_its_chip():
    law = law_with_report(chip_law("310p"), measured())
    assert law.measured == "2027-01-02T03:04:05Z"
    assert law.launch_seconds == 8e-6
    assert law.wait_seconds == pytest.approx(22e-6)
    assert (law.copy_latency, law.copy_rate) == (12e-6, 11e9)
    assert law.int8_rate * law.rate_share == 90e12
    assert law.float16_rate * law.rate_share == 40e12
    assert law.bandwidth * law.bandwidth_share == 150e9
    assert (law.replay_seconds, law.capture_seconds) == (80e-6, 0.2)


def test_what_a_report_did_not_measure_stays_an_estimate():
    law, report = chip_law("310p"), measured()
    report["probes"]["copies"] |= {"ok": False, "error": "3 of 4 values differ"}
    del report["probes"]["float_product"]
    found = law_with_report(law, report)
    assert (found.copy_latency, found.copy_rate) == (law.copy_latency, law.copy_rate)
    assert found.float16_rate * found.rate_share == law.float16_rate * law.rate_share


@pytest.mark.parametrize("chip", [{"name": "910b", "emulated": False}, {"name": "310p", "emulated": True}, {}, None])
def test_a_report_of_another_chip_or_of_an_emulation_says_nothing(chip):
    assert law_with_report(chip_law("310p"), measured(chip=chip)) == chip_law("310p")


VALUES = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]))
FIGURES = sorted({name for result in measured()["probes"].values() for name in result})


@given(st.dictionaries(st.sampled_from(sorted(measured()["probes"])), st.dictionaries(st.sampled_from(FIGURES), VALUES)))
def test_nonsense_in_a_report_gives_no_law_of_nonsense(results):
    law = law_with_report(chip_law("310p"), measured(probes=results))
    for field in dataclasses.fields(law):
        value = getattr(law, field.name)
        if isinstance(value, float):
            assert 0 <= value < 1e31


def test_a_kept_report_is_found_again_and_only_for_its_chip():
    assert measured_law(chip_law("310p")) == chip_law("310p")
    path = save_report(measured())
    assert path == report_path("310p")
    assert [file.name for file in path.parent.iterdir()] == ["310p.json"]
    assert saved_report("310p") == measured()
    assert measured_law(chip_law("310p")).launch_seconds == 8e-6
    assert measured_law(chip_law("910b")) == CHIPS["910b"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100000, '{"chip": 3}', '{"probes": []}', "\xff"])
def test_a_report_that_cannot_be_read_is_none(text):
    save_report(measured())
    report_path("310p").write_text(text, encoding="latin-1")
    assert measured_law(chip_law("310p")) == chip_law("310p")


@pytest.mark.parametrize("reported", [False, True])
def test_plan_says_whether_its_times_were_measured(capsys, monkeypatch, reported):
    monkeypatch.setattr("edge_llm.bench.rates.read_bandwidth", lambda _: 1e10)
    monkeypatch.setattr("edge_llm.bench.rates.measure_disk", lambda _: 1e9)
    if reported:
        save_report(measured())
    assert run(["plan", "--device", "emulated:310p", "--threads", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["card_times"] == ("measured by the self-test of 2027-01-02T03:04:05Z" if reported else "estimates")
    assert run(["plan", "--device", "emulated:310p", "--threads", "1"]) == 0
    said = "measured by the self-test of 2027-01-02T03:04:05Z" if reported else "assumed of emulated:310p"
    assert said in capsys.readouterr().out


@pytest.mark.usefixtures("emulated")
@pytest.mark.filterwarnings("ignore:EDGE_LLM_NPU_OPS")
def test_a_plan_for_the_card_reckons_with_the_chip(capsys, monkeypatch):
    monkeypatch.setattr("edge_llm.bench.rates.read_bandwidth", lambda _: 1e10)
    monkeypatch.setattr("edge_llm.bench.rates.measure_disk", lambda _: 1e9)
    assert run(["plan", "--device", "ascend", "--threads", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["card_times"] == "estimates"
    assert facts["memory_bytes_per_s"] < chip_law("310p").bandwidth
