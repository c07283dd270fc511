"""The person's config file as it is read: its form, its place, and what is wrong with it, in one line."""

import os
import re
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.errors import UsageError
from edge_llm.paths import config_file
from edge_llm.user_config import MAX_BYTES, UserConfig, read_user_config, set_in_file


@pytest.fixture
def written(edge_llm_home):
    """Write the file and read it."""

    def read(text):
        (edge_llm_home / "config.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_user_config()

    return read


def test_without_a_file_nothing_is_set(edge_llm_home):
    assert read_user_config() == UserConfig(edge_llm_home / "config.toml")
    assert read_user_config().tables == {}


def test_all_of_it(written, edge_llm_home):
    found = written(
        "[defaults]\nthreads = 2\nprefix_cache = '1GiB'\n[chat]\nmodel = 'qwen'\ntheme = 'nord'\nsidebar = false\n"
        "stop = ['a b', 'c']\n[bench]\nroof = true\n[bench.lanes]\nn-prompt = [8, 16]\n[keys]\nstop = 'escape'\n"
        "look_inside = 'f2'\n"
    )
    assert found == UserConfig(
        path=edge_llm_home / "config.toml",
        exists=True,
        tables={
            "defaults": {"threads": 2, "prefix-cache": "1GiB"},
            "chat": {"model": "qwen", "stop": ("a b", "c")},
            "bench": {"roof": True},
            "bench lanes": {"n-prompt": (8, 16)},
        },
        keys={"stop": "escape", "look_inside": "f2"},
        theme="nord",
        sidebar=False,
    )
    with pytest.raises(TypeError):
        found.tables["defaults"]["threads"] = 3
    with pytest.raises(TypeError):
        found.keys["stop"] = "x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[defaults", "is not TOML"),
        (b"[chat]\nmodel = '\xff'", "is not TOML"),
        ("x = [" * 5000, "is not TOML"),
        ("[run]\nseed = " + "9" * 5000, "is not TOML"),
        ("[run]\nseed = 1\nseed = 2", "is not TOML"),
        ("threads = 2", "`threads` stands in no table"),
        ("[run]\ntop-p = 1.0\ntop_p = 0.5", "`top_p = 0.5` in [run]"),
        ("[run]\nseed = 1979-05-27", "`seed = 1979-05-27` in [run]"),
        ("[run]\nstop = [['a']]", '`stop = [["a"]]` in [run]'),
        ("[bench.lanes]\ngantt = {a = {b = 1}}", "in [bench.lanes]"),
        ("[keys]\nstop = 3", "`stop = 3` in [keys]"),
        ("[keys]\nstop = ''", '`stop = ""` in [keys]'),
        ("[chat]\ntheme = 3", "`theme = 3` in [chat]"),
        ("[chat]\nsidebar = 'yes'", '`sidebar = "yes"` in [chat]'),
        (b"#" * (MAX_BYTES + 1), "is no file of at most 1 MiB"),
    ],
)
def test_what_is_wrong_is_said_with_the_file_and_the_way_out(written, edge_llm_home, text, said):
    with pytest.raises(UsageError) as refused:
        written(text)
    message = str(refused.value)
    assert said in message and f"`{edge_llm_home / 'config.toml'}`" in message
    assert len(message) < 600 and ";" in message


def test_a_pipe_or_a_folder_is_not_waited_for(edge_llm_home):
    os.mkfifo(edge_llm_home / "config.toml")
    with pytest.raises(UsageError, match="is no file"):
        read_user_config()
    (edge_llm_home / "config.toml").unlink()
    (edge_llm_home / "config.toml").mkdir()
    with pytest.raises(UsageError, match="is no file"):
        read_user_config()


def test_the_environment_names_another_file(monkeypatch, tmp_path, edge_llm_home):
    (edge_llm_home / "config.toml").write_text("[run]\nseed = 1")
    monkeypatch.setenv("EDGE_LLM_CONFIG", str(tmp_path / "other.toml"))
    with pytest.raises(UsageError, match=r"other\.toml`: No such file"):  # it was named, so it must be there
        read_user_config()
    (tmp_path / "other.toml").write_text("[run]\nseed = 2")
    assert read_user_config().tables["run"]["seed"] == 2
    monkeypatch.setenv("EDGE_LLM_CONFIG", "/dev/null")
    assert not read_user_config().exists
    monkeypatch.setenv("EDGE_LLM_CONFIG", "")
    assert read_user_config().tables["run"]["seed"] == 1


