"""`edge-llm plan`: the numbers it prints are those of the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_files import tiny_config, write_model

from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.ascend.npu.chips import chip_law
from edge_llm.bench import rates as rates_module
from edge_llm.bench.rates import card_rates, device_rates
from edge_llm.bench.roofs import Costs
from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.devices.host import HostDevice
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.roofs import read_bandwidth
from edge_llm.paths import find_bundle
from edge_llm.schemes import float16
from edge_llm.weights.speeds import Rates

pytestmark = pytest.mark.thorough(file=3)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Main memory is measured on less of it."""

    def rate(pool: ThreadPool) -> float:
        return read_bandwidth(pool, 16 << 20)

    monkeypatch.setattr(rates_module, "read_bandwidth", rate)


def test_plan_of_the_builtin_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--memory", "80%", "--json", "--threads", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["held_bytes"] <= facts["budget_bytes"] == facts["memory_bytes"] * 80 // 100
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
        layer = Costs.of_bundle(bundle).operations / len(bundle.decoder.layers)
        layers = len(bundle.decoder.layers)
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
        chips = (EmulatedDevice(chip, 1, route="float16") for chip in ("310b", "310p", "910b"))
        slow, middle, fast = (card_rates(bundle, chip, 256, here) for chip in chips)
    assert slow.operations < middle.operations < fast.operations < chip_law("910b").int8_rate
    assert slow.memory < middle.memory < fast.memory < chip_law("910b").bandwidth
    assert {slow.disk, middle.disk, fast.disk} == {here.disk}


@pytest.fixture(scope="module")
def float16_bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One model in INT8, with a linear of every layer in float16, and with all of them."""
    source, places = write_model(tmp_path_factory.mktemp("source"), tiny_config()), tmp_path_factory.mktemp("bundles")
    chosen = [Outliers("none"), *(Outliers("none", schemes=((name, "float16"),)) for name in ("*.gate_up", "*"))]
    return [import_model(source, target=places / str(index), outliers=one) for index, one in enumerate(chosen)]


def test_float16_linears_cost_a_plan_what_they_cost(float16_bundles: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "measure_layer", lambda *_: 1e12)
    monkeypatch.setattr(rates_module, "read_bandwidth", lambda _: 1e10)
    monkeypatch.setattr(rates_module, "measure_disk", lambda _: 1e9)
    runtime, rates = RuntimeConfig(threads=1, chunk=256), []
    for folder in float16_bundles:
        with open_bundle(folder) as bundle:
            rates.append([device_rates(bundle, runtime, device) for device in (HostDevice(1), EmulatedDevice("310p", 1))])
    whole, some, every = (host.operations for host, _ in rates)
    assert whole == 1e12 > some > every
    with open_bundle(float16_bundles[-1]) as bundle:
        costs, linears = Costs.of_bundle(bundle), [linear for layer in bundle.decoder.layers for linear in layer.linears]
    card = rates[-1][1]  # it multiplies nothing here, so all is read and multiplied by the machine
    assert card.memory == pytest.approx(1e10 * costs.weight_bytes / (costs.logit_operations / 2 + costs.operations))
    assert card.operations == pytest.approx(costs.operations / sum(1e-6 * float16.cost(linear) for linear in linears))


def test_plan_says_what_a_token_takes_from_the_card_from_main_memory_and_from_flash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    card = ["--device", "emulated:310p", "--placement", "card", "--card-memory", "11500000", "--ctx", "512", "--threads", "1"]
    assert run(["plan", *card, "--memory", "70%", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    taken = [facts[f"{place}_bytes_per_token"] for place in ("card", "host", "flash")]
    assert facts["card_streamed_layers"] == sorted(facts["hosted_layers"] + facts["streamed_layers"])
    with open_bundle(find_bundle(None)) as bundle:
        layers = {index: bundle.blocks[f"layers.{index}"].nbytes for index in range(len(bundle.decoder.layers))}
        output = bundle.blocks["embedding" if bundle.decoder.tied else "output"].nbytes
    assert taken[1:] == [sum(layers[index] for index in facts[f"{kind}_layers"]) for kind in ("hosted", "streamed")]
    assert sum(taken) == sum(layers.values()) + output
    assert run(["plan", *card]) == 0
    said = capsys.readouterr().out
    assert " from the card, " in said and " from main memory" in said and " stay in main memory for the card; " in said
