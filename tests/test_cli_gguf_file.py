"""`run`, `chat` and `serve` take a GGUF file as MODEL: its blocks are laid out once, kept or not, and nobody is asked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from block_files import config, in_types, mixed, write_blocks
from gguf_files import floats, gguf_bytes, model_pairs, model_tensors, tokenizer_pairs
from model_files import random_tensors

from edge_llm.cli.bring import _names
from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert import in_memory
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.importer import import_model
from edge_llm.convert.in_memory import room_in_memory
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import MANIFEST
from edge_llm.opening.load import plan_of
from edge_llm.paths import bundle_path, model_folders
from edge_llm.sources.place import Place

pytestmark = pytest.mark.thorough(file=4)

ASK = ("once upon", "-n", "4", "--temperature", "0")


@pytest.fixture
def file(tmp_path):
    return write_blocks(tmp_path / "tiny.gguf", mixed)


@pytest.fixture(autouse=True)
def no_stdin(monkeypatch):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


def names() -> list[str]:
    return sorted(name for name, _ in model_folders() if name != "builtin")


def answer(capsys, *arguments) -> tuple[int, str, str]:
    code = run(["run", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_first_time_it_is_laid_out_and_then_it_is_here(file, capsys):
    code, first, told = answer(capsys, file, *ASK)
    assert code == 0 and first and "kept in the file's blocks" in told
    assert names() == ["tiny"]
    code, second, told = answer(capsys, file, *ASK)
    assert (code, second) == (0, first) and "blocks" not in told
    assert answer(capsys, "tiny", *ASK)[1] == first


def test_nothing_is_kept_where_nothing_is_to_be(file, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(in_memory, "_MEMORY", tmp_path)
    monkeypatch.setattr(in_memory.atexit, "register", lambda work, *given: ends.append((work, given)))
    ends: list = []
    code, lent, _ = answer(capsys, file, "--no-store", *ASK)
    (folder,) = tmp_path.glob("edge-llm-*")
    assert code == 0 and names() == [] and len(list(folder.iterdir())) == 1
    for work, given in ends:
        work(*given)
    assert list(folder.iterdir()) == []
    assert answer(capsys, file, *ASK)[1] == lent


def test_a_process_that_is_killed_leaves_nothing_for_long(file, tmp_path):
    """The next one removes what it left in memory, whatever it runs itself."""
    script = f"""
import sys, time
from pathlib import Path
from edge_llm.convert import in_memory
in_memory._MEMORY = Path({str(tmp_path)!r})
from edge_llm.convert.importer import import_model
print(import_model({str(file)!r}, target=in_memory.room_in_memory("tiny")), flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    with open_bundle(left) as bundle:
        bundle.verify()
    again = in_memory_at(tmp_path, file)
    assert left.is_dir() and again.is_dir()  # the first is at work
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_memory, "_MEMORY", tmp_path)
        plan_of("builtin", RuntimeConfig())
    assert not left.exists() and again.is_dir()


def in_memory_at(parent: Path, file: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_memory, "_MEMORY", parent)
        return import_model(file, target=room_in_memory("tiny"))


def test_a_folder_of_somebody_else_is_not_used(file, tmp_path):
    planted = tmp_path / f"edge-llm-{os.getuid()}"
    planted.mkdir(mode=0o777)
    planted.chmod(0o777)
    assert planted not in in_memory_at(tmp_path, file).parents


def test_two_files_of_one_name_are_two_models(file, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    second = write_blocks(other / "tiny.gguf", lambda name: "q8_0")
    first_answer, second_answer = answer(capsys, file, *ASK)[1], answer(capsys, second, *ASK)[1]
    found = names()
    assert len(found) == 2 and found[0] == "tiny" and found[1].startswith("tiny-")
    assert answer(capsys, file, *ASK)[1] == first_answer
    assert answer(capsys, second, *ASK)[1] == second_answer
    assert names() == found


def test_two_files_of_one_name_that_are_opened_first_at_once_are_two_models(file, tmp_path):
    (tmp_path / "other").mkdir()
    second = write_blocks(tmp_path / "other" / "tiny.gguf", lambda name: "q8_0")
    script = """
import sys, time
from edge_llm.cli.main import run
from edge_llm.convert.blocks import KeptBlocks
write = KeptBlocks.write
KeptBlocks.write = lambda self, *given: (time.sleep(1), write(self, *given))
sys.exit(run(sys.argv[1:]))
"""
    commands = [[sys.executable, "-c", script, "run", str(one), *ASK] for one in (file, second, file)]
    all_of = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for one in commands]
    said = [one.communicate(timeout=120) for one in all_of]
    assert [one.returncode for one in all_of] == [0, 0, 0], said
    assert said[0][0] == said[2][0] != said[1][0]
    assert len(names()) == 2 and names()[0] == "tiny" and names()[1].startswith("tiny-")


