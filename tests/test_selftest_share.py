"""The report of a self-test that can be posted: nothing in it names a person, a machine or a place."""

import json
import os
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.ascend.selftest.runs import SelfTest
from edge_llm.ascend.selftest.share import names_here, shareable, write_share
from edge_llm.cli.main import run
from edge_llm.errors import StorageError

pytestmark = pytest.mark.thorough(file=8)

MACHINE = {
    "system": "Linux 5.10.0-60.18.0.aarch64, glibc 2.34",
    "processor": "Kunpeng-920",
    "ascend card": "davinci0 (PCI 0000:83:00.0)",
    "ascend driver": "25.5.1",
    "ascend rights": "this user may use /dev/davinci0, /dev/davinci_manager, /dev/hisi_hdc",
    "CANN": "9.1.0 in /usr/local/Ascend/cann",
    "NNAL": "9.1.0 (/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib/libatb.so)",
    "models": "/home/me/.local/share/edge-llm/models, 12.0 GiB free",
}
ERROR = (
    "operator():../torch_npu/csrc/framework/OpParamMaker.cpp:348 OPS function error: Sub, error code is 500001\n"
    "[ERROR] 2026-11-27-04:08:39 (PID:23407, Device:0, RankID:-1) ERR01100 OPS call acl api failed\n"
    "EZ9999: 0x7020023, libatb.so of /opt/x/lib/libatb.so"
)


def report(**texts):
    """A report in which ``texts`` stand where the software of a card writes what it likes."""
    machine = {name: {"value": value, "good": True, "advice": "none"} for name, value in (MACHINE | texts).items()}
    software = {"ok": True, "needed": True, "torch": "2.13.0+cpu", "properties": {"name": "Ascend310P3", **texts}}
    failed = {"ok": False, "needed": True, "error": texts.get("error", ERROR), "log": "a log", "cases": {"one": dict(texts)}}
    launch = {"ok": True, "needed": True, "seconds": 15.1e-6, "took_seconds": 0.25}
    more = {"ok": True, "needed": False, "otherwise": [*texts.values()]}
    probes = {"software": software, "launch": launch, "quantize": failed, "more": more}
    chip = {"name": "310p", "soc": "Ascend310P3", "emulated": False}
    about = {"version": "0.1.0", "when": "2027-01-02T03:04:05Z", "versions": {"torch": "2.13.0+cpu", **texts}}
    return {**about, "machine": machine, "chip": chip, "probes": probes}


def posted(names=(), **texts):
    return json.dumps(shareable(report(**texts), names), ensure_ascii=False)


# ---- what stays


def test_what_a_report_is_for_stays():
    found = shareable(report(), {"ascend", "me"})
    assert found["day"] == "2027-01-02" and found["version"] == "0.1.0"
    assert found["chip"] == {"name": "310p", "soc": "Ascend310P3", "emulated": False}
    assert found["versions"] == {"torch": "2.13.0+cpu"}
    assert found["probes"]["launch"] == {"ok": True, "needed": True, "seconds": 15.1e-6, "took_seconds": 0.25}
    told = {name: finding["value"] for name, finding in found["machine"].items()}
    assert told["system"] == MACHINE["system"] and told["processor"] == "Kunpeng-920"
    assert told["ascend rights"] == MACHINE["ascend rights"]
    assert told["CANN"] == "9.1.0 in PATH" and told["NNAL"] == "9.1.0 PATH libatb.so"
    error = found["probes"]["quantize"]["error"]
    for word in ("OpParamMaker.cpp", "500001", "ERR01100", "EZ9999", "0x7020023", "libatb.so"):
        assert word in error


def test_findings_that_are_places_and_what_libraries_print_are_left_out():
    found = shareable(report(), ())
    assert "models" not in found["machine"] and "log" not in found["probes"]["quantize"]
    assert "PCI NUMBER" in found["machine"]["ascend card"]["value"]


@pytest.mark.parametrize("text", ["65504.0", "-127.5", "inf", "nan", "x86_64", "npu_quant_matmul", "12.5 GB/s", "910B1"])
def test_figures_and_words_of_the_trade_stay(text):
    assert shareable(report(what=text), ())["versions"]["what"] == text


# ---- what goes

LETTERS = st.text(string.ascii_letters, min_size=5, max_size=12).map(lambda text: f"zq{text}")
HAN = st.text("\u5f20\u4e09\u674e\u56db\u738b", min_size=2, max_size=4)
NAMES = LETTERS | HAN
COMPONENTS = st.text(string.ascii_letters + string.digits + "-_.", min_size=4, max_size=12).map(lambda text: f"zq{text}")
SERIALS = st.one_of(
    st.text(string.digits, min_size=9, max_size=20),
    st.text("0123456789abcdef", min_size=32, max_size=40),
    st.from_regex(r"\A[0-9]{4}[A-Z]{3}[0-9]{5}[A-Z]\Z"),
    st.uuids().map(lambda one: one.hex),
)
SENTENCES = (
    "{}: cannot be opened", "error of {}, ask again", "({})", "user={}", "[{}] EZ9999: inner error", "`{}` is not there", "{}",
    "the device on {} failed: error code is 507899", "owned by {}'s group", '"{}"',
)  # fmt: skip
PLACES = ("error", "ascend card", "name", "CANN", "what")


@given(st.sampled_from(PLACES), st.sampled_from(SENTENCES), NAMES)
def test_no_name_of_the_machine_or_its_user_is_in_it(place, sentence, name):
    for written in (name, name.upper(), f"{name}.example.org", f"root@{name}"):
        assert name.lower() not in posted({name}, **{place: sentence.format(written)}).lower()


