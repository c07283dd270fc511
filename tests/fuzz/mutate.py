"""Changes to values, bytes and texts that a program may not expect, all of them made by one `random.Random`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

ODD = (
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e-300, 1e300, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 10**400,
    "", " ", "0", "-1", "null", "\0", "\n", "\r\n", "\x1b[2J", "\ud800", "\u202e", "\U0010ffff", "é" * 200, "a" * 5000,
    "{{", "{%", "..", "/", "$ref", "#", "<|im_start|>", "<|eos|>", "</s>", "%s", "nan", "Infinity",
    [], {}, [[]], [{}], {"": None}, [None], [0], [""], ["a", 1], {"type": None}, {"a": {"a": {"a": {}}}},
)  # fmt: skip

LONGEST = 2_000_000
"""Characters of a list that was repeated, about."""


def nested(random: Random, depth: int) -> Any:
    """Lists and objects inside each other."""
    value: Any = random.choice(ODD)
    for _ in range(depth):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def odd_value(random: Random, words: Sequence[Any] = ()) -> Any:
    """A value out of the ordinary, or one of ``words``."""
    pick = random.random()
    if words and pick < 0.5:
        return copy.deepcopy(random.choice(words))
    if pick < 0.9:
        return copy.deepcopy(random.choice(ODD))
    if pick < 0.95:
        return nested(random, random.choice((3, 40, 63, 64, 65, 200)))
    return random.choice(("x", "é", " ", "\n", "ab ")) * random.choice((300, 5000, 70_000))


def changed(value: Any, random: Random, words: Sequence[Any] = (), steps: int = 1) -> Any:
    """A copy of a JSON ``value`` with ``steps`` places changed: replaced, removed, added, doubled or repeated."""
    box = [copy.deepcopy(value)]
    for _ in range(steps):
        if places := list(_places(box)):
            _change(*random.choice(places), random, words)
    return box[0] if box else None


def _places(value: Any) -> Any:
    """Every (holder, key) below ``value``."""
    stack = [value]
    while stack:
        holder = stack.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], dict | list):
                stack.append(holder[key])


def _change(holder: Any, key: Any, random: Random, words: Sequence[Any]) -> None:
    how = random.random()
    if how < 0.55:
        holder[key] = odd_value(random, words)
    elif how < 0.65:
        del holder[key]
    elif isinstance(holder[key], list) and holder[key] and how < 0.8:
        most = LONGEST // len(repr(holder[key]))
        holder[key] = holder[key] * min(random.choice((2, 20, 700)), max(1, most))
    elif isinstance(holder[key], str) and how < 0.9:
        holder[key] = changed_text(holder[key], random, [str(word) for word in words[:50]])
    elif isinstance(holder, dict):
        holder[str(odd_value(random, words))[:200]] = odd_value(random, words)
    else:
        holder.insert(random.randrange(len(holder) + 1), odd_value(random, words))


def changed_bytes(data: bytes, random: Random) -> bytes:
    """``data`` with some bytes flipped, cut out, doubled, or put in."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        at = random.randrange(len(made) + 1)
        length = random.choice((1, 1, 2, 8, 100))
        how = random.random()
        if how < 0.5 and at < len(made):
            made[at] ^= 1 << random.randrange(8)
        elif how < 0.65:
            del made[at : at + length]
        elif how < 0.8:
            made[at:at] = made[at : at + length] * random.choice((1, 2, 50))
        elif how < 0.95:
            made[at:at] = random.randbytes(length)
        else:
            del made[at:]
    return bytes(made)


def changed_text(text: str, random: Random, words: Sequence[str]) -> str:
    """``text`` with words put in, pieces cut out, moved or repeated."""
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        at = random.randrange(len(text) + 1)
        until = min(len(text), at + random.choice((1, 3, 10, 60)))
        how = random.random()
        if how < 0.5 and words:
            text = text[:at] + random.choice(words) + text[at:]
        elif how < 0.7:
            text = text[:at] + text[until:]
        elif how < 0.9:
            text = text[:until] + text[at:until] * random.choice((1, 2, 30)) + text[until:]
        else:
            text = text[:at] + str(random.choice(ODD)) + text[until:]
    return text
