"""What the chat looks like to eyes: contrast of every text, themes that are kept, blocks of code, widths, the list of chats."""

import sqlite3
import time
from datetime import datetime, timedelta

import pytest
from chat_driver import drive
from hypothesis import given
from hypothesis import strategies as st
from real_terminal import Terminal
from rich.color import ColorSystem
from scripted_provider import ScriptedProvider, answer
from textual.color import BLACK, WHITE, Color
from textual.events import MouseScrollUp

from edge_llm.tui.blocks import CUT, CodeBlock
from edge_llm.tui.driver import TerminalDriver, light_background
from edge_llm.tui.looks import has_light_background
from edge_llm.tui.themes import DARK, LIGHT, themes
from edge_llm.user_config import read_user_config

pytestmark = pytest.mark.thorough(file=2)

LEGIBLE = 4.5
"""What WCAG asks of text."""
TEXT = """# A heading

Some *words*, **more**, a [link](https://a.example) and `code`.

```python
@wrapped
class Point(Base):
    \"\"\"A point.\"\"\"

    def move(self, by=1):  # a comment
        return "text" if None is by else by * 2.5
```

| a | b |
|---|---|
| 1 | 2 |

1. first
- second

> quoted
"""


def luminance(triplet):
    parts = (part / 255 for part in triplet)
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def over(value, ground):
    """The colour of a text that a theme has as ``value``, on ``ground``."""
    if value.startswith("auto"):
        pole = WHITE if ground.brightness < 0.5 else BLACK
        return ground.blend(pole, int(value.removeprefix("auto").strip(" %") or 100) / 100)
    colour = Color.parse(value)
    return ground.blend(colour, colour.a, alpha=1)


@pytest.mark.parametrize("theme", [theme for theme in themes() if not theme.ansi], ids=lambda theme: theme.name)
def test_every_text_of_every_theme_is_legible(theme):
    known = {**theme.to_color_system().generate(), **theme.variables}
    texts = ["text", "text-muted", "text-disabled", "foreground", "foreground-muted"]
    texts += ["footer-description-foreground", "footer-key-foreground"]
    texts += [name for name in known if name.startswith("text-")]
    pairs = [(name, ground) for name in texts for ground in ("background", "surface", "panel")]
    pairs += [("block-cursor-foreground", "block-cursor-background")]
    pairs += [("block-cursor-blurred-foreground", "block-cursor-blurred-background")]
    for text, behind in pairs:
        ground = Color.parse(known[behind])
        assert contrast(over(known[text], ground).rgb, ground.rgb) >= LEGIBLE, (text, behind)


def cells(chat, reduced=False):
    """(text, its colour, the colour behind it) of what is written on the screen, or in the box on it, as a terminal is told."""
    screen = chat.app.screen
    seen = screen.query_one(".box").region if len(chat.app.screen_stack) > 1 else screen.region
    for strip in chat.strips[seen.y : seen.bottom]:
        for segment in strip.crop(seen.x, seen.right):
            style = segment.style
            if any(map(str.isalnum, segment.text)) and style and style.color and style.bgcolor:
                yield segment.text, *(seen_as(colour, reduced) for colour in (style.color, style.bgcolor))


def seen_as(colour, reduced):
    """RGB of a colour, on a terminal of 256 colours if ``reduced``."""
    return (colour.downgrade(ColorSystem.EIGHT_BIT) if reduced else colour).get_truecolor()


def weak_cells(chat, reduced):
    return {
        (text.strip(), tuple(colour), tuple(behind))
        for text, colour, behind in cells(chat, reduced)
        if contrast(colour, behind) < LEGIBLE
    }


SCREENS = {"shift+tab": "Delete", "f3": "Today", "f1": "Writing", "f4": "precision", "f5": "temperature", "f2": "Speed"}
"""Keys, and a word of what they open."""


