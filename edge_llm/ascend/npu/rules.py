"""The words of the law: types, shapes, sizes and settings that an operator takes, and what is wrong with a call.

A shape is written as the names of its sizes, such as ``blocks block_size heads*head_size``; a name that is a setting's stands
for that setting's value, and a name that occurs twice for one size.  Sources are tags, see `edge_llm.ascend.npu.chips`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

Given = Mapping[str, "Operand"]
Settings = Mapping[str, object]


@dataclass(frozen=True)
class Operand:
    """A tensor of a call: NumPy's name of its type, its shape as the operator sees it, whether it lies as NZ fractals."""

    dtype: str
    shape: tuple[int, ...]
    nz: bool = False


@dataclass(frozen=True)
class Limit:
    """What a size, a setting or a term of them may be, and who says so."""

    source: str
    least: float = 1
    most: float | None = None
    multiple: int = 1
    among: tuple[object, ...] = ()

    def allows(self, value: object) -> bool:
        if self.among:
            return value in self.among
        if not isinstance(value, int | float):
            return False
        within = self.least <= value <= (math.inf if self.most is None else self.most)
        return within and (self.multiple == 1 or value % self.multiple == 0)

    @property
    def words(self) -> str:
        if self.among:
            return _any_of(self.among)
        words = [f"at least {self.least:g}"] * (self.least > 1)
        words += [] if self.most is None else [f"at most {self.most:.0f}"]
        words += [f"a multiple of {self.multiple}"] * (self.multiple > 1)
        return " and ".join(words) or ("a number above 0" if self.least > 0 else "a number of at least 0")


@dataclass(frozen=True)
class Form:
    """One row of a table of types that go together; an operand that it does not name is absent."""

    source: str
    types: Mapping[str, tuple[object, ...]]
    """What each operand's type or each setting may be; None where it may be absent."""
    limits: Mapping[str, Limit] = field(default_factory=dict)

    def mismatches(self, given: Given, settings: Settings) -> list[str]:
        """The names of what is not of this form."""
        return [name for name in {*given, *self.types} if _value(name, given, settings) not in self.types.get(name, (None,))]


@dataclass(frozen=True)
class Layout:
    """One way in which operands lie; an operand that it does not name is absent."""

    shapes: Mapping[str, tuple[str, ...]]
    """The shapes that an operand may have; none where any will do."""
    when: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Types of operands, or settings, for which it is this one."""
    needs: tuple[str, ...] = ()
    """Operands and lists that must be there."""
    nz: Mapping[str, bool | None] = field(default_factory=dict)
    """Which operands lie as NZ, None where both will do; the others do not."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    within: Mapping[str, str] = field(default_factory=dict)
    """Terms that must not exceed others."""


class Problem(NamedTuple):
    """What is wrong with a call."""

    subject: str
    value: object
    takes: str

    def __str__(self) -> str:
        value = list(self.value) if isinstance(self.value, tuple) else "none" if self.value is None else self.value
        return f"{self.subject} is `{value}`; it takes {self.takes}"


NO_DEFAULT = object()
"""Stands for the default of a setting that has none."""


