"""`--device auto`: a card that is here and works, else the host, which is said where a card is here."""

import json
import subprocess
import sys

import pytest
from failing_device import FAILURE, NAME, add_failing_device
from model_files import tiny_config, write_model
from test_npu_machine import ENVIRONMENT, FILES, HOME, INFO, NNAL_INFO, VERSION_INFO, build, without

from edge_llm.ascend.npu.findings import ascend_findings, file_findings
from edge_llm.ascend.npu.packages import Imported
from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.errors import DeviceError, DeviceLost, UsageError
from edge_llm.opening import auto_device, defaults, examine, machine, resolve
from edge_llm.opening import begin as opening
from edge_llm.opening.auto_device import AutoDevice, choose_device, find_device
from edge_llm.opening.load import load_engine, plan_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    write_model(folder / "source", tiny_config("llama"))
    return import_model(folder / "source", target=folder / "bundle")


@pytest.fixture
def found(monkeypatch):
    """``found(device)``: what `auto` stands for on this machine."""
    monkeypatch.setattr("sys.stdin", None)

    def found_(device):
        monkeypatch.setattr(machine, "find_device", lambda: device)
        machine._found_device.cache_clear()
        opening.say_once.cache_clear()

    yield found_
    machine._found_device.cache_clear()


def answer(folder, capsys, *options):
    """What `run --json` says, and what is on stderr."""
    assert run(["run", str(folder), "hello", "-n", "3", "--ctx", "64", "--json", "-t", "1", *options]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


# ---- what is looked at


NO_CARD = {name: text for name, text in FILES.items() if "0000:01" in name}


@pytest.mark.parametrize("files", [{}, NO_CARD])
def test_without_a_card_nothing_else_is_looked_at(tmp_path, files, monkeypatch):
    fake = build(tmp_path, files)
    assert choose_device(fake, ascend_findings(fake)) == AutoDevice("host", "no Ascend card")
    monkeypatch.setattr("edge_llm.ascend.npu.findings.file_findings", None)
    assert find_device(tmp_path) == AutoDevice("host", "no Ascend card")


def test_a_card_with_all_that_it_needs_is_taken(tmp_path):
    fake = build(tmp_path, FILES)
    assert choose_device(fake, file_findings(fake)) == AutoDevice("ascend", "an Ascend card is here")
    assert choose_device(fake, ascend_findings(fake)).device == "ascend"


def test_a_card_without_nnal_is_taken(tmp_path):
    """It cannot do the placement `card`; who opens it says so."""
    fake = build(tmp_path, without("/usr/local/Ascend/nnal"))
    assert choose_device(fake, file_findings(fake)).device == "ascend"


def test_to_choose_imports_nothing(tmp_path):
    """Importing torch_npu takes seconds; whoever opens the card does it."""
    fake = build(tmp_path, FILES, result=Imported(False, "not to be asked"))
    assert choose_device(fake, file_findings(fake)).device == "ascend"
    assert choose_device(fake, ascend_findings(fake)).device == "host"


@pytest.mark.parametrize(
    ("files", "environment"),
    [
        ({**FILES, VERSION_INFO: "Version=25.2.0\n"}, {}),
        ({**FILES, INFO: "version=8.5.0\n"}, {}),
        ({**FILES, NNAL_INFO: "Ascend-cann-atb : 8.5.0\n"}, {}),
        (FILES, {"TASK_QUEUE_ENABLE": "2", "ASCEND_LAUNCH_BLOCKING": "1"}),
        (FILES, {"PYTORCH_NPU_ALLOC_CONF": "pin_memory_expandable_segments:True"}),
    ],
    ids=["driver", "CANN", "NNAL", "waits", "pinned memory"],
)
def test_a_card_that_is_slower_for_what_is_wrong_is_taken(tmp_path, files, environment):
    findings = file_findings(fake := build(tmp_path, files, ENVIRONMENT | environment))
    assert any(finding.good is False for finding in findings)
    assert choose_device(fake, findings).device == "ascend"


@pytest.mark.parametrize(
    ("files", "environment", "gap", "remedy"),
    [
        (FILES, {"ACL_OP_INIT_MODE": "2"}, "ACL_OP_INIT_MODE: `2` forbids npu_format_cast", "`unset ACL_OP_INIT_MODE`"),
        (without("/site/scipy"), {}, "CANN compiler: lacks Python packages: scipy", "`pip install scipy`"),
    ],
)
def test_a_card_that_could_load_no_weight_is_left_alone_with_the_remedy(tmp_path, files, environment, gap, remedy):
    chosen = choose_device(fake := build(tmp_path, files, ENVIRONMENT | environment), file_findings(fake))
    assert (chosen.device, chosen.remedy) == ("host", remedy)
    assert chosen.reason.startswith(f"the Ascend card cannot be used: {gap}")


@pytest.mark.parametrize(
    ("files", "closed", "gap", "remedy"),
    [
        (without("/dev/davinci0", "/dev/davinci10", "/dev/davinci2"), (), "ascend card: PCI 0000:83:00.0, but", "driver"),
        (FILES, ("davinci0",), "ascend rights: this user may not read and write /dev/davinci0", "usermod"),
        (without(HOME), (), f"CANN: `{HOME}` is not there", "install the CANN toolkit"),
        (without("/site/torch_npu"), (), "torch_npu: not installed", "install"),
    ],
)
def test_a_card_that_lacks_something_is_left_alone_with_the_remedy(tmp_path, files, closed, gap, remedy):
    fake = build(tmp_path, files, ENVIRONMENT, closed)
    chosen = choose_device(fake, file_findings(fake))
    assert chosen.device == "host" and remedy in chosen.remedy
    assert chosen.reason.startswith(f"the Ascend card cannot be used: {gap}")


def test_a_start_without_a_card_loads_nothing_that_only_cards_need():
    script = (
        "import sys; from edge_llm.config import RuntimeConfig; from edge_llm.opening.load import load_engine, plan_of\n"
        "load_engine(None, RuntimeConfig(threads=1)); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    slow = {"torch", "torch_npu", "edge_llm.ascend.npu.machine", "edge_llm.ascend.npu.packages"}
    assert not slow & set(loaded.stdout.split())
    assert loaded.stderr == ""


# ---- what comes of it


def test_without_a_card_stderr_is_silent(folder, capsys, found):
    found(auto_device.NONE)
    said, err = answer(folder, capsys)
    assert (said["device"], said["device_reason"], said["placement"]) == ("host", "no Ascend card", "host")
    assert err == ""


def test_a_card_that_cannot_be_used_is_said_once(folder, capsys, found, caplog):
    found(AutoDevice("host", "the Ascend card cannot be used: CANN: not installed", "install the CANN toolkit"))
    for _ in range(2):
        said, _ = answer(folder, capsys)
        assert (said["device"], said["device_reason"]) == ("host", "the Ascend card cannot be used: CANN: not installed")
    assert [record.getMessage() for record in caplog.records] == [
        "--device auto uses the host: the Ascend card cannot be used: CANN: not installed; install the CANN toolkit"
    ]
    caplog.clear()
    found(AutoDevice("host", "the Ascend card cannot be used: CANN: not installed", "install the CANN toolkit"))
    assert answer(folder, capsys, "--device", "host")[0]["device_reason"] == "asked for"
    assert caplog.records == []


def test_a_card_is_used_if_it_works(folder, capsys, found, caplog):
    add_failing_device()
    found(AutoDevice(NAME, "a card is here"))
    said, err = answer(folder, capsys)
    assert (said["device"], said["device_reason"], said["placement"]) == (NAME, "a card is here", "split")
    assert (err, caplog.records) == ("", [])


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("command", ["run", "plan", "bench"])
def test_a_card_that_refuses_the_model_leaves_it_to_the_host(folder, capsys, found, caplog, command):
    arguments = {
        "run": ["hello", "-n", "1", "--ctx", "64"], "plan": ["--ctx", "64"], "bench": ["-p", "4", "-n", "0", "-r", "1"],
    }  # fmt: skip
    found(AutoDevice("nowhere", "a card is here"))
    monkey = {"device": "host", "device_reason": "the device `nowhere` refuses: too large for the card; use --device host"}
    opens = resolve.open_device

    def refuses(name, options):
        if name == "nowhere":
            raise DeviceError("too large for the card; use --device host")
        return opens(name, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "open_device", refuses)
        patch.setattr(defaults, "check_device", lambda name: None)
        assert run([command, str(folder), *arguments[command], "-t", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert monkey.items() <= (said[0] if command == "bench" else said).items()
    assert [record.getMessage() for record in caplog.records] == [f"--device auto uses the host: {monkey['device_reason']}"]


def test_a_card_that_was_asked_for_and_refuses_is_an_error(folder):
    fuse = add_failing_device()
    fuse.set(0)
    with pytest.raises(UsageError, match="no device `nowhere`"):
        load_engine(folder, RuntimeConfig(threads=1, device="nowhere"))
    engine = load_engine(folder, RuntimeConfig(threads=1, device=NAME, context=64))
    with pytest.raises(DeviceLost, match=FAILURE):
        engine.answer(engine.token_request([1, 2, 3], engine.defaults))


def test_float_looks_for_no_card(folder, found):
    found(None)
    assert plan_of(folder, RuntimeConfig(float_path=True)).site.device == "host"


@pytest.mark.parametrize(
    ("files", "device"),
    [
        ({}, "host (no Ascend card)"),
        (FILES, "ascend (an Ascend card is here)"),
        (without(HOME), f"host (the Ascend card cannot be used: CANN: `{HOME}` is not there, or closed to this user)"),
    ],
)
def test_doctor_says_what_auto_stands_for(tmp_path, monkeypatch, capsys, files, device):
    fake = build(tmp_path, files)
    monkeypatch.setattr(examine, "AscendMachine", lambda: fake)
    assert run(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["device"]["value"] == device
    assert said["placement"]["value"].startswith("host (" if device.startswith("host") else "the first that the chip lists")
