"""A name is enough: run, chat and serve with a model that is not here, from a stub of the hub on loopback to the answer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_terminal import Terminal
from stub_hub import COMMIT, Stub, environment, hub_of, serving

from edge_llm.formats.bundle import read_manifest
from edge_llm.paths import models_folder

pytestmark = pytest.mark.thorough(file=2)

EDGE_LLM = [sys.executable, "-m", "edge_llm"]
QWEN3 = "Qwen/Qwen3-0.6B"
LARGE = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 8}
CUT = "[cut short after 4 tokens; --max-tokens allows more]"
NOBODY = "http://127.0.0.1:9"
"""Where no hub is."""


@pytest.fixture
def hub(tiny_model):
    """A hub that has a tiny model under the name of a real one."""
    with serving(hub_of(tiny_model("qwen3"), QWEN3)) as stub:
        yield stub


def around(home, endpoint, **more):
    return environment(home, endpoint, EDGE_LLM_HOME=os.environ["EDGE_LLM_HOME"], **more) | {"HF_HUB_OFFLINE": "0"} | more


def on_terminal(home, endpoint):
    """What differs in the environment of `real_terminal.Terminal`."""
    whole = around(home, endpoint)
    return {name: value for name, value in whole.items() if name.startswith("HF_") or "proxy" in name.lower()}


def edge_llm(home, endpoint, *arguments, stdin="", **more):
    """Exit code, stdout and the lines of stderr, on no terminal."""
    done = subprocess.run(
        [*EDGE_LLM, *arguments], env=around(home, endpoint, **more), input=stdin, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr.splitlines()


def at(lines, *beginnings):
    """Where in ``lines`` the first line is that begins with each of ``beginnings``; they come in this order."""
    found = [next((at for at, line in enumerate(lines) if line.startswith(begin)), None) for begin in beginnings]
    assert None not in found and found == sorted(found), (beginnings, lines)
    return found


def names():
    return sorted(path.name for path in models_folder().iterdir() if path.name[0] != ".") if models_folder().is_dir() else []


def test_a_strangers_path_from_a_name_to_an_answer(hub, tmp_path):
    code, out, err = edge_llm(tmp_path, hub.endpoint, "run", "qwen3", "hello", "--yes", "-n", "4")
    assert code == 0 and out.strip(), err
    size = len(hub.files["model.safetensors"])
    offer = f"qwen3 is {QWEN3}, {size / 1e3:.0f} kB, about 5 s: download ..."
    steps = ("download ", "digest, 0:0", "calibration", "layers", "output", "ready: it is called `Qwen3-0.6B` here")
    at(err, f"asking the hub for {QWEN3}", offer, *steps)
    assert all("left in all" in line for line in err if line.startswith(("download", "digest", "calibration", "layers")))
    source = read_manifest(models_folder() / "Qwen3-0.6B")["source"]
    assert (source["kind"], source["path"], source["weights"]) == ("hub", f"{QWEN3}@{COMMIT}", "int8, fitted")
    asked = len(hub.requests)
    again = edge_llm(tmp_path, hub.endpoint, "run", "qwen3", "hello", "-n", "4")
    assert again == (0, out, [CUT]) and len(hub.requests) == asked
    for named in (QWEN3, "qwen3:0.6b", "Qwen3-0.6B", f"https://huggingface.co/{QWEN3}/tree/main"):
        assert edge_llm(tmp_path, NOBODY, "run", named, "hello", "-n", "4") == (0, out, [CUT])


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("verb", ["run", "chat", "serve"])
@pytest.mark.parametrize(("named", "size"), [("qwen3", ", about 1.5 GB,"), ("https://hf.co/org/x/", ""), ("org/x", "")])
def test_where_nobody_can_be_asked_the_command_is_told(tmp_path, verb, named, size):
    code, out, err = edge_llm(tmp_path, NOBODY, verb, named, *(["hi"] if verb == "run" else []))
    brings = QWEN3 if named == "qwen3" else "org/x"
    why = f"error: `{named}`{size} is not here, and nobody can be asked whether to fetch it: "
    assert (code, out, err) == (2, "", [f"{why}run `edge-llm import {brings}` first, or give --yes"])


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("file", ["", "model.safetensors", "config.json"])
def test_a_folder_or_a_file_of_it_is_imported_and_answers(tiny_model, tmp_path, file):
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in tiny_model().iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    named = str(folder / file)
    code, out, err = edge_llm(tmp_path, NOBODY, "run", named, "hello", "-n", "4")
    assert code == 2 and f"run `edge-llm import {folder}` first, or give --yes" in err[0]
    code, out, err = edge_llm(tmp_path, NOBODY, "run", named, "hello", "-n", "4", "-y")
    assert code == 0 and out and names() == ["mine"]
    assert "is not imported yet" in err[0] and "about 5 s: import" in err[0]
    assert edge_llm(tmp_path, NOBODY, "run", named, "hello", "-n", "4") == (0, out, [CUT])
    os.utime(folder / "model.safetensors", (time.time() + 60, time.time() + 60))
    code, out, err = edge_llm(tmp_path, NOBODY, "run", named, "hello", "-n", "4", "-y")
    assert code == 0 and "has changed since it was imported" in err[0] and names() == ["mine"]


def test_a_person_is_asked_and_no_means_no(hub, tmp_path):
    command = ("run", "qwen3", "hello", "-n", "4")
    with Terminal(*command, columns=120, **on_terminal(tmp_path, hub.endpoint)) as terminal:
        terminal.wait_for("about 5 s: download [Y/n]:")
        terminal.write("n\n")
        terminal.wait_for("nothing was fetched")
        assert terminal.wait_end() == 1
    assert names() == [] and not hub.asked("GET", "model.safetensors")
    with Terminal(*command, columns=120, **on_terminal(tmp_path, hub.endpoint)) as terminal:
        terminal.wait_for("download [Y/n]:")
        terminal.write("\n")
        terminal.wait_for("ready: it is called `Qwen3-0.6B` here")
        assert terminal.wait_end() == 0
    assert names() == ["Qwen3-0.6B"]


def test_the_chat_opens_with_the_model_that_came(hub, tmp_path):
    command = ("chat", "qwen3")
    with Terminal(*command, columns=120, **on_terminal(tmp_path, hub.endpoint), rows=40) as terminal:
        terminal.wait_for("download [Y/n]:")
        terminal.write("y\n")
        terminal.wait_for(lambda text: "Ask anything" in text and "Qwen3-0.6B" in text)
        terminal.press("ctrl+q")
        assert terminal.wait_end() == 0


def test_serve_brings_it_and_serves(hub, tmp_path):
    process = subprocess.Popen(
        [*EDGE_LLM, "serve", "qwen3", "--yes", "--port", "0"], env=around(tmp_path, hub.endpoint),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if "/v1" in line:
                break
        assert "`Qwen3-0.6B` at http://127.0.0.1:" in said[-1], said
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_keeps_what_came_and_the_same_command_goes_on(tiny_model, tmp_path):
    with serving(hub_of(tiny_model("qwen3", **LARGE), QWEN3, pace=0.05)) as stub:
        process = subprocess.Popen(
            [*EDGE_LLM, "run", "qwen3", "hello", "--yes"], env=around(tmp_path, stub.endpoint),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until = time.monotonic() + 60
        while not stub.asked("GET", "model.safetensors"):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and "what has arrived is kept: the same command goes on from there" in err
        assert names() == []
        stub.pace = 0.0
        code, _, err = edge_llm(tmp_path, stub.endpoint, "run", "qwen3", "hello", "--yes", "-n", "2")
        assert code == 0 and names() == ["Qwen3-0.6B"], err


def test_without_the_network_the_cache_is_used_and_that_is_said(hub, tmp_path):
    assert edge_llm(tmp_path, hub.endpoint, "pull", "qwen3")[0] == 0
    code, out, err = edge_llm(tmp_path, NOBODY, "run", "qwen3", "hello", "--yes", "-n", "2")
    assert code == 0 and out, err
    assert any(f"qwen3 is {QWEN3}, already downloaded, about 5 s: import ..." == line for line in err)
    assert any(f"{NOBODY} cannot be reached" in line and "is taken from the Hugging Face cache" in line for line in err)
    code, _, err = edge_llm(tmp_path, NOBODY, "import", QWEN3, "--name", "again")
    assert code == 0 and any("is taken from the Hugging Face cache" in line for line in err)
    code, _, err = edge_llm(tmp_path, NOBODY, "import", QWEN3, "--name", "offline", HF_HUB_OFFLINE="1")
    assert code == 0 and not any("cannot be reached" in line for line in err)


@pytest.mark.parametrize("lost", ["model.safetensors", "config.json"])
def test_a_cache_that_is_not_whole_is_not_used(hub, tmp_path, lost):
    folder = edge_llm(tmp_path, hub.endpoint, "pull", "qwen3")[1].strip()
    (Path(folder) / lost).unlink()
    for offline in ("0", "1"):
        code, _, err = edge_llm(tmp_path, NOBODY, "import", "qwen3", HF_HUB_OFFLINE=offline)
        said = "cannot download" if offline == "0" else "not completely in the cache"
        assert code == 1 and len(err) == 1 and said in err[0]


HUBS = {
    "slow": (dict(silent=6.0), "cannot download"),
    "gone": (dict(status=503), "answered 503"),
    "a login page": (dict(nonsense=b"<html>Please log in</html>"), "is no hub's answer"),
    "another answer": (dict(nonsense=b"[1, 2]"), "is no hub's answer"),
    "gated": (dict(status=403, error_code="GatedRepo"), "is gated: accept its terms"),
    "an adapter": (
        dict(files={"adapter_config.json": b"{}"}, info={"cardData": {"base_model": "org/base"}}),
        "is an adapter (LoRA) of `org/base`",
    ),
}  # fmt: skip


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("kind", HUBS)
def test_a_hub_that_is_slow_wrong_or_not_there_gives_one_clear_line(tmp_path, kind):
    how, said = HUBS[kind]
    with serving(Stub(**({"files": {}, "repository": "org/x"} | how))) as stub:
        begun = time.monotonic()
        code, out, err = edge_llm(tmp_path, stub.endpoint, "run", "org/x", "hello", "--yes", HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert code == 1 and out == "" and err[0] == "asking the hub for org/x ..." and len(err) == 2, err
    assert err[1].startswith("error: ") and said in err[1]
    assert time.monotonic() - begun < 300 and names() == []


def test_a_name_that_fits_two_models_or_is_taken_is_told_in_a_line(tiny_model, tmp_path):
    folder = str(tiny_model())
    for name in ("one", "two"):
        assert edge_llm(tmp_path, NOBODY, "import", folder, "--fast", "--name", name)[0] == 0
    code, _, err = edge_llm(tmp_path, NOBODY, "run", folder, "hello", "--yes")
    assert (code, err) == (2, [f"error: `{folder}` fits several models here: `one`, `two`; name one of them"])
    code, _, err = edge_llm(tmp_path, NOBODY, "run", "org/one", "hello", "--yes")
    assert code == 2 and len(err) == 1
    assert "`org/one` is not here, and another model is called `one` already: `edge-llm import org/one --name NAME`" in err[0]
    code, _, err = edge_llm(tmp_path, NOBODY, "run", "qwen", "hello", "--yes")
    meant = "which of these do you mean: `qwen3`, `qwen3-2507`, `qwen2.5`, `qwen2.5-coder`?"
    assert code == 1 and len(err) == 1 and meant in err[0]


SAID = {
    "gemma": "no model `gemma`: Gemma cannot be run here yet; these are fetched by name: `smollm2`, `qwen3`, ",
    "Gemma:7b": "Gemma cannot be run here yet",
    "minicpm5": "MiniCPM cannot be run here yet",
    "phi4": None,
    "llama4:scout": "Llama 4, a mixture of experts, cannot be run here yet",
    "philosopher": None,
    "qwen": "which of these",
    "llama": "which of these",
    "smolm2": "did you mean `smollm2`?",
    "tinylama": "did you mean `tinyllama`?",
    "zzz": None,
}


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize(
    ("named", "verb"),
    [
        *((named, "run") for named in SAID),
        *((named, verb) for named in ("gemma", "Gemma:7b", "llama", "zzz") for verb in ("import", "pull", "show", "plan")),
    ],
)
def test_a_name_that_is_none_is_told_what_can_be_had(tmp_path, verb, named):
    code, out, err = edge_llm(tmp_path, NOBODY, verb, named, *(["hi"] if verb == "run" else []))
    assert (code, out, len(err)) == (1, "", 1) and f"`{named}`" in err[0]
    if SAID[named] is not None:
        assert SAID[named] in err[0]
    elif verb in ("run", "show", "plan"):
        assert "`edge-llm import SOURCE` adds one" in err[0]


@pytest.mark.parametrize("verb", [("show",), ("plan", "-t", "1"), ("bench", "-p", "4", "-n", "1", "-r", "1")])
def test_a_short_name_means_the_model_that_was_brought_by_it(hub, tmp_path, verb):
    code, out, err = edge_llm(tmp_path, NOBODY, verb[0], "qwen3", *verb[1:])
    assert (code, out, err) == (1, "", ["error: `qwen3` is not here; `edge-llm import qwen3` brings it"])
    assert edge_llm(tmp_path, hub.endpoint, "import", "qwen3", "--fast", "--name", "mine")[0] == 0
    found = edge_llm(tmp_path, NOBODY, verb[0], "qwen3", *verb[1:])
    assert found[0] == 0 and (verb[0] == "plan" or "mine" in found[1]), found


def test_a_program_is_told_how_long_download_and_import_take_together(hub, tmp_path):
    code, _, err = edge_llm(tmp_path, hub.endpoint, "import", "qwen3", "--progress", "json")
    rows = [json.loads(line) for line in err if line.startswith("{")]
    assert code == 0 and rows[0]["stage"] == "download"
    assert all("seconds_left_in_all" in row for row in rows)
    assert rows[-1]["stage"] == "output" and rows[-1]["seconds_left_in_all"] == 0.0
