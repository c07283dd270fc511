"""`run` on a terminal: Markdown is drawn as it streams, everything is written once, and all that the model said is there."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_terminal import Terminal

from edge_llm.cli.markdown_writer import CODE_LINES, MOST_CHARACTERS, MarkdownWriter
from edge_llm.files import printable

pytestmark = pytest.mark.thorough(file=6)

SGR = re.compile(r"\x1b\[[0-9;]*m")

BLOCKS = (
    "# Title here",
    "### Smaller **one**",
    "Hello **bold text** and *it* with `code` in it, long enough that it has to be wrapped",
    "Roses are red,\nViolets are blue",
    "- one\n- two **b**\n  - nested with a text that goes on and on until it wraps\n- three",
    "1. first\n2. second\n\n   more\n10. ten",
    "* stars\n* more",
    "> quoted *text*\n> more",
    "> - list in a quote\n> - two",
    "| a | b |\n|---|:-:|\n| 1 | `x` |\n| a longer cell | yy |",
    "Name | Value\n---|---\nx | y",
    '```python\ndef f(x):\n    return "a" + x  # note\n\n\nprint(f(1))\n```',
    "~~~\nplain <code>\n~~~",
    "```go\nfunc main() {\n\tx := 1\n\tfmt.Println(x)\t// y\n}\n```",
    "```\nnever closed",
    "- item\n\n  ```sh\n  ls | wc -l\n  ```\n- next",
    "    indented code\n      more",
    "---",
    "text above\n---\ntext below",
    "<div>html</div>\n<config><name>edge</name></config>",
    "List<String> and a<b> & &lt; c",
    "[link](https://x.org/a_b) and [1] a[0](b)",
    "![img](http://a.b/c.png) end",
    "www.example.org and https://x.org/?a=1*2",
    "2 * 3, 5*3=15, x**2+y**2, snake_case __init__ *open",
    "an **opener that is never closed and goes on",
    "`open code span",
    "a \\* b \\n C:\\dir ~5 ~~gone~~ ~~open",
    "你好，世界。这是一个很长的句子，需要换行，因为它比终端的宽度还要长。",
    "x" * 150,
    "1986 was a year",
    "- ",
    "1.",
    "[" * 300,
    "#",
    "***bold it*** and _it_ and **a*b*c**",
    "a\\\nb  \nc",
    "term\n: definition",
    "[a]: http://x.y",
    "- [x] done\n- [ ] open",
)
"""What models write, and what only looks like it."""


def drawn(pieces, columns=50):
    """All that is written of an answer that comes in ``pieces``."""
    out: list[str] = []
    clock = itertools.count(step=1.0)
    writer = MarkdownWriter(out.append, lambda: columns, lambda: next(clock))
    for piece in pieces:
        writer.write(piece)
    writer.end()
    return "".join(out)


def words(text):
    return Counter(char for char in text if char.isalnum() or char in "<&")


documents = st.lists(st.tuples(st.sampled_from(BLOCKS), st.sampled_from(["\n", "\n\n", "\n\n\n"])), min_size=1, max_size=5).map(
    lambda parts: "".join(block + gap for block, gap in parts)
)
markup = st.text(alphabet="ab1 \n*_`~[]()<>#|-!.\\:&", max_size=120)


@settings(max_examples=150)
@given(documents, st.integers(1, 12), st.integers(13, 90))
def test_an_answer_looks_the_same_however_it_comes(text, size, columns):
    """Where no heading of a table without outer bars wraps: its first words are shown before it is known to be a table."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    whole, streamed = SGR.sub("", drawn([text], columns)), SGR.sub("", drawn(pieces, columns))
    assert streamed == whole


@settings(max_examples=150)
@given(documents | markup | st.text(max_size=80), st.integers(1, 12))
def test_all_that_was_said_is_there_and_the_cursor_only_goes_on(text, size):
    out = drawn([text[at : at + size] for at in range(0, len(text), size)])
    plain = SGR.sub("", out)
    assert not {"\x1b", "\r", "\b"} & set(plain)
    assert not words(printable(text)) - words(plain)


def test_a_poem_keeps_its_lines_and_code_its_lengths():
    long = "x = " + "1 + " * 40
    out = SGR.sub("", drawn([f"Roses are red,\nViolets are blue,\n\n```python\n{long}\n```\n"], columns=30))
    assert [line.rstrip() for line in out.splitlines()] == [
        "Roses are red,",
        "Violets are blue,",
        "",
        "```python",
        long.rstrip(),
        "```",
    ]


def test_words_are_seen_as_they_come():
    """Only what may still turn out to be markup waits."""
    out: list[str] = []
    clock = itertools.count(step=1.0)
    writer = MarkdownWriter(out.append, lambda: 60, lambda: next(clock))
    seen = []
    for piece in (
        "One two",
        " three ",
        "**four",
        " five** ",
        "six `se",
        "ven` eight",
        " ",
        "\n",
        "```sh\nls -",
        "l\n",
        "pwd\n```\n",
    ):
        writer.write(piece)
        seen.append(SGR.sub("", "".join(out)))
    assert seen == [
        "One", "One two three", "One two three", "One two three four five", "One two three four five six",
        "One two three four five six seven", *["One two three four five six seven eight"] * 2,
        "One two three four five six seven eight\n```sh", "One two three four five six seven eight\n```sh\nls -l",
        "One two three four five six seven eight\n```sh\nls -l\npwd\n```",
    ]  # fmt: skip


