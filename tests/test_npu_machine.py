"""What doctor says on machines with an Ascend card: whole ones, broken ones, and ones with nonsense in every file.

Each machine is a folder with the files that such a machine has; none of them was seen by us.
"""

import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.ascend.npu.findings import ascend_findings
from edge_llm.ascend.npu.machine import AscendMachine
from edge_llm.ascend.npu.packages import Imported, import_torch_npu, imported
from edge_llm.ascend.npu.pci import is_own_host
from edge_llm.ascend.npu.settings import COMPILER_PACKAGES
from edge_llm.ascend.npu.toolkit import attention_refusal
from edge_llm.ascend.npu.versions import older
from edge_llm.cli.main import run
from edge_llm.opening import examine

HOME = "/usr/local/Ascend/cann"
NNAL = "/usr/local/Ascend/nnal/atb/latest"
ATB = f"{NNAL}/atb/cxx_abi_1"
NNAL_INFO = f"{NNAL}/version.info"
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
    VERSION_INFO: "Version=25.5.1\nascendhal_version=7.35.23\n",
    "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
    "/usr/local/sbin/npu-smi": "",
    f"{HOME}/set_env.sh": "",
    f"{HOME}/lib64/libascendcl.so": "",
    INFO: "package_name=Ascend-cann-toolkit\nversion=9.1.0\n",
    f"{KERNELS}/ascend310p/add/add.json": "{}",
    f"{KERNELS}/config/ascend310p/add.json": "{}",
    f"{ATB}/lib/libatb.so": "",
    NNAL_INFO: "    Ascend-cann-atb : 9.1.0\n    Ascend-cann-atb Version : 9.1.0.B030\n    Platform : aarch64\n",
    "/usr/local/Ascend/nnal/atb/set_env.sh": "",
    "/site/torch-2.10.0+cpu.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+cpu\n",
    "/site/torch/version.py": "__version__ = '2.10.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
    "/site/torch_npu-2.10.0.post4.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.10.0.post4\n",
    **{f"/site/{name.replace('-', '_')}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n" for name in COMPILER_PACKAGES},
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
        "ascend driver": "25.5.1",
        "npu-smi": "/usr/local/sbin/npu-smi",
        "ascend rights": "this user may use /dev/davinci0, /dev/davinci2, /dev/davinci10, /dev/davinci_manager, "
        "/dev/devmm_svm, /dev/hisi_hdc",
        "CANN": f"9.1.0 in {HOME}",
        "CANN kernels": "for ascend310p",
        "CANN compiler": "has its Python packages",
        "NNAL": f"9.1.0 ({ATB}/lib/libatb.so)",
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
        without("/site"), {}, {"torch", "torch_npu", "CANN compiler"},
        ("torch_npu", "not installed", "torch_npu of the same version"),
    ),
    "a mismatched pair": (
        {**FILES, "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.13.0+cpu\n"}, {}, {"torch_npu"},
        ("torch_npu", "2.10.0.post4 does not fit torch 2.13.0+cpu", "torch==2.10.*"),
    ),
    "a pair that is too old": (
        {
            **FILES, "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.9.0\n",
            "/site/torch_npu-2.10.0.post4.dist-info/METADATA": "Name: torch_npu\nVersion: 2.9.0\n",
        }, {}, {"torch_npu"}, ("torch_npu", "2.9.0: too old", "2.10 to 2.14"),
    ),
    "torch for another accelerator, by its name": (
        {**FILES, "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.10.0+cu128\n"}, {}, {"torch"},
        ("torch", "2.10.0+cu128, built for another", "`pip install torch==2.10.0 --index-url"),
    ),
    "torch for another accelerator, by its file": (
        {**FILES, "/site/torch/version.py": "cuda: Optional[str] = '12.8'\n"}, {}, {"torch"},
        ("torch", "built for cuda", "https://download.pytorch.org/whl/cpu"),
    ),
    "work that is queued in two stages": (
        FILES, {"TASK_QUEUE_ENABLE": "2"}, {"TASK_QUEUE_ENABLE"},
        ("TASK_QUEUE_ENABLE", "refused by captured graphs", "`export TASK_QUEUE_ENABLE=1`"),
    ),
    "pinned memory in segments": (
        FILES, {"PYTORCH_NPU_ALLOC_CONF": "pin_memory_expandable_segments:True"}, {"PYTORCH_NPU_ALLOC_CONF"},
        ("PYTORCH_NPU_ALLOC_CONF", "refused by captured graphs", "`unset PYTORCH_NPU_ALLOC_CONF`"),
    ),
    "pinned memory in segments among others": (
        FILES, {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:50, pin_memory_expandable_segments : True"},
        {"PYTORCH_NPU_ALLOC_CONF"},
        ("PYTORCH_NPU_ALLOC_CONF", "refused by captured graphs", "`export PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:50`"),
    ),
    "launches that are waited for": (
        FILES, {"ASCEND_LAUNCH_BLOCKING": "1"}, {"ASCEND_LAUNCH_BLOCKING"},
        ("ASCEND_LAUNCH_BLOCKING", "refused by captured graphs", "`unset ASCEND_LAUNCH_BLOCKING`"),
    ),
    "old operators forbidden": (
        FILES, {"ACL_OP_INIT_MODE": "2"}, {"ACL_OP_INIT_MODE"},
        ("ACL_OP_INIT_MODE", "no weight can be loaded", "`unset ACL_OP_INIT_MODE`"),
    ),
    "a compiler without its packages": (
        without("/site/scipy", "/site/absl", "/site/decorator"), {}, {"CANN compiler"},
        ("CANN compiler", "lacks Python packages: decorator, scipy, absl-py", "`pip install decorator scipy absl-py`"),
    ),
    "an old NNAL": (
        {**FILES, NNAL_INFO: "  Ascend-cann-atb : 9.0.0\n"}, {}, {"NNAL"},
        ("NNAL", "9.0.0", "install Ascend-cann-nnal 9.1.0 or newer"),
    ),
    "an NNAL before its release": (
        {**FILES, NNAL_INFO: "Ascend-cann-atb : 9.1.0-beta.2\n"}, {}, {"NNAL"},
        ("NNAL", "older than 9.1.0", "install Ascend-cann-nnal 9.1.0 or newer"),
    ),
    "an old driver": (
        {**FILES, VERSION_INFO: "Version=25.2.0\n"}, {}, {"ascend driver"},
        ("ascend driver", "25.2.0: older than 25.5.1", "install Ascend HDK 25.5.1 or newer"),
    ),
    "an old CANN": (
        {**FILES, INFO: "version=8.3.RC1\n"}, {}, {"CANN"},
        ("CANN", f"8.3.RC1 in {HOME}: older than 9.1.0", "install the CANN toolkit 9.1.0 or newer"),
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


@pytest.mark.parametrize(
    "environment",
    [
        {"TASK_QUEUE_ENABLE": "1", "ASCEND_LAUNCH_BLOCKING": "0", "ACL_OP_INIT_MODE": "1"},
        {"TASK_QUEUE_ENABLE": "", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,pin_memory_expandable_segments:False"},
    ],
)
def test_settings_that_do_no_harm_are_not_told(tmp_path, environment):
    findings = ascend_findings(build(tmp_path, FILES, ENVIRONMENT | environment))
    assert named(findings).keys() & {"ASCEND_LAUNCH_BLOCKING", *environment} == set()


def test_a_910b_needs_neither_the_compilers_packages_nor_the_newest_nnal(tmp_path):
    files = {
        **without("/site/scipy"), f"{CARD}/device": "0xd802", f"{KERNELS}/ascend910b/add/add.json": "{}",
        NNAL_INFO: "Ascend-cann-atb : 8.5.0\n",
    }  # fmt: skip
    findings = ascend_findings(build(tmp_path, files))
    assert bad(findings) == []
    assert {named(findings)[name].good for name in ("CANN compiler", "NNAL")} == {None}


def test_an_nnal_that_does_not_say_its_version_is_taken(tmp_path):
    fake = build(tmp_path, without(NNAL_INFO))
    assert named(ascend_findings(fake))["NNAL"].value.startswith("of unknown version")
    assert attention_refusal(fake) == ""


def test_attention_is_refused_with_an_nnal_that_is_too_old(tmp_path):
    fake = build(tmp_path, {**FILES, NNAL_INFO: "Ascend-cann-atb : 8.5.0\n"})
    assert attention_refusal(fake) == "NNAL 8.5.0 is too old for attention on a 310P: install Ascend-cann-nnal 9.1.0 or newer"
    assert attention_refusal(build(tmp_path / "other", FILES)) == ""


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("9.1.0", False), ("9.1", False), ("9.1.0.B030", False), ("9.1.0.post1", False), ("9.2.RC1", False), ("10.0", False),
        ("9.1.RC1", True), ("9.1.0-beta.2", True), ("9.1.0.alpha003", True), ("9.1.T5", True), ("9.0.9", True),
        ("8.0.T63", True), ("24.1.rc3", False), ("", None), ("newest", None),
    ],
)  # fmt: skip
def test_what_comes_before_a_release_is_older(version, expected):
    assert older(version, (9, 1, 0)) is expected


@pytest.mark.parametrize("mark", ["/.dockerenv", "/run/.containerenv", "KUBERNETES_SERVICE_HOST"])
def test_a_container_is_told_what_it_was_not_given(tmp_path, mark):
    files, environment = {**FILES, mark: ""} if mark.startswith("/") else FILES, {**ENVIRONMENT, mark: "10.0.0.1"}
    found = named(ascend_findings(build(tmp_path, files, environment)))["ascend container"]
    assert found.value.startswith("without /usr/local/dcmi, /etc/ascend_install.info")
    assert "`-v /usr/local/dcmi:/usr/local/dcmi -v /etc/ascend_install.info:/etc/ascend_install.info`" in found.advice
    given = {**files, "/usr/local/dcmi/libdcmi.so": "", "/etc/ascend_install.info": "UserName=HwHiAiUser\n"}
    assert named(ascend_findings(build(tmp_path / "given", given, environment)))["ascend container"].good


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


BOARDS = {
    "310B": ("/dev/svm0",),
    "310P": ("/dev/ascend_manager", "/dev/user_config"),
}


@pytest.mark.parametrize("chip", BOARDS)
def test_a_board_has_other_devices_and_no_bus(tmp_path, chip):
    files = {**without("/dev/devmm_svm", "/dev/hisi_hdc", PCI), **dict.fromkeys(BOARDS[chip], "")}
    files |= {f"{KERNELS}/ascend310b/add/add.json": "{}"}
    fake = build(tmp_path, files)
    findings = ascend_findings(fake)
    found = named(findings)
    assert is_own_host(fake.root)
    assert bad(findings) == []
    assert found["ascend chip"].value == "unknown (of a board, on no bus)"
    assert "own host" in found["ascend board"].value
    assert found["ascend rights"].value.endswith(", ".join(("/dev/davinci_manager", *BOARDS[chip])))
    assert found["CANN kernels"].value == "for ascend310b, ascend310p"
    assert found["CANN kernels"].good is None
    assert "ascend numa" not in found


def test_a_board_is_one_by_its_devices_and_its_bus(tmp_path):
    board = dict.fromkeys((*BOARDS["310P"], "/dev/davinci0"), "")
    assert is_own_host(build(tmp_path / "board", board).root)
    assert not is_own_host(build(tmp_path / "a card", {**FILES, **board}).root)
    assert not is_own_host(build(tmp_path / "no driver", dict.fromkeys(BOARDS["310P"], "")).root)
    few = dict.fromkeys(("/dev/davinci0", "/dev/davinci_manager"), "")
    assert is_own_host(build(tmp_path / "a board's container with few devices", few).root)
    closed = build(tmp_path / "a closed container", without(PCI))
    assert not is_own_host(closed.root)
    assert named(ascend_findings(closed))["ascend chip"].value.startswith("unknown (no card on the PCI bus")


def test_a_container_of_a_board_is_given_other_files(tmp_path):
    files = {**without(PCI), **dict.fromkeys(BOARDS["310P"], ""), "/.dockerenv": "", "/etc/slog.conf": ""}
    found = named(ascend_findings(build(tmp_path, files)))["ascend container"]
    assert "-v /etc/hdcBasic.cfg:/etc/hdcBasic.cfg" in found.advice
    assert "slog.conf" not in found.value + found.advice and "dcmi" not in found.value


def test_gaps_that_need_not_hurt_are_no_failures(tmp_path):
    files = without("/usr/local/Ascend/driver", INFO, "/usr/local/sbin") | {
        f"{CARD}/device": "0xd999",
        "/site/torch-2.10.0+cpu.dist-info/METADATA": "Name: torch\nVersion: 2.15.0+cpu\n",
        "/site/torch_npu-2.10.0.post4.dist-info/METADATA": "Name: torch_npu\nVersion: 2.15.0\n",
    }
    findings = ascend_findings(build(tmp_path, files))
    unsure = {finding.name for finding in findings if finding.good is None and finding.advice}
    assert bad(findings) == []
    assert unsure == {"ascend chip", "ascend driver", "ascend numa", "npu-smi", "CANN", "torch_npu"}


def test_the_driver_may_lie_elsewhere(tmp_path):
    files = without("/usr/local/Ascend/driver") | {
        "/etc/ascend_install.info": "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/huawei/\n",
        "/opt/huawei/driver/version.info": "Version=26.0.rc1\n",
        "/opt/huawei/driver/lib64/libascend_hal.so": "",
    }
    driver = named(ascend_findings(build(tmp_path, files)))["ascend driver"]
    assert (driver.value, driver.good) == ("26.0.rc1", True)


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
    monkeypatch.setattr(examine, "AscendMachine", lambda: fake)
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
    st.sampled_from([b"Ascend-cann-atb : \xff", b"Ascend-cann-atb : 9", b"Ascend-cann-atb:9.1.RC1\x1b"]),
    st.builds(lambda key, text: key + text, st.sampled_from([b"Version=", b"version=", b"Version: "]), st.binary(max_size=30)),
    st.just(b"Driver_Install_Path_Param=\x00/../.."),
    st.none(),
)
PATHS = ["/" + "x" * 300, "\0", ":", "//", "..", "/dev", "nowhere"]
WORDS = st.one_of(
    st.none(), st.text(max_size=30), st.sampled_from([*PATHS, "2", "pin_memory_expandable_segments:True,\n"])
)


SETTINGS = ["TASK_QUEUE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_LAUNCH_BLOCKING", "ACL_OP_INIT_MODE"]


@given(
    st.dictionaries(st.sampled_from(TEXT_FILES), NONSENSE),
    st.dictionaries(st.sampled_from([*ENVIRONMENT, "ASCEND_OPP_PATH", "ATB_HOME_PATH", *SETTINGS]), WORDS),
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


PLACES = [VERSION_INFO, INFO, NNAL_INFO, f"{CARD}/vendor", "/dev/davinci0", f"{KERNELS}/ascend310p", "/sys", "/dev"]


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
    names = [VERSION_INFO, INFO, NNAL_INFO, "/site/torch/version.py", "/etc/ascend_install.info", f"{CARD}/numa_node"]
    named(ascend_findings(build(tmp_path, FILES | dict.fromkeys(names, long))))