@dataclass(frozen=True)
class Operator:
    """What one operator takes on one chip."""

    namespace: str
    """Of `torch.ops`; `acl` and `atb C++` are libraries that torch_npu does not register."""
    forms: tuple[Form, ...]
    layouts: tuple[Layout, ...]
    settings: Settings = field(default_factory=dict)
    """Arguments that are no tensors, with the registry's defaults."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    zero_means: Mapping[str, str] = field(default_factory=dict)
    """Settings whose 0 stands for another setting's value."""

    @property
    def operands(self) -> tuple[str, ...]:
        """All tensors that the law knows, in order."""
        return tuple(dict.fromkeys(chain(*(layout.shapes for layout in self.layouts))))

    def problem(self, operands: Mapping[str, Operand | None], asked: Settings) -> Problem | None:
        """The first thing that is wrong with a call; None if nothing is."""
        given = {name: operand for name, operand in operands.items() if operand is not None}
        settings = {**self.settings, **{name: plain(value) for name, value in asked.items()}}
        plainly = next(chain(self._unknown(given, asked), self._missing(settings), _empty(given)), None)
        if plainly is not None:
            return plainly
        forms = [form for form in self.forms if not form.mismatches(given, settings)]
        if not forms:
            return self._wrong_type(given, settings)
        trials = [_Trial(self, form, layout, given, settings) for form in forms for layout in self.layouts]
        problems = min(trials, key=lambda trial: trial.score).problems
        return problems[0] if problems else None

    def _wrong_type(self, given: Given, settings: Settings) -> Problem:
        """By the forms that are nearest: to what is asked for, to most operands, to what is given, to the first operands."""
        order = [*self.operands, *self.settings]
        near: dict[tuple[int, ...], dict[str, list[object]]] = {}
        for form in self.forms:
            wrong = sorted(form.mismatches(given, settings), key=order.index)
            asked = sum(name in self.settings for name in wrong)
            nearness = asked, len(wrong), wrong[0] not in given, -order.index(wrong[0])
            near.setdefault(nearness, {}).setdefault(wrong[0], []).extend(form.types.get(wrong[0], (None,)))
        name, allowed = next(iter(near[min(near)].items()))
        return Problem(name, _value(name, given, settings), _any_of(allowed))

    def _unknown(self, given: Given, asked: Settings) -> Iterator[Problem]:
        for name in (*given, *asked):
            if name not in self.operands and name not in self.settings:
                value = given[name].dtype if name in given else asked[name]
                yield Problem(name, value, f"{_any_of((*self.operands, *self.settings), 'and')}, and no other arguments")

    def _missing(self, settings: Settings) -> Iterator[Problem]:
        for name, value in settings.items():
            if value is NO_DEFAULT:
                yield Problem(name, None, self.limits[name].words if name in self.limits else "a value")


def types(**names: str | tuple[object, ...]) -> dict[str, tuple[object, ...]]:
    """Types of a form; ``int32|-`` is int32 or absent."""
    return {name: _values(value) for name, value in names.items()}


def shapes(**names: str) -> dict[str, tuple[str, ...]]:
    """Shapes of a layout; ``n|1`` is either, and an empty text is any."""
    return {name: tuple(filter(None, value.split("|"))) for name, value in names.items()}


def plain(value: object) -> object:
    """``value`` without torch: the name of a type, and a tuple for a list."""
    if value is None or value is NO_DEFAULT or isinstance(value, str | int | float | tuple):
        return value
    return tuple(value) if isinstance(value, list) else str(value).removeprefix("torch.")


def _values(value: str | tuple[object, ...]) -> tuple[object, ...]:
    return tuple(None if one == "-" else one for one in value.split("|")) if isinstance(value, str) else value


def _value(name: str, given: Given, settings: Settings) -> object:
    return given[name].dtype if name in given else settings.get(name)


def _any_of(values: Sequence[object], joined: str = "or") -> str:
    words = list(dict.fromkeys("none" if value is None else str(value) for value in values))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joined} {words[-1]}"


def _empty(given: Given) -> Iterator[Problem]:
    for name, operand in given.items():
        if any(size < 1 for size in operand.shape):
            yield Problem(name, operand.shape, "no empty side")


