"""The colours that the chat offers: a pair of our own, and Textual's, each made legible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from textual.color import BLACK, WHITE, Color
from textual.theme import BUILTIN_THEMES, Theme

DARK, LIGHT = "edge-dark", "edge-light"

LEGIBLE = 4.5
"""Contrast of text that people read without effort, by WCAG's formula."""
_AIM = 4.7  # what is drawn is rounded
_GROUNDS = ("background", "surface", "panel")
_COLOURED = tuple(f"text-{name}" for name in ("primary", "secondary", "warning", "error", "success", "accent"))
_HEADINGS = tuple(f"markdown-h{level}-color" for level in range(1, 7))
_GREYS: Mapping[str, float] = {"text": 0.9, "text-muted": 0.7, "text-disabled": 0.6}
"""How much of black or white a text has at least, over what is behind it."""

_DARK = Theme(
    name=DARK,
    primary="#5fafff",
    secondary="#5f87af",
    accent="#87d7ff",
    warning="#ffaf5f",
    error="#ff8787",
    success="#87d787",
    foreground="#e4e4e4",
    background="#121212",
    surface="#262626",
    panel="#303030",
    dark=True,
    variables={
        "text-primary": "#5fafff", "text-secondary": "#87afd7", "text-accent": "#87d7ff", "text-warning": "#ffaf5f",
        "text-error": "#ff8787", "text-success": "#87d787", "block-cursor-background": "#005f87", "border": "#5f87af",
    },
)
_LIGHT = Theme(
    name=LIGHT,
    primary="#005faf",
    secondary="#5f87af",
    accent="#005f87",
    warning="#875f00",
    error="#af0000",
    success="#005f00",
    foreground="#121212",
    background="#ffffff",
    surface="#eeeeee",
    panel="#e4e4e4",
    dark=False,
    variables={
        "text-primary": "#005faf", "text-secondary": "#005f87", "text-accent": "#005f87", "text-warning": "#5f5f00",
        "text-error": "#af0000", "text-success": "#005f00", "block-cursor-background": "#005faf", "border": "#5f87af",
    },
)
"""Their colours are among the 256 that every terminal has: with few colours they look the same."""


def own_themes() -> Iterator[Theme]:
    """The pair of our own."""
    return map(_legible, (_DARK, _LIGHT))


def themes() -> Iterator[Theme]:
    """All that the chat offers; every text of them is legible, or has the terminal's own colours."""
    yield from own_themes()
    for theme in BUILTIN_THEMES.values():
        yield theme if theme.ansi else _legible(theme)


def contrast(one: Color, other: Color) -> float:
    """WCAG's contrast of two colours, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Color) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _legible(theme: Theme) -> Theme:
    """``theme`` with texts that stand out from whatever they are drawn on."""
    known = {**theme.to_color_system().generate(), **theme.variables}
    grounds = [Color.parse(known[name]) for name in _GROUNDS]
    pole = WHITE if theme.dark else BLACK
    found = {name: _grey(share, grounds, pole) for name, share in _GREYS.items()}
    muted = int(found["text-muted"][len("auto ") : -1]) / 100
    found |= {name: _moved(Color.parse(known[name]), grounds, pole).hex for name in (*_COLOURED, *_HEADINGS) if name in known}
    found |= {"footer-key-foreground": found["text-accent"], "footer-background": grounds[2].hex}
    found |= {"footer-description-foreground": grounds[2].blend(pole, muted).hex}
    found |= {"link-color": found["text-accent"], "foreground-muted": _moved(grounds[0].blend(pole, muted), grounds, pole).hex}
    cursor = Color.parse(known["block-cursor-background"])
    text = cursor.get_contrast_text(1.0)
    found |= {"block-cursor-foreground": text.hex, "block-cursor-background": _moved(cursor, [text], _other(text)).hex}
    found |= {"block-cursor-blurred-foreground": pole.hex, "block-cursor-blurred-background": grounds[2].hex}
    foreground = _moved(Color.parse(known["foreground"]), grounds, pole).hex
    return replace(theme, foreground=foreground, variables={**theme.variables, **found})


def _grey(share: float, grounds: Iterable[Color], pole: Color) -> str:
    """As much of ``pole`` over any of ``grounds`` as it takes, as a colour of Textual's."""
    while share < 1 and any(contrast(ground.blend(pole, share), ground) < _AIM for ground in grounds):
        share += 0.02
    return f"auto {min(100, round(100 * share))}%"


def _moved(colour: Color, grounds: Iterable[Color], pole: Color) -> Color:
    """``colour``, as near to ``pole`` as it takes."""
    for step in range(21):
        moved = colour.blend(pole, step / 20, alpha=1.0)
        if all(contrast(moved, ground) >= _AIM for ground in grounds):
            break
    return moved


def _other(pole: Color) -> Color:
    return BLACK if pole.brightness > 0.5 else WHITE