def test_names_that_are_taken_by_what_cannot_be_read_are_told_with_the_way_out(file, capsys):
    found = [import_model(file, target=bundle_path(name)) for name in _names(Place(file))]
    for folder in found:
        (folder / MANIFEST).write_text("damaged")
    code, _, told = answer(capsys, file, *ASK)
    way_out = f"edge-llm rm {found[-1].name}"
    assert code == 2 and f"`{way_out}`" in told
    assert run([*way_out.split()[1:], "--yes"]) == 0 and answer(capsys, file, *ASK)[0] == 0


def test_a_file_that_has_changed_is_laid_out_again(file, tmp_path, capsys):
    answer(capsys, file, *ASK)
    shutil.copy(write_blocks(tmp_path / "new.gguf", lambda name: "q8_0"), file)
    os.utime(file, (time.time() + 100, time.time() + 100))
    code, _, told = answer(capsys, file, *ASK)
    assert code == 0 and "8.5 bits per weight" in told and names() == ["tiny"]


def test_an_older_file_in_its_place_is_another(file, tmp_path, capsys):
    """Moved there, or by a link that leads elsewhere."""
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    first = [answer(capsys, one, *ASK)[1] for one in (file, link)]
    other, third = (write_blocks(tmp_path / name, lambda name: "q8_0") for name in ("old.gguf", "linked.gguf"))
    for old in (other, third):
        os.utime(old, (10**9, 10**9))
    other.replace(file)
    link.unlink()
    link.symlink_to(third)
    second = [answer(capsys, one, *ASK) for one in (file, link)]
    assert all("8.5 bits per weight" in told for _, _, told in second)
    assert len({said for _, said, _ in second} | set(first)) == 2 and names() == ["link", "tiny"]