@pytest.mark.parametrize("reduced", [False, True], ids=["truecolor", "256"])
@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_every_word_on_the_screens_of_our_themes_is_legible(theme, reduced, tmp_path):
    async def talk(chat):
        await chat.ask("A question")
        weak = weak_cells(chat, reduced)
        for key, word in SCREENS.items():
            await chat.press(key)
            await chat.until(lambda word=word: word in chat.screen)
            weak |= weak_cells(chat, reduced)
            if len(chat.app.screen_stack) > 1:
                await chat.press("escape")
            chat.app.show_chats(False)
            await chat.until(lambda: len(chat.app.screen_stack) == 1)
        assert not weak

    drive(talk, tmp_path, ScriptedProvider([answer(TEXT, thought="Let *me* think.")]), theme=theme, size=(110, 50))


@pytest.mark.parametrize("theme", ["ansi-light", "ansi-dark"])
def test_a_terminals_own_colours_have_nothing_mixed_in_behind_text(theme, tmp_path):
    async def talk(chat):
        await chat.ask("A question")
        for key, word in {"shift+tab": "Delete", "f1": "Writing"}.items():
            await chat.press(key)
            await chat.until(lambda word=word: word in chat.screen)
            for strip in chat.strips:
                for segment in strip:
                    if any(map(str.isalnum, segment.text)) and "copy" not in segment.text:
                        assert segment.style.bgcolor is None or segment.style.bgcolor.triplet is None, segment

    drive(talk, tmp_path, ScriptedProvider([answer(TEXT)]), theme=theme, size=(110, 60))


# -- the terminal's background ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "light"),
    [
        ("\x1b]11;rgb:ffff/ffff/ffff\x1b\\", True), ("\x1b]11;rgb:00/00/00\x07", False),
        ("\x1b]11;rgba:fdfd/f6f6/e3e3/ffff\x07", True),
        ("\x1b]11;rgb:1e1e/1e1e/2e2e\x07", False), ("\x1b]11;white\x07", None), ("\x1b]11;rgb:zz/1/1\x07", None),
        ("\x1b]10;rgb:f/f/f\x07", None), ("\x1b]11;?\x07", None), ("", None),
    ],
)  # fmt: skip
def test_a_reply_tells_whether_the_background_is_light(reply, light):
    assert light_background(reply) is light


REPLIES = ["\x1b]11;rgb:ffff/ffff/ffff\x1b\\", "\x1b]4;1;x\x07", "\x1b]52;c;aGk=\x07"]
TYPED = ["\x1b]", "\x1b]hello", "hello", "\x1b[200~pasted \x1b]x\x1b[201~", "1", "\r", "\x07", "\x1b[A"]


@given(st.lists(st.sampled_from([*REPLIES, *TYPED])), st.data())
def test_what_is_typed_comes_whatever_the_terminal_answers_in_between(pieces, data):
    """Replies go, keys and text stay, however the bytes are cut; only a key's own bytes are never torn apart."""
    driver = TerminalDriver.__new__(TerminalDriver)
    driver._part, driver.process_message = "", lambda event: None
    text, taken = "".join(pieces), ""
    while text:
        size = data.draw(st.integers(1, len(text)))
        size += text[size - 1] == "\x1b"
        taken += driver._without_replies(text[:size])
        text = text[size:]
    assert taken + driver._taken_part() == "".join(piece for piece in pieces if piece not in REPLIES)


@pytest.mark.parametrize(
    ("value", "light"), [("0;15", True), ("15;0", False), ("0;default;15", True), ("12;8", False), ("", False), ("x", False)]
)
def test_the_environment_may_tell_it_before(value, light):
    assert has_light_background({"COLORFGBG": value} if value else {}) is light


WHITE_BEHIND = b"48;2;255;255;255"


