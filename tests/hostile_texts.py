"""Strings to tokenize, ordinary and hostile: the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

_SCRIPTS = (
    (0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x587), (0x5D0, 0x5EA), (0x621, 0x64A),
    (0x904, 0x939), (0xE01, 0xE30), (0x10D0, 0x10FA), (0x1100, 0x11FF), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3), (0xFF01, 0xFF5E), (0x10400, 0x1044F), (0x20000, 0x200FF),
)  # fmt: skip
_SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2000\u2003\u2007\u200a\u2028\u2029\u202f\u205f\u3000\u200b\u2060\ufeff\u2581"
_DIGITS = "0123456789" * 3 + "\u0660\u0663\u0966\u06f5\uff11\u00b2\u00bd\u2160\u2167\u4e00\u3007\U0001d7d8\u0be7\u2460"
_MARKS = "\u0300\u0301\u0308\u0327\u0345\u05b0\u064b\u093c\u0e33\u0e48\u1ab0\u20dd\u20e3\u3099\u302a\ufe0f\ufe20\U0001e8d0"
_CASES = "sStTdDmMlLvVrReE\u017f\u212a\u0130\u0131\u01c5\u1fbe\u00df\u1e9e\ufb01\u03a3\u03c2\u02b0\u00aa"
_SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u2019\u00ab\u00bb\u2014\u2026\u3001\u3002\uff0c\u060c\u20ac\u221e\u2192\u2581"
_EMOJI = (
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3",
    "\u2764\ufe0f", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001faf6", "\u200d", "\U0001f9d1\U0001f3ff\u200d\U0001f680",
)  # fmt: skip
_WORDS = (
    "Hello", " world", "the", " The", " don't", "I'LL", "we'Ve", "it\u2019s", "O'Brien", " \u00fcber", "Stra\u00dfe",
    "HTMLParser", "iPhone", " 3.14", "12345678", "1,000,000", "2024-01-31", "foo_bar", "__init__", "x==y", "a->b", "/*", "//",
    "#!/bin/sh", "https://a.b/c?d=e&f#g", '<div class="x">', "</p>", "{{ x }}", "\n", "\n\n", "\r\n", "    ", "\t\t", " ",
    "\u65e5\u672c\u8a9e", "\u4f60\u597d\u3002", "\ud55c\uad6d\uc5b4", "\u041f\u0440\u0438\u0432\u0435\u0442", "<0x41>", "<unk>",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u2581\u2581",
    "[PAD1]",
)  # fmt: skip
_FIRST = ("", " ", "\n", "\0", "\u2581", "\ufffd", "\U0010ffff", "e\u0301", "'S", "a" * 300, " " * 70, "\n" * 40, "1" * 50)


def hostile_texts(count: int, specials: Sequence[str] = (), seed: int = 0) -> list[str]:
    """``count`` strings of every kind; ``specials`` are texts of tokens that stand in some."""
    random = np.random.default_rng(seed)
    kinds = (_ordinary, _any_plane, _script, _spaces, _digits, _marks, _cases, _emoji, _code, _bytes, _mixed)
    found = list(_FIRST)
    for number in range(len(found), count):
        text = kinds[number % len(kinds)](random)
        if specials and random.random() < 0.15:
            at = int(random.integers(len(text) + 1))
            text = text[:at] + str(random.choice(list(specials))) + text[at:]
        found.append(text)
    return found[:count]


def _pick(random: np.random.Generator, letters: Sequence[str], most: int = 24) -> str:
    return "".join(letters[int(at)] for at in random.integers(len(letters), size=random.integers(1, most)))


def _ordinary(random: np.random.Generator) -> str:
    return _pick(random, _WORDS, 12)


def _any_plane(random: np.random.Generator) -> str:
    """Letters of all planes, assigned or not, but for surrogates."""
    plane = 1 << int(random.integers(8, 21))
    points = random.integers(min(plane, 0x110000), size=random.integers(1, 16))
    return "".join(chr(point) for point in points.tolist() if not 0xD800 <= point < 0xE000)


def _script(random: np.random.Generator) -> str:
    first, last = _SCRIPTS[int(random.integers(len(_SCRIPTS)))]
    return _pick(random, [chr(point) for point in range(first, last + 1)] + [" "] * 20)


def _spaces(random: np.random.Generator) -> str:
    return _pick(random, [*_SPACES, *" \n a"])


def _digits(random: np.random.Generator) -> str:
    return _pick(random, [*_DIGITS, " ", ".", ",", "a", "\n"])


def _marks(random: np.random.Generator) -> str:
    return _pick(random, [*_MARKS, *"aoeA1 .\n", "\u0627", "\u0915", "\u304b"])


def _cases(random: np.random.Generator) -> str:
    return _pick(random, [*_CASES, *"''''\u2019  "])


def _emoji(random: np.random.Generator) -> str:
    return _pick(random, [*_EMOJI, " ", "a", "!", "\ufe0f"], 9)


def _code(random: np.random.Generator) -> str:
    return _pick(random, [*_SIGNS, "if", " x", "\n    ", "\t", "==", "1", "0x1F", "('", "')"])


def _bytes(random: np.random.Generator) -> str:
    """Noise as the text that a reader makes of it."""
    noise = random.integers(256, size=random.integers(1, 30), dtype=np.uint8).tobytes()
    return noise.decode(["utf-8", "latin-1"][int(random.integers(2))], "replace")


def _mixed(random: np.random.Generator) -> str:
    return _pick(random, list(chain(_SPACES, _DIGITS, _MARKS, _CASES, _SIGNS, _EMOJI, _WORDS)))
