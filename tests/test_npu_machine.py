"""What doctor says on machines with an Ascend card: whole ones, broken ones, and ones with nonsense in every file.

Each machine is a folder with the files that such a machine has; none of them was seen by us.
"""

import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.ascend.npu.machine import AscendMachine, ascend_findings
from edge_llm.ascend.npu.packages import Imported, import_torch_npu, imported
from edge_llm.cli.main import run
from edge_llm.engine import machine

HOME = "/usr/local/Ascend/cann"
ATB = "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"
KERNELS = f"{HOME}/opp/built-in/op_impl/ai_core/tbe/kernel"
PCI = "/sys/bus/pci/devices"
CARD = f"{PCI}/0000:83:00.0"
INFO = f"{HOME}/aarch64-linux/ascend_toolkit_install.info"
VERSION_INFO = "/usr/local/Ascend/driver/version.info"
FILES = {
    "/dev/davinci0": "",
    "/dev/davinci10": "",
    "/dev/davinci2": "",
    "/dev/davinci_manager": "",
    "/dev/devmm_svm": "",
    "/dev/hisi_hdc": "",
    f"{CARD}/vendor": "0x19e5\n",
    f"{CARD}/device": "0xd500\n",
    f"{CARD}/class": "0x120000\n",
    f"{CARD}/numa_node": "1\n",
    f"{PCI}/0000:01:00.0/vendor": "0x19e5\n",  # a network card of the same maker
    f"{PCI}/0000:01:00.0/device": "0x1822\n",
    f"{PCI}/0000:01:00.0/class": "0x020000\n",
    "/sys/devices/system/node/node0/cpulist": "0-3\n",
    "/sys/devices/system/node/node1/cpulist": "4-7\n",
    VERSION_INFO: "Version=25.2.0\nascendhal_version=7.35.23\n",
    "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
    "/usr/local/sbin/npu-smi": "",
    f"{HOME}/set_env.sh": "",
    f"{HOME}/lib64/libascendcl.so": "",
    INFO: "package_name=Ascend-cann-toolkit\nversion=9.1.0\n",
    f"{KERNELS}/ascend310p/add/add.json": "{}",
    f"{KERNELS}/config/ascend310p/add.json": "{}",
    f"{ATB}/lib/libatb.so": "",
    "/usr/local/Ascend/nnal/atb/set_env.sh": "",
    "/site/torch-2.10.0+cpu.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+cpu\n",
    "/site/torch/version.py": "__version__ = '2.10.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
    "/site/torch_npu-2.10.0.post4.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.10.0.post4\n",
}
ENVIRONMENT = {
    "PATH": "/usr/bin:/usr/local/sbin",
    "HOME": "/home/me",
    "ASCEND_TOOLKIT_HOME": HOME,
    "LD_LIBRARY_PATH": f"{ATB}/lib::{HOME}/lib64",
}
WORKS = Imported(True, cards=3, chip="Ascend310P3")


def build(root, files, environment=ENVIRONMENT, closed=(), result=WORKS):
    for name, text in files.items():
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return AscendMachine(
        root,
        environment,
        search=(str(root / "site"),),
        may_use=lambda device: device.name not in closed,
        import_torch_npu=lambda environment: result,
    )


def without(*beginnings):
    return {name: text for name, text in FILES.items() if not name.startswith(beginnings)}


def named(findings):
    assert len({finding.name for finding in findings}) == len(findings)
    assert [finding for finding in findings if finding.good is False and not finding.advice] == []
    assert [finding for finding in findings if "\n" in finding.advice] == []
    return {finding.name: finding for finding in findings}


def bad(findings):
    return [finding.name for finding in findings if finding.good is False]


