"""Numbers of a range as expressions of terminals: exact for any number of digits, and never endless.

    integers(-5, 300)          # an expression that matches -5, 0 and 300, and no other text than integers in between
    integers(0, None)          # a side without a bound ends after 16 digits
    numbers(Fraction(1, 2), True, None, False)    # above one half
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

MOST_DIGITS = 16
"""Of a number's whole part, and of its fraction, where nothing bounds them: a small model writes zeros without end."""
_NUMBER = rf"-?(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})(\.[0-9]{{1,{MOST_DIGITS}}})?"
FREE_INTEGER = rf"/-?(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})/"
PLAIN_NUMBER = f"/{_NUMBER}/"
"""Without an exponent."""
FREE_NUMBER = rf"/{_NUMBER}([eE][+-]?[0-9]{{1,2}})?/"
WITH_FRACTION = r"/-?[0-9]{1,9}\.[0-9]{0,5}[1-9]/"
"""Numbers that are no integers, for readers with 64-bit floats, too."""
_EXACT_DIGITS = 15
"""Of a 64-bit float; so that what is below a bound does not become the bound where it is read."""


def integers(least: int | None, most: int | None) -> str | None:
    """The integers from ``least`` to ``most``; None where there are none."""
    if least is None and most is None:
        return FREE_INTEGER
    least = -_widest(most) if least is None else least
    most = _widest(least) if most is None else most
    options = []
    if least < 0:
        options += [f"-({one})" for one in _whole(max(1, -most), -least)]
    if most >= 0:
        options += _whole(max(0, least), most)
    return f"/{_either(options)}/" if options else None


def numbers(least: Fraction | None, above: bool, most: Fraction | None, below: bool) -> str | None:
    """The numbers from ``least`` to ``most``, without them where ``above`` and ``below`` say so; None where there are none."""
    if least is None and most is None:
        return FREE_NUMBER
    if least is not None and most is not None and (least > most or (least == most and (above or below))):
        return None
    widest = max(len(str(abs(int(one)))) for one in (least, most) if one is not None)
    size = _Size(max(MOST_DIGITS, widest + 1), max(1, _EXACT_DIGITS - widest))
    sides = [] if least is None else [_signed(least, above, size, "", "-")]
    if most is not None:
        sides.append(_signed(-most, below, size, "-", ""))
    return " & ".join(f"/{side}/" for side in sides)


def spellings(value: Fraction) -> str:
    """Every text without an exponent that is the number ``value``; what is written otherwise is no text of `numbers`."""
    whole, fraction = _decimal(abs(value))
    text = whole + (rf"\.{fraction}0*" if fraction else r"(\.0+)?")
    return f"/{'-?' if value == 0 else '-' if value < 0 else ''}{text}/"


def with_fractions(step: Fraction) -> str | None:
    """Numbers that are multiples of ``step``, where 1 is one and few fractions are; None where it is not so."""
    if step <= 0 or (1 / step).denominator != 1:
        return None
    places = next((n for n in range(1, MOST_DIGITS + 1) if (step * 10**n).denominator == 1), None)
    if places is None:
        return r"/-?[0-9]+(\.0)?/" if step == 1 else None
    if step == Fraction(1, 10**places):
        return rf"/-?[0-9]+(\.[0-9]{{1,{places}}})?/"
    if 1 / step > 400:
        return None
    fractions = [f"{int(count * step * 10**places):0{places}}".rstrip("0") for count in range(1, int(1 / step))]
    return rf"/-?[0-9]+(\.({_either([*fractions, '0'])})0{{0,{places}}})?/"


def multiples(step: int) -> str | None:
    """Integers that are multiples of ``step``, where their last digits tell; None where they do not."""
    places = next((n for n in range(1, 4) if 10**n % step == 0), None)
    if places is None:
        return "/-?[0-9]+/" if step == 1 else None
    endings = [f"{count:0{places}}" for count in range(0, 10**places, step)]
    short = [str(count) for count in range(0, 10 ** (places - 1), step)]
    return f"/-?([0-9]*({_either(endings)})|{_either(short)})/"


def _widest(beside: int | None) -> int:
    digits = max(MOST_DIGITS, len(str(abs(beside))) + 1 if beside is not None else 0)
    return int(10**digits - 1)


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"({'|'.join(options)})"


