"""Every face says where the model runs and why: device and placement, in the same words."""

import json

import pytest
from model_files import tiny_config, write_model
from serving import client_of, hosted

from edge_llm import devices
from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.opening.load import load_engine
from edge_llm.runner.base import Site
from edge_llm.subgraphs.placement import choose_placement

WAYS = {
    "host": (),
    "a chip": ("--device", "emulated:310p"),
    "asked for": ("--device", "emulated:310p:float16", "--placement", "card"),
    "float": ("--float",),
}
REASONS = {
    "host": ("host", "host", "the default of the device `host`"),
    "a chip": ("emulated:310p", "split", EmulatedDevice("310p", 1).placement_reason),
    "asked for": ("emulated:310p:float16", "card", "asked for"),
    "float": ("host", "host", "--float has no other"),
}


class ShapedDevice(EmulatedDevice):
    """A card whose attention takes heads of multiples of 16 only."""

    def __init__(self, name, options):
        super().__init__("310p", options.threads)
        size = options.decoder.attentions[0].head_dim
        unfit = {"card": f"head size {size}: the card's attention takes multiples of 16"} if size % 16 else {}
        chosen = choose_placement(options.placement, ("card", "split"), f"the device `{name}`", unfit)
        self.placement, self.placement_reason = chosen


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    write_model(folder / "source", tiny_config("llama"))
    return import_model(folder / "source", target=folder / "bundle", keep_float=True)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("way", WAYS)
def test_every_face_says_the_same(folder, capsys, monkeypatch, way):
    monkeypatch.setattr("sys.stdin", None)
    told = []
    assert run(["run", str(folder), "hello", "-n", "1", "--ctx", "64", "--json", *WAYS[way]]) == 0
    told.append(Site.of_row(json.loads(capsys.readouterr().out)))
    bench = ["bench", str(folder), "-p", "4", "-n", "0", "-r", "1", *WAYS[way]]
    assert run([*bench, "--json"]) == 0
    told.append(Site.of_row(json.loads(capsys.readouterr().out)[0]))
    assert run(bench) == 0
    assert str(told[0]) in capsys.readouterr().err.splitlines()
    if way != "float":
        assert run(["plan", str(folder), "--json", "--ctx", "64", "--memory", "4MiB", *WAYS[way]]) == 0
        told.append(Site.of_row(json.loads(capsys.readouterr().out)))
    assert set(told) == {told[0]}
    assert (told[0].device, told[0].placement, told[0].placement_reason) == REASONS[way]


def test_a_server_says_it_of_its_model(folder):
    engine = load_engine(folder, RuntimeConfig(threads=1, context=64))
    with client_of(hosted(engine=engine)) as client:
        assert Site.of_row(client.get("/v1/models").json()["data"][0]["meta"]) == engine.runner.site


def test_a_device_may_choose_its_placement_by_the_shape_of_the_model(folder, tmp_path):
    devices.add_device("shaped", ShapedDevice)
    sites = []
    for name, heads in (("eight", 8), ("sixteen", 16)):
        write_model(tmp_path / name, tiny_config("llama", head_dim=heads))
        bundle = import_model(tmp_path / name, target=tmp_path / f"{name}.bundle")
        sites.append(load_engine(bundle, RuntimeConfig(device="shaped", threads=1, context=64)).runner.site)
    assert [site.placement for site in sites] == ["split", "card"]
    reasons = ["head size 8: the card's attention takes multiples of 16", "the default of the device `shaped`"]
    assert [site.placement_reason for site in sites] == reasons