def test_another_file_behind_a_folder_that_leads_elsewhere_is_another(file, tmp_path, capsys):
    """As behind a mount: no time of the file itself is new."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder, made in zip(folders, (mixed, lambda name: "q8_0"), strict=True):
        folder.mkdir()
        write_blocks(folder / "m.gguf", made)
        os.utime(folder / "m.gguf", (10**9, 10**9))
    through = tmp_path / "through"
    time.sleep(0.02)  # a file's time is exact to some milliseconds
    found = []
    for folder in folders:
        through.unlink(missing_ok=True)
        through.symlink_to(folder)
        found += [answer(capsys, through / "m.gguf", *ASK) for _ in range(2)]
    assert ["blocks" in told for _, _, told in found] == [True, False, True, False] and names() == ["m"]
    assert found[0][1] == found[1][1] != found[2][1] == found[3][1]


def test_a_file_whose_time_alone_is_new_is_read_once_and_stays_as_it_was_imported(file, capsys):
    """Whoever gave it another name or other weights keeps them."""
    import_model(file, "mine", weights=LayerBits("w4"))
    kept = model_folders()[-1][1]
    made = (kept / "weights.bin").stat().st_mtime_ns
    for change in (lambda: os.utime(file), lambda: file.chmod(0o640)):
        change()
        (kept / ".manifest.json.left").touch()  # by a process that was killed
        code, first, told = answer(capsys, file, *ASK)
        assert code == 0 and "read" in told and "blocks" not in told and names() == ["mine"]
        code, second, told = answer(capsys, file, *ASK)
        assert (code, second) == (0, first) and "read" not in told
    assert (kept / "weights.bin").stat().st_mtime_ns == made and list(kept.glob(".*")) == []
    file.chmod(0o600)
    assert run(["show", str(file)]) == 0


def test_a_file_that_shares_its_name_and_changes_is_laid_out_again(file, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    second = write_blocks(tmp_path / "other" / "tiny.gguf", lambda name: "q8_0")
    answer(capsys, file, *ASK)
    answer(capsys, second, *ASK)
    found = names()
    write_blocks(second, lambda name: "q4_0")
    code, said, told = answer(capsys, second, *ASK)
    assert code == 0 and said and "4.5 bits per weight" in told and names() == found


@pytest.mark.parametrize("name", ["\U0001f642.gguf", "builtin.gguf", "-dash.gguf", "a b'c\".gguf", "x" * 96 + ".gguf"])
def test_a_file_of_any_name_runs(name, tmp_path, capsys):
    """Twice, in two folders: each is a model of its own."""
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        write_blocks(folder / name, mixed)
        for again in (False, True):
            code, said, told = answer(capsys, folder / name, *ASK)
            assert code == 0 and said and ("blocks" in told) is not again
    assert len(names()) == 2
    assert answer(capsys, folder / name, "--no-store", *ASK)[0] == 0


def test_a_file_of_the_working_folder_is_named_with_its_path_as_a_shell_takes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, way in (("a b.gguf", "'./a b.gguf'"), ("\u6a21.gguf", "'./\u6a21.gguf'"), ("tiny.gguf", "./tiny.gguf")):
        write_blocks(tmp_path / name, mixed)
        code, _, told = answer(capsys, name, *ASK)
        assert code == 1 and f"write `{way}` to mean it" in told and told.count("\n") == 1


def split(folder: Path) -> list[Path]:
    """A model in two files."""
    raw = config()
    tensors = in_types(mixed, model_tensors(raw, random_tensors(dict(raw))))
    paths = [folder / f"two-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, (path, some) in enumerate(zip(paths, (tensors[:5], tensors[5:]), strict=True)):
        pairs = {"split.no": number, "split.count": 2, "split.tensors.count": len(tensors)}
        path.write_bytes(gguf_bytes(pairs | ({} if number else model_pairs(raw) | tokenizer_pairs()), some))
    return paths


def test_a_file_that_is_gone_is_told_with_what_was_made_of_it(file, tmp_path, capsys):
    said = answer(capsys, file, *ASK)[1]
    file.unlink()
    code, _, told = answer(capsys, file, *ASK)
    assert code == 1 and "called `tiny` here" in told and told.count("\n") == 1
    assert answer(capsys, "tiny", *ASK)[1] == said
    parts = split(tmp_path)
    said = answer(capsys, parts[0], *ASK)[1]
    parts[1].rename(tmp_path / "away")
    code, _, told = answer(capsys, parts[0], *ASK)
    assert code == 1 and "a part of the model, is missing" in told and told.count("\n") == 1
    assert "called `two` here" in answer(capsys, parts[1], *ASK)[2]
    (tmp_path / "away").rename(parts[1])
    assert answer(capsys, parts[0], *ASK)[:2] == (0, said) and names() == ["tiny", "two"]
    assert "there is no such file" in answer(capsys, tmp_path / "none.gguf", *ASK)[2]


def test_two_processes_that_open_it_first_at_once_both_answer(file):
    command = [sys.executable, "-m", "edge_llm", "run", str(file), *ASK]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert said[0][0] == said[1][0] != ""
    assert names() == ["tiny"]


def test_a_draft_model_may_be_named_by_its_file(file, tmp_path, capsys):
    small = write_blocks(tmp_path / "small.gguf", lambda name: "q8_0")
    said = answer(capsys, file, *ASK)[1]
    code, _, told = answer(capsys, file, "--draft", small, *ASK)
    assert code == 1 and f"edge-llm import {small}" in told and told.count("\n") == 1
    import_model(small, "drafter")
    assert answer(capsys, file, "--draft", small, *ASK)[:2] == (0, said)


def test_without_a_file_system_in_memory_nothing_is_left_either(file, tmp_path):
    place = tmp_path / "temporary"
    place.mkdir()
    script = "import sys; from pathlib import Path; from edge_llm.convert import in_memory; from edge_llm.cli.main import run; "
    script += f"in_memory._MEMORY = Path({str(tmp_path / 'none')!r}); sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "run", str(file), "--no-store", *ASK]
    planted = place / f"edge-llm-{os.getuid()}"
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, env=os.environ | {"TMPDIR": str(place)}, stdin=subprocess.DEVNULL)
        assert done.returncode == 0 and done.stdout, done.stderr
        assert [path for path in place.rglob("*") if path != planted] == []
        if planted.is_dir():
            planted.rmdir()
        planted.write_text("somebody else's")


def test_no_room_in_memory_is_told_with_the_way_out(file, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(1000, 1000, 0))
    code, said, told = answer(capsys, file, "--no-store", *ASK)
    assert (code, said) == (1, "") and "leave --no-store out" in told and "EDGE_LLM_HOME" not in told


def test_no_room_among_the_models_is_told_with_the_way_out(file, capsys, monkeypatch, edge_llm_home):
    edge_llm_home.mkdir(exist_ok=True)
    (edge_llm_home / "models").symlink_to("/proc")
    code, said, told = answer(capsys, file, *ASK)
    assert (code, said) == (1, "") and "--no-store lays the file out in memory" in told
    assert run(["bench", str(file), "-p", "4", "-n", "1"]) == 1 and "--no-store" not in capsys.readouterr().err
    assert answer(capsys, file, "--no-store", *ASK)[0] == 0


def test_a_model_that_no_block_fits_is_offered_as_one_of_floats(tmp_path, capsys):
    """Its hidden channels are not whole blocks: it is quantized, which takes longer and is asked for."""
    raw = config(hidden_size=48, num_attention_heads=2, num_key_value_heads=2, intermediate_size=96)
    odd = write_blocks(tmp_path / "odd.gguf", lambda name: "q8_0" if "ffn_down" in name else "", raw)
    code, _, told = answer(capsys, odd, *ASK)
    assert code == 2 and "nobody can be asked" in told and names() == []
    code, _, told = answer(capsys, odd, "--no-store", *ASK)
    assert code == 2 and "--no-store is for a GGUF file in blocks" in told


def test_what_cannot_be_taken_is_one_line(file, tmp_path, capsys):
    def refused(*arguments) -> tuple[int, str]:
        code, said, told = answer(capsys, *arguments, *ASK)
        assert said == "" and told.count("\n") == 1, told
        return code, told

    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:-100])
    assert refused(damaged)[0] == 1
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    wide = write_blocks(tmp_path / "wide.gguf", lambda name: "q8_0", config(**sizes, intermediate_size=(1 << 17) + 32))
    assert "up to 131072 run here" in refused(wide)[1]
    assert "--device host" in refused(file, "--device", "emulated:310p")[1]
    whole = write_blocks(tmp_path / "floats.gguf", lambda name: "", config())
    code, told = refused(whole, "--no-store")
    assert code == 2 and "--no-store is for a GGUF file in blocks" in told
    assert names() == []


@pytest.mark.parametrize(("kind", "way_out"), [("mmproj", "import the one that it belongs to"), ("adapter", "--lora")])
def test_a_file_of_floats_that_is_no_model_is_not_offered(kind, way_out, tmp_path, capsys):
    part = tmp_path / "part.gguf"
    part.write_bytes(gguf_bytes({"general.architecture": "llama", "general.type": kind}, [floats("v", np.zeros((2, 32)))]))
    code, _, told = answer(capsys, part, "--yes", *ASK)
    assert code == 1 and way_out in told and told.count("\n") == 1


def test_a_folder_of_files_is_told_to_name_one(tmp_path, capsys):
    folder = tmp_path / "a b"
    folder.mkdir()
    first = min([write_blocks(folder / name, mixed) for name in ("m-q8_0.gguf", "m-q4_0.gguf")])
    code, _, told = answer(capsys, folder, *ASK)
    assert code == 1 and f"such as '{first}'" in told and told.count("\n") == 1
    for _ in range(2):  # files of Hugging Face beside them change nothing
        assert run(["import", str(folder)]) == 1 and f"such as `{first}`" in capsys.readouterr().err
        (folder / "config.json").write_text("{}")


def test_a_name_that_no_file_can_be_read_by_is_told(file, tmp_path, capsys):
    """A link that leads nowhere or to itself, a folder, and a file by another name, such as Ollama's blobs have."""
    for name, leads in (("away.gguf", "nowhere"), ("loop.gguf", "loop.gguf")):
        (tmp_path / name).symlink_to(leads)
        code, _, told = answer(capsys, tmp_path / name, *ASK)
        assert code == 1 and "leads to no file" in told and told.count("\n") == 1
    (tmp_path / "folder.gguf").mkdir()
    code, _, told = answer(capsys, tmp_path / "folder.gguf", *ASK)
    assert code == 1 and "this folder has no manifest.json" in told
    blob = shutil.copy(file, tmp_path / "sha256-1234")
    for words in (["run", blob, *ASK], ["import", blob]):
        assert run(list(map(str, words))) == 2
        told = capsys.readouterr().err
        assert "ln -s sha256-1234 sha256-1234.gguf" in told and told.count("\n") == 1