def _whole(least: int, most: int) -> list[str]:
    """Expressions of the whole numbers from ``least`` to ``most``, none of them negative."""
    options = []
    while least <= most:
        width = len(str(least))
        end = min(most, 10**width - 1)
        if least > 1 and least == 10 ** (width - 1) and len(str(most + 1)) > width + 1:  # several lengths, whole
            options.append(f"[1-9][0-9]{{{width - 1},{len(str(most + 1)) - 2}}}")
            least = int(10 ** (len(str(most + 1)) - 1))
            continue
        options.append(_between(str(least), str(end)))
        least = end + 1
    return options


def _between(least: str, most: str) -> str:
    """Digits from ``least`` to ``most``, which are as many."""
    if least == most:
        return least
    if least[0] == most[0]:
        return least[0] + _between(least[1:], most[1:])
    rest = len(least) - 1
    first, last = int(least[0]), int(most[0])
    options = []
    if least[1:].strip("0"):
        options.append(least[0] + _between(least[1:], "9" * rest))
        first += 1
    if most[1:].strip("9"):
        options.append(most[0] + _between("0" * rest, most[1:]))
        last -= 1
    if first <= last:
        options.append(_digit(first, last) + (f"[0-9]{{{rest}}}" if rest else ""))
    return _either(options)


def _digit(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


class _Size(NamedTuple):
    """The most digits before and behind the point."""

    whole: int
    fraction: int

    @property
    def rest(self) -> str:
        """The point and what may stand behind it."""
        return rf"(\.[0-9]{{1,{self.fraction}}})?"


def _signed(least: Fraction, above: bool, size: _Size, sign: str, other: str) -> str:
    """Numbers from ``least`` on, where ``sign`` and ``other`` are the signs of those on its side of zero, and beyond."""
    if least > 0 or (least == 0 and above):
        return _either([f"{sign}({one})" for one in _at_least(least, above, size)])
    beyond = [f"{other}({one})" for one in _at_most(-least, above, size)]
    return _either([f"{sign}(0|[1-9][0-9]{{0,{size.whole - 1}}}){size.rest}", *beyond])


def _at_least(bound: Fraction, above: bool, size: _Size) -> list[str]:
    """Numbers without a sign that are at least ``bound``, or above it."""
    whole, fraction = _decimal(bound, up=True)
    options = [f"{one}{size.rest}" for one in _whole(int(whole) + 1, 10**size.whole - 1)]
    more = f"[0-9]{{0,{size.fraction}}}"
    for at, digit in enumerate(fraction):
        if digit < "9":
            options.append(rf"{whole}\.{fraction[:at]}{_digit(int(digit) + 1, 9)}{more}")
    if above and bound == Fraction(f"{whole}.{fraction or 0}"):
        options.append(rf"{whole}\.{fraction}[0-9]{{0,{max(0, size.fraction - len(fraction) - 1)}}}[1-9]{more}")
    else:
        options.append(rf"{whole}\.{fraction}{more}" if fraction else f"{whole}{size.rest}")
    return options


def _at_most(bound: Fraction, below: bool, size: _Size) -> list[str]:
    """Numbers without a sign that are at most ``bound``, or below it."""
    whole, fraction = _decimal(bound)
    options = [f"{one}{size.rest}" for one in _whole(0, int(whole) - 1)]
    for at, digit in enumerate(fraction):
        options.append(whole + (rf"\.{fraction[:at]}" if at else ""))
        if digit > "0":
            more = f"[0-9]{{0,{max(0, size.fraction - at - 1)}}}"
            options.append(rf"{whole}\.{fraction[:at]}{_digit(0, int(digit) - 1)}{more}")
    if not below or bound != Fraction(f"{whole}.{fraction or 0}"):
        zeros = f"0{{0,{size.fraction}}}"
        options.append(rf"{whole}\.{fraction}{zeros}" if fraction else rf"{whole}(\.0{{1,{size.fraction}}})?")
    return options


def _decimal(value: Fraction, *, up: bool = False) -> tuple[str, str]:
    """Digits before and behind the point, at most some 40 of them, rounded towards zero, or away from it."""
    places = next((n for n in range(40) if (value * 10**n).denominator == 1), 40)
    scaled = value * 10**places
    count = -int(-scaled // 1) if up else int(scaled // 1)
    digits = str(count).rjust(places + 1, "0")
    return digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
