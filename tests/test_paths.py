"""The home folder may be anything that a person writes into EDGE_LLM_HOME."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_llm.cli.main import run
from edge_llm.errors import ModelNotFound, StorageError, UsageError
from edge_llm.paths import builtin_bundle, bundle_path, find_bundle, home, models_folder, synthetic_folder


def test_the_home_may_not_exist_yet(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "a" / "b"))
    assert models_folder() == tmp_path / "a" / "b" / "models"
    assert not home().exists()


@pytest.mark.parametrize("inside", ["", "below", "below/it"])
def test_a_file_in_the_place_of_the_home_is_refused(monkeypatch, tmp_path, inside):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "file" / inside))
    for folder in (home, models_folder, synthetic_folder):
        with pytest.raises(StorageError, match="file` is not a folder"):
            folder()


@pytest.mark.parametrize("folder", [models_folder, synthetic_folder])
def test_a_file_in_the_place_of_a_folder_is_refused(edge_llm_home, folder):
    (edge_llm_home / folder().name).write_text("mine")
    with pytest.raises(StorageError, match="is not a folder"):
        folder()


def test_a_broken_link_in_the_place_of_the_home_is_refused(monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "link"))
    with pytest.raises(StorageError, match="link` is not a folder"):
        home()


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["show", "a-model"],
        ["rm", "a-model"],
        ["run", "a-model", "hello"],
        ["bench", "--synthetic", "qwen2.5-0.5b", "-p", "1", "-n", "0"],
        ["import", "MODEL", "--name", "a-model"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_verb_says_it_in_one_line(monkeypatch, tmp_path, capsys, tiny_model, arguments):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(sys, "stdin", None)
    source = str(tiny_model("llama"))
    assert run([source if argument == "MODEL" else argument for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: `{tmp_path / 'file'}` is not a folder")
    assert error.count("\n") == 1


def test_doctor_reports_it(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "file"))
    run(["doctor"])
    assert "is not a folder" in capsys.readouterr().out


@pytest.mark.parametrize("chosen", ["~nobody-at-all", "~nobody-at-all/x"])
def test_a_home_of_nobody_is_refused(monkeypatch, tmp_path, chosen):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGE_LLM_HOME", chosen)
    with pytest.raises(StorageError, match="names no user of this machine"):
        home()


def test_a_home_that_no_file_can_have_is_refused(monkeypatch):
    monkeypatch.setenv("EDGE_LLM_HOME", "/tmp/" + 300 * "x")
    with pytest.raises(StorageError, match="File name too long"):
        home()


@pytest.mark.parametrize("place", ["folder", "file", "bundle"])
def test_a_name_is_a_name_whatever_lies_here(monkeypatch, tmp_path, edge_llm_home, place):
    imported = bundle_path("good")
    imported.parent.mkdir()
    shutil.copytree(builtin_bundle(), imported)
    monkeypatch.chdir(tmp_path)
    if place == "file":
        (tmp_path / "good").write_text("mine")
    elif place == "folder":
        (tmp_path / "good").mkdir()
    else:
        shutil.copytree(builtin_bundle(), tmp_path / "good")
    assert find_bundle("good") == imported
    if place == "bundle":
        assert find_bundle("./good") == find_bundle(Path("good")) == Path("good")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_lies_here_is_named_when_no_model_has_the_name(monkeypatch, tmp_path, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").mkdir() if kind == "folder" else (tmp_path / "good").write_text("mine")
    with pytest.raises(ModelNotFound, match=f"there is a {kind} `good` here: write `./good` to mean it"):
        find_bundle("good")


NO_BUNDLES = (".", "..", "./", "~", "~nobody-at-all/x", "/", "a/b", "Qwen/Qwen3-0.6B", "./" + 300 * "x", "\0/")


@pytest.mark.parametrize("path", NO_BUNDLES)
def test_a_path_without_a_bundle_is_no_model(monkeypatch, tmp_path, path):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelNotFound, match="no model `"):
        find_bundle(path)


def test_a_path_is_told_from_a_place_without_a_model(tmp_path):
    with pytest.raises(ModelNotFound, match="this folder has no manifest.json"):
        find_bundle(tmp_path)
    with pytest.raises(ModelNotFound, match="there is no such folder"):
        find_bundle(tmp_path / "not" / "there")


@pytest.mark.parametrize("path", [".", "./", "~/it", "../it", "sub/../"])
def test_every_form_of_a_path_finds_a_bundle(monkeypatch, tmp_path, path):
    shutil.copytree(builtin_bundle(), tmp_path / "it")
    (tmp_path / "it" / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "it")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_bundle(path).resolve() == (tmp_path / "it").resolve()
    assert find_bundle(path).name == "it"


@pytest.mark.parametrize("name", ["", 300 * "x", 5000 * "x", "-x", "\udcff", "x\x1b[2J", "٣"])
def test_what_can_be_no_name_is_refused_shortly(name):
    with pytest.raises(UsageError, match="cannot be a model name") as refused:
        find_bundle(name)
    assert len(str(refused.value)) < 300


def imported(*names):
    """Folders of models that are called so."""
    for name in names:
        shutil.copytree(builtin_bundle(), bundle_path(name))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("smo", "smol"), ("SMOL", "smol"), ("Smoll", "smol"), ("qwen3", "Qwen3-4B"), ("bulitin", "builtin"), ("zzz", None)],
)
def test_a_name_that_is_nearly_a_model_is_asked_back(name, meant):
    imported("smol", "Qwen3-4B")
    way_out = f"did you mean `{meant}`" if meant else "`edge-llm list`"
    with pytest.raises(ModelNotFound, match=f"no model `{name}`; {way_out}") as error:
        find_bundle(name)
    assert error.value.model == name


@pytest.mark.parametrize("prompt", ["Who are you?", "what is 3/4 of 8", "say\nhello", "word " * 5000])
def test_a_prompt_in_the_place_of_a_model_is_told_where_it_belongs(prompt):
    with pytest.raises(UsageError, match="is no model but a prompt; write `edge-llm run builtin") as refused:
        find_bundle(prompt)
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


@pytest.mark.parametrize("prompt", ["Who are you?", "What's $HOME worth", 'say "hi" `now`', "a \\ b", "why!! not", "it's 3 o'"])
def test_what_a_misplaced_prompt_is_told_can_be_pasted(prompt):
    imported("older", "newer")
    os.utime(models_folder() / "older" / "manifest.json", (1, 1))
    with pytest.raises(UsageError) as refused:
        find_bundle(prompt)
    command = str(refused.value).partition("; write `")[2].removesuffix("`")
    words = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True).stdout
    assert words.splitlines() == ["edge-llm", "run", "newer", prompt]


def test_a_folder_with_a_space_is_a_path(tmp_path):
    with pytest.raises(ModelNotFound, match="this folder has no manifest.json"):
        (tmp_path / "my model").mkdir()
        find_bundle(str(tmp_path / "my model"))
