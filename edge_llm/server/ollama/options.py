"""The fields that several of Ollama's requests share: a model, how long it stays, and the options of its answers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from edge_llm.config import GenerationParams
from edge_llm.engine.request import Request
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.fields import Rule, refusals, refused
from edge_llm.server.schemas import Body, Sampling

_NUMBER, _UNIT = r"\d+(?:\.\d*)?", r"ns|us|µs|ms|s|m|h"
_DURATION = re.compile(rf"[+-]?(?:{_NUMBER}(?:{_UNIT}))*{_NUMBER}(?:{_UNIT})?", re.ASCII)
_PART = re.compile(rf"({_NUMBER})({_UNIT})?", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_MOST_CHARACTERS = 64


def _whole(given: Any) -> Any:
    """A number without a fraction as an integer: clients in languages that have one kind of number send 4.0."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _any_seed(given: Any) -> Any:
    """-1, which is any seed, for every negative one."""
    given = _whole(given)
    return -1 if isinstance(given, int) and not isinstance(given, bool) and given < 0 else given


Whole = Annotated[int | None, BeforeValidator(_whole)]


class Options(Sampling):
    """The options of a model's answers.  Hints about hardware have no effect, and are named."""

    num_predict: Whole = Field(None, ge=-2)
    """-1 and -2 are as many tokens as fit."""
    num_ctx: Whole = Field(None, ge=1)
    """Tokens of prompt and answer together; a context is not made longer by it."""
    temperature: float | None = Field(None, ge=0.0, le=100.0)
    top_k: Whole = Field(None, ge=-1)
    seed: Annotated[int | None, BeforeValidator(_any_seed)] = None
    repeat_last_n: Whole = Field(None, ge=-1)
    """0 turns the penalty of repeats off; else it looks at the whole text, as at -1."""

    rules: ClassVar[Sequence[Rule]] = (*Sampling.rules, refused("tfs_z", 0, 1))
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(rules)

    def params(self, defaults: GenerationParams, vocab_size: int) -> GenerationParams:
        """``defaults`` with what these options say otherwise."""
        params = super().params(defaults, vocab_size)
        return replace(params, repetition_penalty=1.0) if self.repeat_last_n == 0 else params

    def ignored(self, template: str = "") -> list[str]:
        return super().ignored(template) + (["repeat_last_n"] if (self.repeat_last_n or 0) > 0 else [])

    def _token_limit(self) -> int | None:
        return None if self.num_predict == -2 else super()._token_limit()

    def within(self, request: Request, context: int) -> Request:
        """``request`` to a model of ``context`` tokens, which ends where `num_ctx` tokens are there.

        Raises `ContextOverflow`.
        """
        if self.num_ctx is None or self.num_ctx >= context:
            return request
        left = self.num_ctx - len(request.prompt)
        if left < 1:
            raise ContextOverflow(len(request.prompt), self.num_ctx)
        most = left if request.params.max_tokens is None else min(left, request.params.max_tokens)
        return replace(request, params=replace(request.params, max_tokens=most))


class Asked(Body):
    """A request for a model."""

    model: str | None = Field(None, max_length=limits.MODEL_CHARACTERS)
    keep_alive: float | str | None = None
    """Seconds, or a duration such as `5m`; a negative one is for ever."""
    options: Options | None = None

    @property
    def stays(self) -> float | None:
        """Seconds that the model stays loaded when the request has ended; None: as the server has it.  Raises `UsageError`."""
        return None if self.keep_alive is None else _seconds(self.keep_alive)

    def _check_extra(self) -> None:
        super()._check_extra()
        _ = self.stays
        if self.options is not None:
            try:
                self.options._check_extra()
            except UsageError as error:
                raise UsageError(str(error), param=f"options.{error.param}") from None


class ShowBody(Body):
    """A model by its name, or by what older clients call it."""

    model: str | None = Field(None, max_length=limits.MODEL_CHARACTERS)
    name: str | None = Field(None, max_length=limits.MODEL_CHARACTERS)
    verbose: bool | None = None

    @property
    def named(self) -> str:
        """The model's name.  Raises `UsageError` where there is none."""
        if not (name := self.model or self.name):
            raise UsageError("model is missing; name one of GET /api/tags", param="model")
        return name


def _seconds(given: float | str) -> float:
    """The seconds of ``given``; infinity for what is negative."""
    text = str(given).strip()
    if len(text) > _MOST_CHARACTERS or (isinstance(given, str) and not _DURATION.fullmatch(text)):
        raise UsageError(f"keep_alive must be seconds, or a duration such as `5m`, got `{shown(text, 40)}`", param="keep_alive")
    if isinstance(given, str):
        total = math.fsum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
        return math.inf if text.startswith("-") and total else total
    return math.inf if given < 0 else float(given)
