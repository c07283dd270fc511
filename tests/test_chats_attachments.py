"""Text files that a prompt brings along."""

import os
import socket

import pytest

from edge_llm.chats.attachments import MOST_BYTES, completions, find_attachments, missing_files, read_attachment
from edge_llm.chats.tree import Attachment
from edge_llm.errors import EdgeLLMError, UsageError


@pytest.fixture
def base(tmp_path):
    for name in ("notes.txt", "my file.txt", "Übung.md", "folder/inner.py", "folder/.hidden", "two  words/a b.txt", ".dot"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
    return tmp_path


# ---- reading


@pytest.mark.parametrize("text", ["", "a\nb\r\nc", "天 👍 é", "\x1b[31m red", "```", "x" * MOST_BYTES])
def test_a_text_file_is_read_as_it_is(tmp_path, text):
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert read_attachment(tmp_path / "a.txt") == Attachment("a.txt", text)


def test_the_mark_at_the_start_of_a_windows_file_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhi")
    assert read_attachment(tmp_path / "a.txt").text == "hi"


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.write_bytes(b"\xff\xfe"), "byte 0 is not UTF-8"),
        (lambda path: path.write_bytes(b"fine until \xe5\xa4"), "byte 11 is not UTF-8"),
        (lambda path: path.write_bytes(b"a\0b"), "NUL"),
        (lambda path: path.write_bytes(b"x" * (MOST_BYTES + 1)), f"{MOST_BYTES + 1} bytes; at most {MOST_BYTES}"),
        (lambda path: path.mkdir(), "is a folder"),
        (make_pipe, "is a pipe"),
        (make_socket, "is a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device"),
        (lambda path: path.symlink_to("nowhere"), "no file"),
        (lambda path: path.symlink_to(path), "cannot open"),
        (lambda path: None, "no file"),
    ],
)
def test_what_is_no_text_file_is_refused_by_name_and_at_once(tmp_path, make, told):
    path = tmp_path / "thing"
    make(path)
    with pytest.raises(EdgeLLMError, match=told) as refused:
        read_attachment(path)
    assert f"{path}" in str(refused.value)


def test_a_hostile_name_is_shown_harmless(tmp_path):
    path = tmp_path / "a\x1b]0;owned\x07\n.txt"
    path.write_text("text")
    assert read_attachment(path).name.isprintable()
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError) as refused:
        read_attachment(path)
    assert str(refused.value).isprintable()
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("a name that is not UTF-8")
    assert read_attachment(tmp_path / os.fsdecode(b"\xff.txt")).name.encode()


# ---- finding


@pytest.mark.parametrize(
    ("text", "plain", "names"),
    [
        ("sum up @notes.txt please", "sum up `notes.txt` please", ["notes.txt"]),
        ("@notes.txt", "`notes.txt`", ["notes.txt"]),
        ('what is @"my file.txt"?', "what is `my file.txt`?", ["my file.txt"]),
        ("(see @notes.txt) (@Übung.md)", "(see `notes.txt`) (`Übung.md`)", ["notes.txt", "Übung.md"]),
        ("总结@notes.txt，谢谢", "总结@notes.txt，谢谢", []),
        ("总结@notes.txt，", "总结`notes.txt`，", ["notes.txt"]),
        ("`@notes.txt` https://example.org/@notes.txt", "`@notes.txt` https://example.org/@notes.txt", []),
        ("@notes.txt" + "," * 100_000, "@notes.txt" + "," * 100_000, []),
        ("is it @notes.txt, or @folder/inner.py?", "is it `notes.txt`, or `inner.py`?", ["notes.txt", "folder/inner.py"]),
        ("@notes.txt and @./notes.txt", "`notes.txt` and `notes.txt`", ["notes.txt"]),
        ("@Übung.md", "`Übung.md`", ["Übung.md"]),
        ("write to me@notes.txt", "write to me@notes.txt", []),
        ("@someone said @ and @@ @folder @missing.txt", "@someone said @ and @@ @folder @missing.txt", []),
        ('@"missing file" @"unclosed', '@"missing file" @"unclosed', []),
        ("@" + "x" * 5000, "@" + "x" * 5000, []),
        ("@a\0b @~nobody-here/x", "@a\0b @~nobody-here/x", []),
        ("@...... @\u2026", "@...... @\u2026", []),
    ],
)
def test_words_that_name_a_file_are_files_and_others_stay_text(base, text, plain, names):
    found, paths = find_attachments(text, base)
    assert (found, [path.resolve() for path in paths]) == (plain, [base / name for name in names])


def test_home_and_absolute_paths(base, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("HOME", str(base))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert find_attachments(f"@~/notes.txt @{base}/notes.txt", elsewhere) == ("`notes.txt` `notes.txt`", [base / "notes.txt"])


def test_a_pipe_is_found_so_that_reading_it_tells_what_is_wrong(base):
    os.mkfifo(base / "pipe")
    (path,) = find_attachments("@pipe", base)[1]
    with pytest.raises(UsageError, match="is a pipe"):
        read_attachment(path)


# ---- completion


@pytest.mark.parametrize(
    ("prefix", "offered"),
    [
        ("@", ["@folder/", '@"my file.txt"', "@notes.txt", '@"two  words/', "@Übung.md"]),
        ("@no", ["@notes.txt"]),
        ("@NO", ["@notes.txt"]),
        ("@my", ['@"my file.txt"']),
        ('@"my f', ['@"my file.txt"']),
        ("@folder/", ["@folder/inner.py"]),
        ("@folder/.", ["@folder/.hidden"]),
        ('@"two  words/', ['@"two  words/a b.txt"']),
        ("@.", ["@.dot"]),
        ("@nothing/here", []),
        ("@notes.txt/", []),
        ("@a\0b/", []),
    ],
)
def test_completions(base, prefix, offered):
    assert completions(prefix, base) == offered


def test_every_completion_of_a_file_is_found_again(base):
    (base / 'qu"ote').write_text("x")
    (base / "line\nbreak").write_text("x")
    (base / "dots...").write_text("x")
    (base / "comma,").write_text("x")
    offered = [word for word in completions("@", base) if not word.endswith("/")]
    assert len(offered) == 5
    for word in offered:
        assert len(find_attachments(f"about {word} here", base)[1]) == 1


def test_completion_of_the_home_keeps_what_was_typed(base, monkeypatch):
    monkeypatch.setenv("HOME", str(base))
    assert completions("@~/no", base) == ["@~/notes.txt"]
    assert len(completions("@", base, limit=2)) == 2


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("read (@a/b), @notes.txt. @a/b", "`a/b`, `notes.txt`"),
        ("总结@notes.txt，", "`notes.txt`"),
        ('@"my file.txt" @~/x', "`my file.txt`, `~/x`"),
        ("@1.a @2.a @3.a @4.a @5.a", "`1.a`, `2.a`, `3.a` and 2 more"),
        ("@a.\x1b[2Jb @Übung.md", "`Übung.md`"),
        ("me@example.org @someone, @all. @ @@ @... `@a.txt` https://example.org/@a.txt", ""),
        ('@app.route("/x")\n@pytest.mark.parametrize("a", [1])\n@cache(size=1.5)', ""),
    ],
)
def test_what_looks_like_a_file_that_is_not_there(said, told):
    assert missing_files(said) == told
