"""Commands of a user with an Ascend card: the real torch_npu on stand-ins for Ascend's libraries, and what may be missing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from standins import Card

pytestmark = pytest.mark.torch_npu
PROMPT = ("run", "builtin", "What is the KV cache?", "-n", "24", "--temperature", "0", "--threads", "1")


@pytest.fixture
def command(card: Card, tmp_path):
    """``command(*arguments, **settings)``: exit code, standard output and the lines of standard error."""

    def run(*arguments: str, device: str = "ascend", **settings: Any) -> tuple[int, str, list[str]]:
        kernels = "edge_llm.ascend.npu.emulated_ops"
        environment = card.environment(**{"kernels": kernels, "EDGE_LLM_HOME": str(tmp_path), **settings})
        given = [sys.executable, "-m", "edge_llm", *arguments, "--device", device]
        done = subprocess.run(given, capture_output=True, text=True, env=environment, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr.splitlines()

    return run


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("placement", ["split", "card"])
def test_the_builtin_model_answers_as_on_the_host(command, placement):
    code, said, errors = command(*PROMPT, "--placement", placement)
    assert code == 0, errors
    assert said == command(*PROMPT, device="host")[1]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"devices": 0}, "torch_npu sees no card"),
        ({"cann": None}, "torch_npu cannot be imported: ImportError: lib"),
        ({"soc": "Ascend310B4"}, "no INT8 products for an Ascend310B4"),
        ({"soc": "Ascend950PR"}, "the chip `Ascend950PR` is unknown"),
        ({"ACL_OP_INIT_MODE": "2"}, "no weight can be loaded; `unset ACL_OP_INIT_MODE`"),
    ],
    ids=["no card", "no CANN", "310B", "unknown chip", "old operators forbidden"],
)
def test_what_is_missing_is_said_in_one_line(command, settings, words):
    code, said, errors = command(*PROMPT, **settings)
    assert (code, said) == (1, "") and len(errors) == 1
    assert errors[0].startswith("error: ") and words in errors[0]


@pytest.mark.thorough
def test_without_nnal_a_model_is_split_and_the_reason_is_said(command):
    code, said, errors = command(*PROMPT, "--json", nnal=False)
    assert code == 0, errors
    site = json.loads(said)
    assert site["placement"].startswith("split") and "NNAL is missing" in site["placement_reason"]
    code, _, errors = command(*PROMPT, "--placement", "card", nnal=False)
    assert code == 2 and len(errors) == 1 and "NNAL is missing" in errors[0]


@pytest.mark.thorough
@pytest.mark.parametrize(("version", "placement"), [("9.0.0", "split"), ("9.1.0", "card")])
def test_attention_is_left_to_the_cpu_where_nnal_is_too_old_for_it(card, command, tmp_path, version, placement):
    library = tmp_path / "atb" / "latest" / "atb" / "cxx_abi_1" / "lib" / "libatb.so"
    library.parent.mkdir(parents=True)
    library.symlink_to(card.nnal / "libatb.so")
    (tmp_path / "atb" / "latest" / "version.info").write_text(f"    Ascend-cann-atb : {version}\n")
    paths = {"LD_LIBRARY_PATH": f"{card.libraries}:{library.parent}"}
    code, said, errors = command(*PROMPT, "--json", **paths)
    assert code == 0, errors
    assert json.loads(said)["placement"].startswith(placement)
    assert ("NNAL 9.0.0 is too old" in said) is (version == "9.0.0")
    if placement == "split":
        code, _, errors = command(*PROMPT, "--placement", "card", **paths)
        assert code == 2 and len(errors) == 1 and "NNAL 9.0.0 is too old for attention" in errors[0]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("given", [("plan", "builtin"), (*PROMPT, "--json")], ids=["plan", "run"])
def test_why_no_steps_are_recorded_is_said(command, given):
    code, said, errors = command(*given, TASK_QUEUE_ENABLE="2")
    assert code == 0, errors
    assert "its steps are not recorded: TASK_QUEUE_ENABLE is in the way, `export TASK_QUEUE_ENABLE=1`" in said


@pytest.mark.thorough
def test_an_operator_that_fails_ends_the_command_with_one_line(command):
    code, _, errors = command(*PROMPT, fail="aclrtMemcpyAsync@70=507899")
    assert code == 1 and errors[-1].startswith("error: the device `ascend` failed: ") and "--device host" in errors[-1]
    assert not any("Traceback" in line for line in errors)