def test_a_machine_with_everything(tmp_path):
    found = named(ascend_findings(build(tmp_path, FILES)))
    assert {name: finding.good for name, finding in found.items()} == {
        **dict.fromkeys(found, True), "ascend numa": None,
    }  # fmt: skip
    assert {name: finding.value for name, finding in found.items()} == {
        "ascend card": "davinci0, davinci2, davinci10 (PCI 0000:83:00.0)",
        "ascend chip": "310P",
        "ascend numa": "0000:83:00.0 on node 1",
        "ascend driver": "25.2.0",
        "npu-smi": "/usr/local/sbin/npu-smi",
        "ascend rights": "this user may use /dev/davinci0, /dev/davinci2, /dev/davinci10, /dev/davinci_manager, "
        "/dev/devmm_svm, /dev/hisi_hdc",
        "CANN": f"9.1.0 in {HOME}",
        "CANN kernels": "for ascend310p",
        "NNAL": f"{ATB}/lib/libatb.so",
        "torch": "2.10.0+cpu",
        "torch_npu": "2.10.0.post4",
        "import torch_npu": "works: 3 x Ascend310P3",
    }
    assert found["ascend numa"].advice == "`--numa card` keeps threads near it"


@pytest.mark.parametrize("files", [{}, {name: text for name, text in FILES.items() if "0000:01" in name}])
def test_without_a_card_there_is_one_line(tmp_path, files):
    found = ascend_findings(build(tmp_path, files, environment={}))
    assert [(finding.name, finding.value, finding.advice) for finding in found] == [
        ("ascend card", "none (no /dev/davinci*): models run on the CPU", "")
    ]


def test_without_a_card_a_stray_torch_npu_is_told(tmp_path):
    files = {name: text for name, text in FILES.items() if name.startswith("/site")}
    found = named(ascend_findings(build(tmp_path, files, environment={})))
    assert list(found) == ["ascend card", "torch autoload"]
    assert "`export TORCH_DEVICE_BACKEND_AUTOLOAD=0`" in found["torch autoload"].advice
    for calm in ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, {"LD_LIBRARY_PATH": "/lib64"}):
        files["/lib64/libascendcl.so"] = ""
        assert len(ascend_findings(build(tmp_path, files, environment=calm))) == 1