def test_a_paragraph_without_end_costs_no_more_and_more():
    longest = 0

    def clock():
        return float(next(ticks))

    ticks = itertools.count()
    writer = MarkdownWriter(lambda text: None, lambda: 60, clock)
    for _ in range(3000):
        writer.write("la la la ")
        longest = max(longest, len(writer._text))
    assert longest < MOST_CHARACTERS + 100


def test_long_code_costs_no_more_and_more():
    """Only its end is laid out anew; all of it is written, in order, once."""
    lines = [f"    x{number} = call({number})" if number % 9 else "" for number in range(1, 400)]
    for code in (lines, [line or "#" for line in lines]):  # with empty lines, and without
        out: list[str] = []
        clock, longest = itertools.count(), 0
        writer = MarkdownWriter(out.append, lambda: 60, lambda clock=clock: float(next(clock)))
        for piece in ["Look:\n\n```python\n", *(f"{line}\n" for line in code), "```\n", "So **it** is."]:
            writer.write(piece)
            longest = max(longest, writer._text.count("\n"))
        writer.end()
        said = ["Look:", "", "```python", *code, "```", "So it is."]
        assert [line.rstrip() for line in SGR.sub("", "".join(out)).splitlines()] == said
        assert longest < 4 * CODE_LINES


# ---- in a terminal

SAYS = """
import sys, time
from edge_llm.cli import run
from edge_llm.cli.main import main
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Delta, Finish, Timings, Usage

def stream(self, request):
    for at in range(0, len(TEXT), 7):
        yield Delta(TEXT[at:at + 7])
    if WAITS:
        open(WAITS, "w").close()
        time.sleep(600)
    yield Delta("", finish=Finish("stop", Usage(1, 1, 0), Timings(1.0, 1.0, 1.0, 1.0, 1.0)))

Engine.stream = stream
main(["run", "builtin", "hi", *sys.argv[1:]])
"""
TEXT = "# Title\n\nA **bold** word and List<String>.\n\n- one\n- two\n\n```python\nprint(1)\n```\nlast **word** of it"


def says(*arguments, text=TEXT, waits="", **environment):
    script = f"TEXT = {text!r}\nWAITS = {waits!r}\n{SAYS}"
    return Terminal(command=[sys.executable, "-c", script, *arguments], columns=60, rows=30, **environment)


def test_run_draws_markdown_on_a_terminal():
    with says() as terminal:
        assert terminal.wait_end() == 0
        lines = [line for line in terminal.text.splitlines() if line and not line.startswith("[")]
    assert lines == [
        "Title",
        "A bold word and List<String>.",
        "• one",
        "• two",
        "```python",
        "print(1)",
        "```",
        "last word of it",
    ]
    assert b"\x1b[1mbold" in terminal.raw


@pytest.mark.parametrize("way", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, "--plain", "--raw"])
def test_run_leaves_the_text_alone_where_it_is_asked_to(way):
    with says(*([way] if isinstance(way, str) else []), **(way if isinstance(way, dict) else {})) as terminal:
        assert terminal.wait_end() == 0
    assert b"**bold**" in terminal.raw and b"\x1b[1mbold" not in terminal.raw


def test_run_in_a_pipe_prints_what_was_said():
    script = f"TEXT = {TEXT!r}\nWAITS = None\n{SAYS}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, TEXT + "\n")


def test_ctrl_c_leaves_what_was_said_and_a_sane_terminal(tmp_path):
    """All of it has come when its writer waits."""
    waits = tmp_path / "waits"
    with says(text="Some **bold and `open", waits=str(waits)) as terminal:
        terminal.wait_for(lambda text: "Some" in text and waits.exists())
        terminal.signal(signal.SIGINT)
        assert terminal.wait_end() == 130
        assert "Some **bold and `open" in terminal.text
        assert terminal.switched_on() == set()
    assert terminal.raw.rstrip().endswith(b"open")


def test_an_answer_longer_than_the_screen_is_written_once():
    text = "\n\n".join(f"Paragraph {number} with **bold**." for number in range(40))
    with says(text=text) as terminal:
        assert terminal.wait_end() == 0
    said = terminal.raw[terminal.raw.index(b"Paragraph 0") :]
    assert [said.count(b"Paragraph %d " % number) for number in range(40)] == [1] * 40
    assert not re.search(rb"\x1b\[[0-9;]*[A-HJKSTfsu]", said)


def test_a_pipe_loads_nothing_that_draws():
    running = "from edge_llm.cli.main import run\nrun(['run', 'builtin', 'hi', '-n', '1'])"
    script = f"import sys\n{running}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert not {"rich", "markdown_it", "pygments"} & set(done.stderr.split())
