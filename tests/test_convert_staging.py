"""Folders go as they come, whole: what a killed removal leaves is hidden, in nobody's way, and gone with the next start."""

import os
import shutil

import pytest

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert import staging
from edge_llm.convert.staging import Staging, discard
from edge_llm.errors import StorageError
from edge_llm.formats.leftovers import clear_leftovers, held
from edge_llm.opening.load import load_engine
from edge_llm.paths import builtin_bundle, models_folder

pytestmark = pytest.mark.thorough(file=3)


@pytest.fixture
def models():
    """The models folder with the model `m` in it."""
    folder = models_folder()
    shutil.copytree(builtin_bundle(), folder / "m")
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def killed(*_, **__):
    raise KeyboardInterrupt  # nothing after it is done


def test_a_folder_is_discarded(models):
    discard(models / "m")
    assert names(models) == []


def test_a_link_is_discarded_and_what_it_leads_to_stays(models, tmp_path):
    (models / "m").rename(tmp_path / "elsewhere")
    (models / "m").symlink_to(tmp_path / "elsewhere")
    assert run(["rm", "m", "--yes"]) == 0
    assert names(models) == []
    assert (tmp_path / "elsewhere" / "manifest.json").exists()


@pytest.mark.parametrize("left", ["by this version", "by an earlier one"])
@pytest.mark.parametrize("start", ["rm", "a model is loaded"])
def test_a_killed_removal_stands_in_nobodys_way(models, monkeypatch, left, start):
    if left == "by this version":
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(staging.shutil, "rmtree", killed)
            discard(models / "m")
    else:
        (models / "m").rename(models / ".m.removed")
    assert [name[0] for name in names(models)] == ["."]
    if start == "rm":
        shutil.copytree(builtin_bundle(), models / "m")
        assert run(["rm", "m", "--yes"]) == 0
    else:
        load_engine(None, RuntimeConfig())
    assert names(models) == []


def test_what_is_being_removed_or_replaced_is_not_a_leftover(models):
    (models / "m").rename(models / ".removed-m-0")
    shutil.copytree(builtin_bundle(), models / ".replaced-n-0")
    with held(models / ".removed-m-0"), held(models / ".replaced-n-0"):
        clear_leftovers(models)
        assert names(models) == [".removed-m-0", ".replaced-n-0"]
    clear_leftovers(models)
    assert names(models) == ["n"]


def test_what_cannot_be_removed_is_said_and_is_out_of_sight(models, monkeypatch):
    def refuse(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="cannot remove `.*m`: Input/output error"):
        patch.setattr(os, "unlink", refuse)
        discard(models / "m")
    assert not (models / "m").exists()
    assert run(["rm", "m", "--yes"]) == 1  # there is no such model any more
    assert names(models) == []


def test_an_import_of_what_is_there_already_clears_too(models, tiny_model, capsys):
    source = tiny_model()
    assert run(["import", str(source), "--name", "tiny", "--shadow", "none"]) == 0
    with Staging(models / "x") as abandoned:
        left = abandoned.path.with_name(".import-x-0")
        shutil.copytree(builtin_bundle(), left)
        assert run(["import", str(source), "--name", "tiny", "--shadow", "none"]) == 0
        assert not left.exists()
        assert abandoned.path.exists()
    assert "nothing to do" in capsys.readouterr().err


def test_a_home_that_cannot_be_used_keeps_nobody_from_the_built_in_model(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "file"))
    assert load_engine(None, RuntimeConfig()).name == "builtin"