GAPS = {
    "no driver": (
        without("/dev", "/usr/local/Ascend/driver"), {}, {"ascend card", "ascend driver"},
        ("ascend driver", "not installed", "driver and firmware"),
    ),
    "a device is missing": (
        without("/dev/hisi_hdc"), {}, {"ascend devices"}, ("ascend devices", "/dev/hisi_hdc", "--device /dev/hisi_hdc"),
    ),
    "an old chip": (
        {**FILES, f"{CARD}/device": "0xd100"}, {}, {"ascend chip", "CANN kernels"},
        ("ascend chip", "310: not supported", "knows 310p"),
    ),
    "CANN is not installed": (
        without(HOME), {"ASCEND_TOOLKIT_HOME": None, "LD_LIBRARY_PATH": f"{ATB}/lib"}, {"CANN", "torch autoload"},
        ("CANN", "not installed", "install the CANN toolkit 9.1"),
    ),
    "CANN is not set up": (
        FILES, {"ASCEND_TOOLKIT_HOME": None, "LD_LIBRARY_PATH": f"{ATB}/lib"}, {"CANN", "torch autoload"},
        ("CANN", "installed, but not set up", f"`source {HOME}/set_env.sh`"),
    ),
    "CANN of another user is not set up": (
        {**without(HOME), "/home/me/Ascend/ascend-toolkit/set_env.sh": ""},
        {"ASCEND_TOOLKIT_HOME": None, "LD_LIBRARY_PATH": f"{ATB}/lib"}, {"CANN", "torch autoload"},
        ("CANN", "installed, but not set up", "`source /home/me/Ascend/ascend-toolkit/set_env.sh`"),
    ),
    "CANN was removed": (
        without(HOME), {}, {"CANN", "torch autoload"}, ("CANN", f"`{HOME}` is not there", "install the CANN toolkit"),
    ),
    "CANN's libraries are not found": (
        FILES, {"LD_LIBRARY_PATH": f"{ATB}/lib"}, {"CANN", "torch autoload"},
        ("CANN", "no libascendcl.so", f"`source {HOME}/set_env.sh`"),
    ),
    "no kernels": (
        without(KERNELS), {}, {"CANN kernels"}, ("CANN kernels", "none in", "Ascend-cann-310p-ops"),
    ),
    "another chip's kernels": (
        {**without(KERNELS), f"{KERNELS}/ascend910b/add/add.json": "{}", f"{KERNELS}/ascend310p/ops_oam/x": ""}, {},
        {"CANN kernels"}, ("CANN kernels", "for ascend910b", "Ascend-cann-310p-ops"),
    ),
    "no NNAL": (
        without("/usr/local/Ascend/nnal"), {}, {"NNAL"}, ("NNAL", "not installed", "install Ascend-cann-nnal"),
    ),
    "NNAL is not set up": (
        FILES, {"LD_LIBRARY_PATH": f"{HOME}/lib64"}, {"NNAL"},
        ("NNAL", "no libatb.so", "`source /usr/local/Ascend/nnal/atb/set_env.sh`"),
    ),
    "no packages": (
        without("/site"), {}, {"torch", "torch_npu"}, ("torch_npu", "not installed", "torch_npu of the same version"),
    ),
    "a mismatched pair": (
        {**FILES, "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.13.0+cpu\n"}, {}, {"torch_npu"},
        ("torch_npu", "2.10.0.post4 does not fit torch 2.13.0+cpu", "torch==2.10.*"),
    ),
    "a pair that is too old": (
        {
            **FILES, "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.9.0\n",
            "/site/torch_npu-2.10.0.post4.dist-info/METADATA": "Name: torch_npu\nVersion: 2.9.0\n",
        }, {}, {"torch_npu"}, ("torch_npu", "2.9.0: too old", "2.10 to 2.13"),
    ),
    "torch for another accelerator, by its name": (
        {**FILES, "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.10.0+cu128\n"}, {}, {"torch"},
        ("torch", "2.10.0+cu128, built for another", "`pip install torch==2.10.0 --index-url"),
    ),
    "torch for another accelerator, by its file": (
        {**FILES, "/site/torch/version.py": "cuda: Optional[str] = '12.8'\n"}, {}, {"torch"},
        ("torch", "built for cuda", "https://download.pytorch.org/whl/cpu"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_a_gap_is_told_with_its_remedy(tmp_path, gap):
    files, changes, expected, (name, value, advice) = gap
    environment = {key: text for key, text in (ENVIRONMENT | changes).items() if text is not None}
    findings = ascend_findings(build(tmp_path, files, environment))
    found = named(findings)
    assert set(bad(findings)) == expected
    assert value in found[name].value
    assert advice in found[name].advice


def test_a_user_without_rights_is_told_the_group(tmp_path):
    findings = ascend_findings(build(tmp_path, FILES, closed={"davinci_manager", "davinci2"}))
    assert bad(findings) == ["ascend rights"]
    assert named(findings)["ascend rights"].value == "this user may not read and write /dev/davinci2, /dev/davinci_manager"
    assert "usermod -a -G HwHiAiUser" in named(findings)["ascend rights"].advice


def test_rights_are_those_of_the_file(tmp_path):
    device = tmp_path / "device"
    device.write_text("")
    assert AscendMachine().may_use(device)
    assert not AscendMachine().may_use(tmp_path / "nothing")


def test_a_board_has_other_devices_and_no_bus(tmp_path):
    files = {**without("/dev/devmm_svm", "/dev/hisi_hdc", PCI), "/dev/svm0": "", f"{KERNELS}/ascend310b/add/add.json": "{}"}
    findings = ascend_findings(build(tmp_path, files))
    found = named(findings)
    assert bad(findings) == []
    assert found["ascend chip"].value.startswith("unknown (no card on the PCI bus")
    assert found["CANN kernels"].value == "for ascend310b, ascend310p"
    assert found["CANN kernels"].good is None
    assert "ascend numa" not in found


def test_gaps_that_need_not_hurt_are_no_failures(tmp_path):
    files = without("/usr/local/Ascend/driver", INFO, "/usr/local/sbin") | {
        f"{CARD}/device": "0xd999",
        "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.14.0+cpu\n",
        "/site/torch_npu-2.10.0.post4.dist-info/METADATA": "Name: torch_npu\nVersion: 2.14.0\n",
    }
    findings = ascend_findings(build(tmp_path, files))
    unsure = {finding.name for finding in findings if finding.good is None and finding.advice}
    assert bad(findings) == []
    assert unsure == {"ascend chip", "ascend driver", "ascend numa", "npu-smi", "CANN", "torch_npu"}


def test_the_driver_may_lie_elsewhere(tmp_path):
    files = without("/usr/local/Ascend/driver") | {
        "/etc/ascend_install.info": "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/huawei/\n",
        "/opt/huawei/driver/version.info": "Version=24.1.rc3\n",
        "/opt/huawei/driver/lib64/libascend_hal.so": "",
    }
    driver = named(ascend_findings(build(tmp_path, files)))["ascend driver"]
    assert (driver.value, driver.good) == ("24.1.rc3", True)


def test_an_older_cann_is_no_failure_but_told(tmp_path):
    found = named(ascend_findings(build(tmp_path, {**FILES, INFO: "version=8.3.RC1\n"})))["CANN"]
    assert (found.value, found.good) == (f"8.3.RC1 in {HOME}", None)
    assert "CANN 9.1 or newer" in found.advice


FAILURES = {
    "ImportError: libhccl.so: cannot open shared object file: No such file": "set_env.sh",
    "ImportError: libascend_hal.so: cannot open shared object file: No such file": "install the driver",
    "RuntimeError: Two accelerators cannot be used at the same time ERR00007": "CPU build of torch",
    "no answer within 90 s": "mend what is marked above",
}


@pytest.mark.parametrize("line", FAILURES)
def test_an_import_that_fails_is_shown_with_a_remedy(tmp_path, line):
    findings = ascend_findings(build(tmp_path, FILES, result=Imported(False, line)))
    assert bad(findings) == ["import torch_npu"]
    assert named(findings)["import torch_npu"].value == line
    assert FAILURES[line] in named(findings)["import torch_npu"].advice


def test_an_import_that_sees_no_card(tmp_path):
    findings = ascend_findings(build(tmp_path, FILES, result=Imported(True)))
    assert bad(findings) == ["import torch_npu"]
    assert "ASCEND_RT_VISIBLE_DEVICES" in named(findings)["import torch_npu"].advice


@pytest.mark.parametrize("files", [without("/dev/davinci"), without("/site/torch-"), without("/site/torch_npu")])
def test_torch_npu_is_imported_only_where_all_of_it_is_there(tmp_path, files):
    def never(environment):
        raise AssertionError

    fake = build(tmp_path, files)
    findings = ascend_findings(AscendMachine(fake.root, fake.environment, fake.search, fake.may_use, never))
    assert "import torch_npu" not in named(findings)


def packages_for_import(tmp_path, torch_npu):
    (tmp_path / "torch.py").write_text("import os\nassert os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] == '0'\n")
    (tmp_path / "torch_npu.py").write_text(torch_npu)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


CARDS = """
import torch
class npu:
    device_count = lambda: 2
    get_device_name = lambda index: "Ascend310P3"
torch.npu = npu
"""
IMPORTS = {
    "it works": (CARDS, Imported(True, cards=2, chip="Ascend310P3")),
    "it works and talks": (CARDS + "import atexit; atexit.register(print, 'bye')", Imported(True, cards=2, chip="Ascend310P3")),
    "no cards": (CARDS.replace("lambda: 2", "lambda: 0"), Imported(True)),
    "it fails": ("raise ImportError('libhccl.so: \\x1b[31m')", Imported(False, "ImportError: libhccl.so:  [31m")),
    "it fails and talks": (
        "import atexit; atexit.register(print, 'bye')\nraise RuntimeError('no')", Imported(False, "RuntimeError: no"),
    ),
    "it crashes": ("import os; os.kill(os.getpid(), 9)", Imported(False, "the process ended with -9")),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPORTS.values(), ids=IMPORTS)
def test_the_import_happens_elsewhere(tmp_path, case):
    torch_npu, expected = case
    assert import_torch_npu(packages_for_import(tmp_path, torch_npu)) == expected


def test_an_import_that_hangs_is_ended(tmp_path):
    environment = packages_for_import(tmp_path, "import time; time.sleep(60)")
    assert import_torch_npu(environment, seconds=0.2) == Imported(False, "no answer within 0 s")


def test_a_process_that_cannot_start_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert import_torch_npu({}).line.startswith("[Errno 2]")


def test_the_folder_that_one_stands_in_is_not_imported_from(tmp_path, monkeypatch):
    for name in ("here", "meant"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "torch.py").write_text(f"raise ImportError('{name}')")
    monkeypatch.chdir(tmp_path / "here")
    assert import_torch_npu({**os.environ, "PYTHONPATH": str(tmp_path / "meant")}).line == "ImportError: meant"


def test_json_has_the_same_facts(tmp_path, monkeypatch, capsys):
    fake = build(tmp_path, without(HOME), closed={"hisi_hdc"})
    monkeypatch.setattr(machine, "AscendMachine", lambda: fake)
    assert run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run(["doctor"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for finding in ascend_findings(fake):
        assert told[finding.name] == {"value": finding.value, "good": finding.good, "advice": finding.advice}
        mark = {True: "+", False: "!", None: "-"}[finding.good]
        assert [mark, *finding.name.split(), *finding.value.split()] in lines
        assert not finding.advice or ["->", *finding.advice.split()] in lines


TEXT_FILES = [*sorted(name for name, text in FILES.items() if text), "/etc/ascend_install.info", "/site/torch_npu/version.py"]
NONSENSE = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"Version=", b"version=\x1b[2J", b"Version: \xff\xfe\n\n", b"0xd500", b"-1", b"9" * 5000, b"cuda='"]),
    st.builds(lambda key, text: key + text, st.sampled_from([b"Version=", b"version=", b"Version: "]), st.binary(max_size=30)),
    st.just(b"Driver_Install_Path_Param=\x00/../.."),
    st.none(),
)
WORDS = st.one_of(st.none(), st.text(max_size=30), st.sampled_from(["/" + "x" * 300, "\0", ":", "//", "..", "/dev", "nowhere"]))


@given(
    st.dictionaries(st.sampled_from(TEXT_FILES), NONSENSE),
    st.dictionaries(st.sampled_from([*ENVIRONMENT, "ASCEND_OPP_PATH", "ATB_HOME_PATH"]), WORDS),
)
def test_no_content_breaks_it(tmp_path_factory, broken, words):
    files = {name: text for name, text in (FILES | broken).items() if text is not None}
    environment = {key: text for key, text in (ENVIRONMENT | words).items() if text is not None}
    findings = ascend_findings(build(tmp_path_factory.mktemp("machine"), files, environment))
    named(findings)
    json.dumps([finding.as_dict() for finding in findings])


@given(st.none() | st.integers(-64, 255), st.text())
def test_no_output_breaks_it(code, text):
    found = imported(code, text, 1.0)
    assert found.works or (found.line and found.line.isprintable())


PLACES = [VERSION_INFO, INFO, f"{CARD}/vendor", "/dev/davinci0", f"{KERNELS}/ascend310p", "/sys", "/dev"]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a circle of links"])
def test_nothing_but_a_file_is_read(tmp_path, name, kind):
    files = {file: text for file, text in FILES.items() if file != name and not file.startswith(f"{name}/")}
    fake = build(tmp_path, files)
    place = tmp_path / name.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    {"a folder": place.mkdir, "a pipe": lambda: os.mkfifo(place), "a circle of links": lambda: place.symlink_to(place)}[kind]()
    named(ascend_findings(fake))


@pytest.mark.parametrize("line", ["\n", " ", "cuda=\n", "Version\n", "0"])
def test_long_files_are_read_to_a_limit(tmp_path, line):
    long = "x" + line * (1 << 20) + "x"
    names = [VERSION_INFO, INFO, "/site/torch/version.py", "/etc/ascend_install.info", f"{CARD}/numa_node"]
    named(ascend_findings(build(tmp_path, FILES | dict.fromkeys(names, long))))
