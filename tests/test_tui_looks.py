"""What the chat looks like to eyes: contrast of every text, themes that are kept, blocks of code, widths, the list of chats."""

import os
import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from chat_driver import drive
from hypothesis import given
from hypothesis import strategies as st
from real_terminal import Terminal
from rich.color import Color as RichColor
from rich.color import ColorSystem
from scripted_provider import ScriptedProvider, answer
from textual.color import BLACK, WHITE, Color

from edge_llm.tui.blocks import CUT, CodeBlock
from edge_llm.tui.driver import light_background
from edge_llm.tui.looks import has_light_background
from edge_llm.tui.themes import DARK, LIGHT, themes

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
    texts = ["text", "text-muted", "text-disabled", "foreground", "footer-description-foreground", "footer-key-foreground"]
    texts += [name for name in known if name.startswith("text-")]
    pairs = [(name, ground) for name in texts for ground in ("background", "surface", "panel")]
    pairs += [("block-cursor-foreground", "block-cursor-background")]
    pairs += [("block-cursor-blurred-foreground", "block-cursor-blurred-background")]
    for text, behind in pairs:
        ground = Color.parse(known[behind])
        assert contrast(over(known[text], ground).rgb, ground.rgb) >= LEGIBLE, (text, behind)


def cells(chat, reduced=False):
    """(text, colour of the text, colour behind it) of what is written on the screen, or in the box on it, as a terminal is told."""
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