def test_a_light_terminal_gets_light_colours_and_garbage_is_no_key(tmp_path):
    with Terminal("chat", EDGE_LLM_HOME=str(tmp_path), columns=80, rows=24) as terminal:
        terminal.wait_for("Ask anything")
        assert b"\x1b]11;?\x1b\\" in terminal.raw and WHITE_BEHIND not in terminal.raw
        terminal.write("\x1b]11;colour:none\x1b\\\x1b]11;" + "f" * 500 + "\x07\x1b]4;1;x\x07")
        terminal.write("\x1b]11;rgb:ffff/ff")
        terminal.write("ff/ffff\x1b\\")
        terminal.wait_raw(WHITE_BEHIND)
        terminal.write("\x1b]11;rgb:0")  # never ends
        terminal.wait_for("Ask anything")
        time.sleep(0.3)  # longer than half a reply is kept
        terminal.write("typed")
        assert "█ typed\n" in terminal.wait_for("typed")
        terminal.write("\x1b]right behind")  # the key Alt+], and text with it
        assert "right behind\n" in terminal.wait_for("right behind")
        terminal.press("ctrl+q")
        assert terminal.wait_end() == 0
        terminal.check_left()


def test_a_theme_that_was_chosen_does_not_follow_the_terminal_and_is_kept(tmp_path):
    file = tmp_path / "config.toml"

    async def talk(chat):
        chat.app.looks.see_background(True)
        assert chat.app.theme == LIGHT
        await chat.send("/theme nord")
        await chat.until(lambda: chat.told(f"nord is kept in {file}"))
        chat.app.looks.see_background(True)
        assert chat.app.theme == "nord"

    drive(talk, tmp_path, config=file)
    assert read_user_config(file).theme == "nord"


