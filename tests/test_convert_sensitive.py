"""`sensitive_layers.json`: what `show` writes gives `import` the same model; what names nothing is refused."""

import json

import pytest
from model_files import tiny_config, write_model

from edge_llm.cli.main import run
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle

pytestmark = pytest.mark.thorough(file=2)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("source") / "source", tiny_config("llama", num_hidden_layers=3))


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Call the command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call_(*arguments):
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call_


def schemes_of(folder):
    return {name: one.scheme for name, one in open_bundle(folder).decoder.linears().items()}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("again", [["w4"], ["auto", "--bits", "7.5"]], ids=" ".join)
def test_what_show_writes_gives_import_the_same_choices(source, tmp_path, call, again):
    first = import_model(
        source, "first", target=tmp_path / "first", outliers=Outliers(schemes=(("layers.2.down", "float16"),)),
        weights=LayerBits("auto", 7.5),
    )  # fmt: skip
    assert {part for one in schemes_of(first).values() for part in one.split(",")} == {"w4", "int8", "float16"}
    assert any("," in one for one in schemes_of(first).values())
    code, out, err = call("show", first, "--sensitive")
    assert code == 0 and "sensitive_layers.json" in err and "layers" in out
    written = json.loads((tmp_path / "here" / "sensitive_layers.json").read_text())
    assert written == {name: one for name, one in schemes_of(first).items() if one != "w4" and name != "output"}
    words = ["import", source, "--name", "again", "--weights", *again, "--sensitive", "sensitive_layers.json"]
    assert call(*words)[0] == 0
    folder = tmp_path / "home" / "models" / "again"
    assert schemes_of(folder) == schemes_of(first)
    assert "nothing to do" in call(*words)[2]


def test_a_file_may_be_edited(source, tmp_path, call):
    (tmp_path / "mine.json").write_text('{"layers.1.o": "int8", "layers.0.down": "float16", "layers.2.qkv": "w4,w4,int8"}')
    words = ["import", source, "--name", "mine", "--weights", "w4", "--sensitive"]
    assert call(*words, tmp_path / "mine.json")[0] == 0
    found = schemes_of(tmp_path / "home" / "models" / "mine")
    assert {name: one for name, one in found.items() if one != "w4"} == {
        "layers.1.o": "int8", "layers.0.down": "float16", "layers.2.qkv": "w4,w4,int8", "output": "int8",
    }  # fmt: skip
    (tmp_path / "mine.json").write_text("{}")
    assert "already called" in call(*words, tmp_path / "mine.json")[2]
    assert call(*words, tmp_path / "mine.json", "--overwrite")[0] == 0
    assert {*schemes_of(tmp_path / "home" / "models" / "mine").values()} == {"w4", "int8"}


BAD = {
    "an unknown linear": ('{"layers.3.o": "int8"}', ["layers.3.o", "N from 0 to 2", "gate_up"]),
    "a pattern": ('{"*.o": "int8"}', ["`*.o`", "N from 0 to 2"]),
    "the output matrix": ('{"output": "int8"}', ["`output`", "--head is for the output matrix"]),
    "an unknown scheme": ('{"layers.0.o": "int5"}', ["layers.0.o", "`int5`", "int8, float16"]),
    "four bits": ('{"layers.0.o": "w4"}', ["`w4`", "gets 4 bits"]),
    "a scheme for all": ('{"layers.0.qkv": "w4,w4,w4"}', ["`w4,w4,w4`", "self_attn.v_proj of 32 rows"]),
    "parts of one": ('{"layers.0.o": "w4,int8"}', ["`w4,int8`", "1 matrix"]),
    "too few parts": ('{"layers.0.qkv": "w4,int8"}', ["layers.0.qkv", "`w4,int8`", "3 matrices"]),
    "a part in float16": ('{"layers.0.qkv": "w4,w4,float16"}', ["layers.0.qkv", "`w4,w4,int8`"]),
    "no scheme": ('{"layers.0.o": ["int8"]}', ["layers.0.o", "int8, float16"]),
    "a list": ('["layers.0.o"]', ["JSON object"]),
    "a name twice": ('{"layers.0.o": "int8", "layers.0.o": "float16"}', ["layers.0.o", "twice"]),
    "no JSON": ("layers.0.o: int8", ["not usable JSON"]),
    "nothing": ("", ["not usable JSON"]),
}


@pytest.mark.parametrize("text, said", BAD.values(), ids=BAD)
def test_a_file_that_names_nothing_is_refused(source, tmp_path, call, text, said):
    (tmp_path / "bad.json").write_text(text)
    code, out, err = call("import", source, "--name", "bad", "--weights", "w4", "--sensitive", tmp_path / "bad.json")
    assert code == 2 and not out
    assert all(part in err for part in said), err
    assert not (tmp_path / "home" / "models" / "bad").exists()


def test_options_that_contradict_are_refused(source, tmp_path, call):
    (tmp_path / "file.json").write_text("{}")
    for words, said in (
        ([], "--weights w4 and auto"),
        (["--weights", "w4", "--float16", "*.o"], "--float16"),
    ):
        code, _, err = call("import", source, "--sensitive", tmp_path / "file.json", *words)
        assert code == 2 and said in err


def test_a_dash_is_stdout_and_no_file(source, tmp_path, call):
    folder = import_model(source, target=tmp_path / "bundle")
    code, out, err = call("show", folder, "--sensitive", "-")
    assert code == 0 and not err and not list((tmp_path / "here").iterdir())
    assert call("show", folder, "--sensitive", "./-")[0] == 0
    assert (tmp_path / "here" / "-").read_text() == out and set(json.loads(out).values()) == {"int8"}


def test_a_file_that_is_there_is_not_written_over(source, tmp_path, call):
    folder = import_model(source, target=tmp_path / "bundle")
    (tmp_path / "mine.json").write_text("mine")
    code, _, err = call("show", folder, "--sensitive", tmp_path / "mine.json")
    assert code == 2 and "there already" in err
    assert (tmp_path / "mine.json").read_text() == "mine"
    assert call("show", folder, "--sensitive", tmp_path / "other.json")[0] == 0
    assert set(json.loads((tmp_path / "other.json").read_text()).values()) == {"int8"}
    code, _, err = call("show", folder, "--sensitive", tmp_path / "no" / "such" / "folder.json")
    assert code == 2 and "no folder" in err
