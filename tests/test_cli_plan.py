"""`edge-llm plan`: the numbers it prints are those of the plan."""

from __future__ import annotations

import json

import pytest

from edge_llm.bench import rates as rates_module
from edge_llm.bench.rates import card_rates
from edge_llm.bench.roofs import Costs
from edge_llm.cli.main import run
from edge_llm.devices.chips import chip_law
from edge_llm.devices.emulated import EmulatedDevice
from edge_llm.formats.bundle import open_bundle
from edge_llm.paths import find_bundle
from edge_llm.weights.plan import Rates
from kernels import ThreadPool
from kernels.roofs import read_bandwidth


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Main memory is measured on less of it."""

    def rate(pool: ThreadPool) -> float:
        return read_bandwidth(pool, 16 << 20)

    monkeypatch.setattr(rates_module, "read_bandwidth", rate)


def test_plan_of_the_builtin_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--memory", "80%", "--json", "--threads", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["held_bytes"] <= facts["budget_bytes"] == facts["weights_bytes"] * 80 // 100
    layers = sorted(facts["resident_layers"] + facts["streamed_layers"])
    assert layers == list(range(len(layers)))
    assert facts["slots"] < len(facts["streamed_layers"])
    assert facts["predicted_decode_ts"] <= 1.001 * facts["disk_bytes_per_s"] / facts["streamed_bytes_per_token"]
    assert facts["free_prompt_tokens"] >= 0


def test_plan_without_a_budget_keeps_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "resident    5 layers: 0-4" in out
    assert "from flash" not in out


@pytest.mark.parametrize(("memory", "message"), [("5x", "is an invalid amount of memory"), ("1KiB", "the least that works is")])
def test_budgets_that_cannot_be(memory: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--memory", memory]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def no_host_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_layer(*_: object) -> float:
        raise AssertionError("a layer was measured on this machine")

    monkeypatch.setattr(rates_module, "measure_layer", measure_layer)


@pytest.mark.usefixtures("no_host_product")
def test_plan_for_a_chip_reckons_with_the_chip(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--device", "emulated:310p", "--json", "--threads", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    with open_bundle(find_bundle(None)) as bundle:
        seconds = EmulatedDevice("310p", 1).costs(bundle.decoder.layers[0].linears, (1, 256))
        layer = Costs.of_bundle(bundle).operations / bundle.config.num_layers
        layers = bundle.config.num_layers
    rows = sum(value for key, value in seconds.items() if key.endswith("/256"))
    token = sum(value for key, value in seconds.items() if key.endswith("/1"))
    assert facts["device"] == "emulated:310p"
    assert facts["operations_per_s"] == pytest.approx(256 * layer / rows)
    assert facts["predicted_decode_ts"] < 1 / (layers * token)


@pytest.mark.usefixtures("no_host_product")
def test_plan_for_a_chip_says_that_it_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--device", "emulated:310p", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if "assumed of emulated:310p" in line] == ["memory", "processor"]


def test_a_faster_chip_is_faster_and_the_disk_is_the_machine_s() -> None:
    here = Rates(disk=1e9, memory=1e10, operations=1.0)
    with open_bundle(find_bundle(None)) as bundle:
        slow, middle, fast = (card_rates(bundle, EmulatedDevice(chip, 1), 256, here) for chip in ("310b", "310p", "910b"))
    assert slow.operations < middle.operations < fast.operations < chip_law("910b").int8_rate
    assert slow.memory < middle.memory < fast.memory < chip_law("910b").bandwidth
    assert {slow.disk, middle.disk, fast.disk} == {here.disk}