def test_a_theme_that_cannot_be_kept_holds_and_is_told(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("[chat\n")

    async def talk(chat):
        await chat.send("/theme nord")
        await chat.until(lambda: chat.told("The theme nord holds until you leave: "))
        assert chat.app.theme == "nord"

    drive(talk, tmp_path, config=file)
    assert file.read_text() == "[chat\n"


# -- what stands where ------------------------------------------------------------------------------------------------


def shape(chat):
    """The first column and the width of the last message, in the transcript."""
    region, box = chat.transcript.views()[-1].region, chat.transcript.region
    return region.x - box.x, region.width, box.width


@pytest.mark.parametrize("width", [40, 99, 120, 139, 140, 200])
def test_lines_are_at_most_100_wide_and_in_the_middle_of_a_wide_window(width, tmp_path):
    async def talk(chat):
        def is_in_place():
            begin, wide, all_ = shape(chat)
            return wide <= 100 and (abs(begin - (all_ - wide) / 2) <= 2 if width >= 140 else begin == 1)

        await chat.ask("A question")
        await chat.until(is_in_place)
        await chat.resize(80, 30)
        await chat.until(lambda: shape(chat)[0] == 1)

    drive(talk, tmp_path, ScriptedProvider([answer("word " * 200)]), size=(width, 30))


def test_between_blocks_stands_one_empty_line(tmp_path):
    async def talk(chat):
        await chat.ask("A question")
        lines = chat.screen.split("   you\n")[1].split("Ask anything")[0].splitlines()
        said = "\n".join(line.strip() for line in lines)
        assert "\n\n\n" not in said
        assert "more, a link (https://a.example) and code.\n\n▌ python  copy\n▌ @wrapped" in said.replace("  ▌", "▌")
        assert "quoted\n3 tokens" in said

    drive(talk, tmp_path, ScriptedProvider([answer(TEXT.replace("# A", "## A"))]), size=(100, 60))


def test_a_block_of_code_stands_out_and_a_click_on_its_first_line_copies_it(tmp_path):
    async def talk(chat):
        await chat.ask("A question")
        block = chat.transcript.query_one(CodeBlock)
        assert contrast(block.styles.border_left[1].rgb, chat.app.screen.background_colors[1].rgb) >= 3
        await chat.pilot.click(CodeBlock, offset=(3, 1))
        assert not chat.told("Copied")
        await chat.pilot.click(CodeBlock, offset=(3, 0))
        await chat.until(lambda: chat.told("Copied a block of code"))
        assert chat.app.clipboard == block.code and block.code.startswith("@wrapped") and block.code.endswith("2.5")

    drive(talk, tmp_path, ScriptedProvider([answer(TEXT)]), size=(100, 60))


def test_a_line_of_code_that_goes_on_beyond_the_edge_has_a_mark(tmp_path):
    long = "x = " + "+".join(map(str, range(100)))

    async def talk(chat):
        await chat.ask("A question")
        shown = [line.rstrip() for line in chat.screen.splitlines() if "x = " in line or "short" in line]
        assert [line.endswith(CUT) for line in shown] == [True, False]
        scroller = chat.transcript.query_one("CodeBlock ._sideways")
        scroller.scroll_to(x=20, animate=False, immediate=True)
        await chat.until(lambda: f"{CUT}{long[21:31]}" in chat.screen)
        scroller.scroll_to(x=scroller.max_scroll_x, animate=False, immediate=True)
        await chat.until(lambda: long[-20:] in chat.screen)
        assert not any(line.rstrip().endswith(CUT) for line in chat.screen.splitlines())

    drive(talk, tmp_path, ScriptedProvider([answer(f"```\n{long}\nshort\n```")]), size=(100, 30))


async def drag(chat, widget, start, end):
    """Press the mouse button at one place of ``widget`` and release it at another one."""
    await chat.pilot.mouse_down(widget, offset=start)
    await chat.pilot.hover(widget, offset=end)
    await chat.pilot.mouse_up(widget, offset=end)
    await chat.taken()


def test_what_the_mouse_selects_is_copied_when_it_is_released(tmp_path):
    async def talk(chat):
        await chat.ask("A question")
        said = chat.transcript.views()[-1].query_one("MarkdownParagraph")
        await drag(chat, said, (0, 0), (5, 0))
        await chat.until(lambda: chat.told("Copied"))
        copied = chat.app.clipboard
        assert copied and "Words to be selected.".startswith(copied)
        chat.forget_notices()
        await chat.pilot.click(chat.transcript, offset=(1, 20))
        await chat.settle()
        assert chat.notices == [] and chat.app.clipboard == copied, "a click selects nothing"
        await chat.write("and a draft")
        await drag(chat, chat.app.prompt.area, (2, 0), (7, 0))
        await chat.until(lambda: chat.told("Copied"))
        assert chat.app.clipboard in "and a draft" and chat.app.clipboard != copied
        assert chat.typed == "and a draft"

    drive(talk, tmp_path, ScriptedProvider([answer("Words to be selected.")]), size=(100, 60))


def test_what_is_selected_is_copied_with_a_notice_and_the_help_tells_how(tmp_path):
    async def talk(chat):
        await chat.ask("A question")
        chat.transcript.views()[-1].text_select_all()
        await chat.press("ctrl+c")
        await chat.until(lambda: chat.told("characters."))
        assert "to be selected" in chat.app.clipboard
        await chat.press("f1")
        await chat.until(lambda: "select text, which is copied when you let go" in chat.screen)

    drive(talk, tmp_path, ScriptedProvider([answer("Words to be selected.")]), size=(100, 60))


def test_a_thought_says_how_long_it_took_also_when_the_chat_is_opened_again(tmp_path):
    async def ask(chat):
        await chat.ask("A question")
        assert "▶ thought for " in chat.screen
        return chat.session.chat.messages[-1].figures["thought_seconds"]

    async def again(chat):
        await chat.until(lambda: "▶ thought for " in chat.screen)

    assert drive(ask, tmp_path, ScriptedProvider([answer("Yes.", thought="Let me think.")])) >= 0
    drive(again, tmp_path)


# -- the list of chats ------------------------------------------------------------------------------------------------


def test_chats_stand_in_a_line_each_by_day_and_a_branch_has_a_number(tmp_path):
    async def talk(chat):
        await chat.ask("A very long prompt that no list of chats has room for")
        await chat.send("/branch")
        await chat.send("/branch")
        await chat.until(lambda: len(chat.titles) == 3)
        first = chat.titles[0]
        assert chat.titles == [first, f"{first} (2)", f"{first} (3)"]
        stored = sqlite3.connect(chat.path)
        noon = datetime.now().replace(hour=12)
        for at, days in enumerate((1, 40), 1):
            changed = (noon - timedelta(days)).timestamp()
            stored.execute("UPDATE chats SET changed = ? WHERE title LIKE ?", (changed, f"%({at + 1})"))
        stored.commit()
        await chat.press("f3")
        await chat.until(lambda: "Earlier" in chat.screen)
        lines = [line.split("│")[0] for line in chat.screen.splitlines()]
        listed = [line for line in lines if line.strip()][2:8]
        assert [line.strip() for line in listed[::2]] == ["Today", "Yesterday", "Earlier"]
        for line in listed[1::2]:
            assert "…" in line and line.rstrip()[-1].isalnum() and len(line.rstrip()) == len(listed[1].rstrip())
        await chat.press("down", "down", "enter")
        await chat.until(lambda: chat.session.chat.chat.title.endswith("(2)"))

    drive(talk, tmp_path)


# -- walking ----------------------------------------------------------------------------------------------------------


def focused(chat):
    """The number of the message in focus from the end, 1 for the last; 0 for the prompt."""
    views = chat.transcript.views()
    return len(views) - views.index(chat.app.focused) if chat.app.focused in views else 0


def test_tab_and_shift_tab_begin_with_the_last_message_and_up_and_down_go_on(tmp_path):
    async def talk(chat):
        for number in range(3):
            await chat.ask(f"Question {number}")
        for key in ("tab", "shift+tab"):
            await chat.press(key)
            assert focused(chat) == 1
            assert chat.transcript.views()[-1].region.bottom <= chat.transcript.region.bottom
            await chat.press("shift+tab")
            assert focused(chat) == 2
            await chat.press("up", "up")
            assert focused(chat) == 4
            await chat.press("tab", "down")
            assert focused(chat) == 2
            await chat.press("down", "down")
            assert focused(chat) == 0

    drive(talk, tmp_path, size=(80, 40))


def test_up_walks_through_a_long_message_before_it_goes_on(tmp_path):
    async def talk(chat):
        await chat.ask("A question")
        await chat.press("tab")
        seen = [chat.transcript.scroll_y]
        while focused(chat) == 1:
            await chat.press("up")
            await chat.taken()
            seen.append(chat.transcript.scroll_y)
        assert focused(chat) == 2 and len(seen) > 3 and seen == sorted(seen, reverse=True)
        assert chat.transcript.views()[0].region.y >= chat.transcript.region.y

    drive(talk, tmp_path, ScriptedProvider([answer("\n".join(f"line {number}" for number in range(60)))]), size=(80, 24))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("way", ["pageup", "wheel", "up"])
def test_scrolling_to_the_top_brings_what_is_before(way, tmp_path):
    async def talk(chat):
        for number in range(40):
            chat.session.chat.add("user", f"Prompt {number}", parent=chat.session.chat.chat.leaf)
        await chat.session.show(chat.session.chat)
        await chat.taken()
        assert len(chat.transcript.views()) < 30
        if way == "up":
            await chat.press("tab")
        for _ in range(400):
            if len(chat.transcript.views()) == 40:
                break
            await (chat.wheel(MouseScrollUp, 5) if way == "wheel" else chat.press(way))
            await chat.taken()
        assert len(chat.transcript.views()) == 40 and not chat.transcript.query("#earlier")

    drive(talk, tmp_path, size=(80, 24))