@functools.cache
def _parsed(term: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The factors above and below the line of a term such as ``heads*head_size/16``."""
    above, *below = term.split("/")
    return tuple(above.split("*")), tuple(below)


class _Trial:
    """A call against one form and one layout."""

    def __init__(self, operator: Operator, form: Form, layout: Layout, given: Given, settings: Settings) -> None:
        self._layout, self._given, self._settings = layout, given, settings
        self._sizes = dict(_sizes(settings, operator.zero_means))
        self._from: dict[str, str] = {}
        """The operand that a size was read from."""
        placed = list(self._placed())
        fitting = list(self._fitting())
        limited = list(chain(*map(self._limited, (operator.limits, form.limits, layout.limits)), self._bounded()))
        self.score = len(placed), len(fitting), len(limited)
        self.problems = [*placed, *limited, *fitting]

    def _placed(self) -> Iterator[Problem]:
        """Operands that are not of this layout at all."""
        layout, given = self._layout, self._given
        for name, values in layout.when.items():
            if _value(name, given, self._settings) not in values:
                yield Problem(name, _value(name, given, self._settings), _any_of(values))
        for name in layout.needs:
            if name not in given and self._settings.get(name) is None:
                yield Problem(name, None, "one here")
        for name, operand in given.items():
            nz = layout.nz.get(name, False)
            if name not in layout.shapes:
                yield Problem(name, operand.shape, "none here")
            elif nz is not None and nz != operand.nz:
                yield Problem(f"the format of {name}", *(("NZ", "ND") if operand.nz else ("ND", "NZ")))

    def _fitting(self) -> Iterator[Problem]:
        """Operands of another shape; the sizes of the others are read."""
        for name, patterns in self._layout.shapes.items():
            operand = self._given.get(name)
            if operand is not None and patterns and not any(self._fits(name, operand, pattern) for pattern in patterns):
                yield Problem(name, operand.shape, self._shapes(patterns))

    def _fits(self, name: str, operand: Operand, pattern: str) -> bool:
        terms, shape = pattern.split(), operand.shape
        if terms[0] == "...":
            terms = terms[1:]
            shape = shape[len(shape) - len(terms) :]
        before = dict(self._sizes)
        if len(terms) == len(shape) and all(self._takes(term, size) for term, size in zip(terms, shape, strict=True)):
            self._from |= dict.fromkeys(self._sizes.keys() - before.keys(), name)
            return True
        self._sizes = before
        return False

    def _takes(self, term: str, size: int) -> bool:
        """Whether ``term`` is ``size``; its only unknown factor becomes what makes it so."""
        above, below = _parsed(term)
        unknown = [one for one in above if not one.isdigit() and one not in self._sizes]
        known = math.prod(self._number(one) for one in above if one not in unknown)
        size *= math.prod(self._number(one) for one in below)
        if not unknown:
            return known == size
        if len(unknown) > 1 or known == 0 or size % known:
            return False
        self._sizes[unknown[0]] = size // known
        return True

    def _number(self, factor: str) -> int:
        return int(factor) if factor.isdigit() else self._sizes[factor]

    def _limited(self, limits: Mapping[str, Limit]) -> Iterator[Problem]:
        for term, limit in limits.items():
            if term in self._settings:
                value = self._settings[term]
                if not limit.allows(value):
                    yield Problem(term, value, limit.words)
            elif (known := self._ratio(term)) is not None:
                above, below = known
                value = above // below if above % below == 0 else f"{above}/{below}"
                if not limit.allows(value):
                    yield Problem(*self._said(term, value), limit.words)

    def _bounded(self) -> Iterator[Problem]:
        for term, bound in self._layout.within.items():
            value, most = self._ratio(term), self._ratio(bound)
            if value is not None and most is not None and value[0] > most[0]:
                yield Problem(*self._said(term, value[0]), f"at most {bound}, which is {most[0]}")

    def _ratio(self, term: str) -> tuple[int, int] | None:
        """What ``term`` is, above and below the line; None if a size of it is not known, or nothing is below."""
        above, below = _parsed(term)
        if any(not one.isdigit() and one not in self._sizes for one in (*above, *below)):
            return None
        divisor = math.prod(map(self._number, below))
        return (math.prod(map(self._number, above)), divisor) if divisor else None

    def _said(self, term: str, value: object) -> tuple[str, object]:
        """A term by the operand that its last size is of."""
        above, below = _parsed(term)
        owner = next((self._from[one] for one in reversed((*above, *below)) if one in self._from), None)
        if owner is None:
            return term, value
        return f"{owner} is `{list(self._given[owner].shape)}`: its {term}", value

    def _shapes(self, patterns: Sequence[str]) -> str:
        """The shapes in words, and what is known of their sizes."""
        written = " or ".join(f"[{', '.join(pattern.split())}]" for pattern in patterns)
        names = dict.fromkeys(chain(*map(_names, patterns)))
        known = ", ".join(f"{name} = {self._sizes[name]}" for name in names if name in self._sizes)
        return f"{written} with {known}" if known else written


def _names(pattern: str) -> Iterator[str]:
    return (factor for term in pattern.split() for part in _parsed(term) for factor in part if factor.isidentifier())


def _sizes(settings: Settings, zero_means: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """The numbers among the settings, and of a list its length and its largest entry."""
    for name, value in settings.items():
        if value == 0 and name in zero_means:
            value = settings[zero_means[name]]
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, value
        elif isinstance(value, tuple):
            yield f"{name}.count", len(value)
            yield f"{name}.largest", max(value, default=0)