@given(st.sampled_from(PLACES), st.sampled_from(SENTENCES), st.lists(COMPONENTS, min_size=1, max_size=4), st.booleans())
def test_no_path_is_in_it_though_nobody_knows_its_folders(place, sentence, parts, windows):
    path = "C:\\" + "\\".join(parts) if windows else "/" + "/".join(parts)
    text = posted((), **{place: sentence.format(path)})
    assert not [part for part in parts if part in text]


@given(st.sampled_from(PLACES), st.sampled_from(["`{}`", "'{}'", '"{}"']), st.lists(COMPONENTS, min_size=2, max_size=4))
def test_no_path_with_spaces_is_in_it(place, quotes, parts):
    text = posted((), **{place: f"No such file: {quotes.format('/' + ' a/'.join(parts))}"})
    assert not [part for part in parts if part in text]


@given(st.sampled_from(PLACES), st.sampled_from(SENTENCES), st.lists(COMPONENTS, min_size=2, max_size=4), st.sampled_from("/~"))
def test_no_folder_with_spaces_in_its_name_is_in_it(place, sentence, parts, root):
    path = f"{root}/mnt/{' '.join(parts)}/weights.bin"
    text = posted((), **{place: sentence.format(path)})
    assert not [part for part in parts if part in text]


@given(HAN, st.sampled_from(["\u4e3b\u673a{}\u5931\u8d25", "{}\u7684\u6587\u4ef6", "{}"]))
def test_no_name_is_in_a_text_that_has_no_spaces(name, sentence):
    """Whose names they are says `names_here`."""
    text = sentence.format(name)
    assert name not in posted(names_here({"USER": name}), what=text, error=text)


def test_a_name_is_hidden_however_its_accents_are_written():
    for name, written in (("jos\u00e9", "jose\u0301"), ("jose\u0301", "jos\u00e9")):
        assert shareable(report(what=f"{written} may not"), {name})["versions"]["what"] == "NAME may not"


def test_what_is_between_a_path_and_a_rate_stays():
    text = shareable(report(what="/opt/x copies at 12.5 GB/s"), ())["versions"]["what"]
    assert text == "PATH copies at 12.5 GB/s"


@given(st.sampled_from(PLACES), st.sampled_from(SENTENCES), SERIALS)
def test_no_serial_number_is_in_it(place, sentence, serial):
    assert serial not in posted((), **{place: sentence.format(serial)})


@given(st.sampled_from(PLACES), st.ip_addresses() | st.just("00:1b:44:11:3a:b7") | st.just("0000:83:00.0"))
def test_no_address_is_in_it(place, address):
    text = posted((), **{place: f"no answer of {address}, port 80"})
    assert str(address) not in text or str(address) == "::"


@given(st.text(), st.sets(st.text(max_size=5)))
def test_any_text_is_taken(text, names):
    json.loads(posted(names, what=text, error=text))


# ---- whose names


def test_the_names_are_those_of_the_machine_its_user_and_its_folders(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "npu-7.lab.example")
    monkeypatch.setattr("getpass.getuser", lambda: "zhang")
    environment = {"HOME": "/home/zhang san", "EDGE_LLM_HOME": "/mnt/private/models", "PWD": "/home/zhang san/secret"}
    names = names_here({**environment, "USER": "z3"})
    assert {"npu-7.lab.example", "npu-7", "zhang", "zhang san", "san", "private", "secret"} <= names
    assert not names & {"home", "mnt", "z3", "/"}
    assert posted(names, what="zhang san and Zhang on npu-7.lab.example: secret").count("NAME") >= 5


def test_a_user_without_a_name_is_no_trouble(monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert names_here({}) is not None


# ---- the command


@pytest.fixture
def tried(monkeypatch):
    """Stands in for the probes: what they found is known."""
    texts = {"error": f"{os.environ['HOME']}/secret-folder: no such file on {os.uname().nodename}"}
    monkeypatch.setattr(SelfTest, "_run", lambda self, told: {key: report(**texts)[key] for key in ("chip", "probes")})


@pytest.mark.usefixtures("tried")
def test_a_report_is_written_that_can_be_posted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "card.json").write_text("an earlier one")
    assert run(["doctor", "--selftest", "--share", "card.json"]) == 0
    out, err = capsys.readouterr()
    assert "what models rely on fails: quantize" in out
    assert "the report to post is in card.json" in err
    text = (tmp_path / "card.json").read_text()
    found = json.loads(text)
    assert list(found) == ["version", "day", "machine", "versions", "chip", "probes"]
    assert found["machine"]["processor"]["value"]
    for private in (os.environ["HOME"], "secret-folder", str(tmp_path), *names_here()):
        assert not re.search(rf"(?<![^\W_]){re.escape(private)}(?![^\W_])", text.partition('"machine"')[2], re.IGNORECASE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--share", "card.json"], "give --selftest too"),
        (["--selftest", "--share", "nowhere/card.json"], "there is no folder `nowhere` to write it to"),
        (["--selftest", "--share", "."], "is a directory"),
        (["--selftest", "--share", "-"], "`-` stands for no file here"),
    ],
)
def test_a_file_that_cannot_be_is_told_before_anything_is_tried(tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SelfTest, "run", None)
    assert run(["doctor", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    with pytest.raises(StorageError, match="cannot write the report to"):
        write_share(report(), tmp_path / "gone" / "card.json")