def test_without_a_home_of_ours_it_is_in_the_users_config_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGE_LLM_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_file() == tmp_path / "edge-llm" / "config.toml"


LINES = st.sampled_from([
    "[chat]", "[chat] # mine", "[keys]", "[bench.lanes]", "[chats]", "theme = 'nord'", "theme='a' # old", "# theme = 'x'", "",
    'note = """\n[chat]\ntheme = 3\n"""', "themes = 1", "[[chat]]", "chat.theme = 'b'", "chat = {theme = 'c'}", "broken",
    '"theme" = "d"', "  sidebar = true", "chat.sidebar = true", "chat = {}", "chat = { sidebar = true } # two", "chat = 3",
    '[chat]\r', "theme = \'\'\'x\'\'\' # three", 'note = "theme = 1 # no comment"',
])  # fmt: skip


@given(st.lists(LINES, max_size=8).map("\n".join), st.booleans())
def test_a_value_is_written_and_all_else_stays_or_nothing_changes(tmp_path_factory, text, ended):
    file = tmp_path_factory.mktemp("config") / "config.toml"
    before = (text + "\n" * ended).encode()
    file.write_bytes(before)
    try:
        set_in_file(file, "chat", "theme", "edge-light")
    except UsageError as refused:
        assert file.read_bytes() == before and str(file) in str(refused)
        return
    old, new = tomllib.loads(before.decode()), tomllib.loads(file.read_text())
    assert new["chat"].pop("theme") == "edge-light"
    if "chat" in old:
        old["chat"].pop("theme", None)
    assert new == {"chat": {}, **old}
    comments = [at for line in text.split("\n") for at in re.findall(r"# (?:mine|old|theme = 'x'|two|three|no comment)", line)]
    assert all(file.read_text().count(each) == text.count(each) for each in comments)
    assert [*file.parent.iterdir()] == [file]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('[chat]\ntheme = "a" # dark\nsidebar = true\n', '[chat]\ntheme = "nord" # dark\nsidebar = true\n'),
        ('chat.theme = "a" # dark\n', 'chat.theme = "nord" # dark\n'),
        ("chat.sidebar = true # wide\n", 'chat.theme = "nord"\nchat.sidebar = true # wide\n'),
        ("chat = {theme = 'a', sidebar = true} # both\n", 'chat = {theme = "nord", sidebar = true} # both\n'),
        ("chat = {sidebar = true}\n", 'chat = {theme = "nord", sidebar = true}\n'),
        ("chat = {}", 'chat = {theme = "nord" }'),
        ("[chat] # mine", '[chat] # mine\ntheme = "nord"\n'),
        ('[keys]\nstop = "escape"\r\n', '[keys]\nstop = "escape"\r\n\r\n[chat]\r\ntheme = "nord"\r\n'),
    ],
)
def test_a_value_is_written_where_the_table_stands_and_comments_stay(tmp_path, before, after):
    file = tmp_path / "config.toml"
    file.write_bytes(before.encode())
    set_in_file(file, "chat", "theme", "nord")
    assert file.read_bytes().decode() == after
    assert read_user_config(file).theme == "nord"


def test_what_is_no_table_is_said_to_be_none(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("chat = 3\n")
    with pytest.raises(UsageError, match=r"`chat` is no table there; remove it, and write `theme = \"nord\"` into \[chat\]"):
        set_in_file(file, "chat", "theme", "nord")


def test_a_value_is_written_into_a_new_file_and_not_into_one_that_keeps_nothing(tmp_path):
    file = tmp_path / "folder" / "config.toml"
    set_in_file(file, "chat", "theme", "nord")
    assert read_user_config(file).theme == "nord"
    file.chmod(0o600)
    set_in_file(file, "chat", "theme", "dracula")
    assert read_user_config(file).theme == "dracula" and stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="keeps nothing"):
        set_in_file(Path("/dev/null"), "chat", "theme", "nord")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="yourself"):
        set_in_file(tmp_path / "file" / "config.toml", "chat", "theme", "nord")
