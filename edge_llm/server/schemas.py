"""What every request body has in common: strict types, bounds, and fields without effect, which the answer names."""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails

from edge_llm.config import GenerationParams
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.fields import SAMPLING, Rule, refusals
from edge_llm.strict_json import parse_object

log = logging.getLogger("edge_llm.server")

IGNORED_HEADER = "x-edge-llm-ignored"
"""The answer's header that names the request's fields without effect."""
MOST_NAMED = 16
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_SAID = 1000
_said: set[str] = set()
"""Names of fields without effect that the log has already, as it has them: a client chooses how long they are."""


def _first_error_only(schema: Any) -> Any:
    """``schema`` with lists that stop at their first wrong item: a million errors would take gigabytes."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _first_error_only(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _first_error_only(part)
    return schema


class Body(BaseModel):
    """A request body.

    A field is one of: declared (honoured), in ``cannot`` (refused, unless its value asks for nothing), or another, known to
    the API or not (without effect: the answer's header names it, and the log once).
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, protected_namespaces=())
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of the API that this server cannot honour, each with the values that ask for nothing (null always does)."""
    rules: ClassVar[Sequence[Rule]] = ()
    """What is known of fields that are not declared; ``cannot`` are those of them that are refused."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _first_error_only(handler(source))

    @classmethod
    def parse(cls, data: bytes, context: int | None = None) -> Self:
        """The body in ``data``; raises `UsageError` that names the field."""
        most = limits.body_bytes(context)
        raw = parse_object(data, "request body", error=UsageError, max_bytes=most, max_depth=limits.JSON_DEPTH)
        try:
            body = cls.model_validate(raw)
        except ValidationError as failure:
            raise _refusal(failure.errors()[0]) from None
        body._check_extra()
        return body

    def ignored(self, template: str = "") -> list[str]:
        """Names of the fields that have no effect, inner ones as ``text.verbosity``; ``template`` is the chat template."""
        unknown = [name for name, value in (self.model_extra or {}).items() if value is not None and name not in self.cannot]
        inner = {name: value for name in type(self).model_fields if isinstance(value := getattr(self, name), Body)}
        fields = unknown + [f"{name}.{one}" for name, body in inner.items() for one in body.ignored(template)]
        return list(dict.fromkeys((*fields, *self.left_out())))

    def left_out(self) -> Sequence[str]:
        """Names of what does not reach the model inside of messages and tools."""
        return ()

    def _check_extra(self) -> None:
        for name, value in (self.model_extra or {}).items():
            if name in self.cannot and value is not None and value not in self.cannot[name]:
                raise UsageError(f"`{name}` is not supported here; leave it out", param=name)


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names ``names``; names beyond `MOST_NAMED`, or with unusual characters, are only counted.

    The log names each once.
    """
    for name in names:
        brief = shown(name)
        if brief not in _said and len(_said) < _MOST_SAID:
            _said.add(brief)
            log.warning("the request field `%s` has no effect here", brief)
    plain = [name for name in names if _PLAIN_NAME.fullmatch(name)][:MOST_NAMED]
    more = [f"{len(names) - len(plain)} more"] if len(names) > len(plain) else []
    return {IGNORED_HEADER: ", ".join(plain + more)} if names else {}


def _refusal(error: ErrorDetails) -> UsageError:
    param, value = _param(error["loc"]), error["input"]
    brief = reprlib.repr(value) if isinstance(value, list | dict) else value
    given = "" if error["type"] == "missing" else f", got `{shown(brief, 60)}`"
    return UsageError(f"{param}: {error['msg'].lower()}{given}", param=param)


def _param(location: tuple[int | str, ...]) -> str:
    """``messages[0].role``; the names that pydantic gives to the members of a union are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool", "dict", "list"):
            text += f".{part}" if text else part
    return text


def _few_biases(given: Any) -> Any:
    if isinstance(given, dict) and len(given) > limits.LOGIT_BIASES:
        raise UsageError(f"logit_bias takes at most {limits.LOGIT_BIASES} tokens", param="logit_bias")
    return given


class Sampling(Body):
    """How tokens are chosen, in OpenAI's names and the extra ones that local servers share."""

    rules: ClassVar[Sequence[Rule]] = SAMPLING
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(SAMPLING)

    default_max_tokens: ClassVar[int | None] = None

    max_tokens: int | None = Field(None, ge=-1)
    max_completion_tokens: int | None = Field(None, ge=-1)
    max_output_tokens: int | None = Field(None, ge=-1)
    max_new_tokens: int | None = Field(None, ge=-1)
    n_predict: int | None = Field(None, ge=-1)
    num_predict: int | None = Field(None, ge=-1)
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, ge=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: list[str] | None = None
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_few_biases)] = None
    seed: int | None = None
    stop: str | list[str] | None = None
    allowed_token_ids: list[int] | None = None
    """vLLM's, as the next one."""
    logprob_token_ids: list[int] | None = Field(None, max_length=limits.LOGPROB_TOKENS)
    stop_token_ids: list[int] | None = Field(None, max_length=limits.LOGIT_BIASES)
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    loop_guard: bool | None = None
    skip_special_tokens: bool | None = None

    def params(self, defaults: GenerationParams, vocab_size: int) -> GenerationParams:
        """``defaults`` (`Engine.served`) with what this request says otherwise."""
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),  # -1 is vLLM's "all"
            "min_p": self.min_p,
            "repetition_penalty": next(iter(self._given(_PENALTIES).values()), None),
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "dry_multiplier": self.dry_multiplier,
            "dry_base": self.dry_base,
            "dry_allowed_length": self.dry_allowed_length,
            "dry_sequence_breakers": self.dry_sequence_breakers,
            "prompt_logprobs": self.scored,
            "seed": None if self.seed == -1 else self.seed,  # -1 is llama.cpp's "any"
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
            "loop_guard": self.loop_guard,
            "skip_special_tokens": self.skip_special_tokens,
            "logit_bias": None if self.logit_bias is None else _biases(self.logit_bias, vocab_size),
            "stop": _stops(self.stop),
            "stop_tokens": _token_set(self.stop_token_ids, vocab_size, "stop_token_ids"),
            "allowed_tokens": _token_set(self.allowed_token_ids, vocab_size, "allowed_token_ids"),
            "logprob_tokens": tuple(check_tokens(self.logprob_token_ids or [], vocab_size, "logprob_token_ids")),
        }
        given = {name: value for name, value in given.items() if value is not None}
        return replace(defaults, **given, max_tokens=self._token_limit())

    @property
    def scored(self) -> int | None:
        """The likeliest tokens that are wanted beside each of the prompt; None if nothing is asked of it."""
        return None

    def ignored(self, template: str = "") -> list[str]:
        overruled = [name for names in (_TOKEN_LIMITS, _PENALTIES) for name in list(self._given(names))[1:]]
        return super().ignored(template) + overruled

    def _token_limit(self) -> int | None:
        """Most tokens of the answer; -1 is as many as fit, like None."""
        given = self._given(_TOKEN_LIMITS)
        for name, limit in given.items():
            if limit == 0 and self.scored is None:
                raise UsageError(f"{name} must be at least 1, or -1 for as many as fit, got `0`", param=name)
        limit = next(iter(given.values()), self.default_max_tokens)
        return None if limit == -1 else limit

    def _limits(self) -> Iterator[int]:
        """Most tokens of the answer, as the request has them; the first counts."""
        yield from self._given(_TOKEN_LIMITS).values()

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of ``names``, which are names of one thing, that the request uses; the first counts."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


_TOKEN_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_new_tokens", "n_predict", "num_predict")
_MOST_WRONG = 8
"""Wrong keys that an error names."""
_PENALTIES = ("repetition_penalty", "repeat_penalty")


def _stops(stop: str | list[str] | None) -> tuple[str, ...] | None:
    return None if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def _biases(given: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    known = [key.isascii() and key.isdecimal() and len(key) < 12 and int(key) < vocab_size for key in given]
    if wrong := [f"`{shown(key, 40)}`" for key, is_known in zip(given, known, strict=True) if not is_known]:
        told = f"{', '.join(wrong[:_MOST_WRONG])} {'is' if len(wrong) == 1 else 'are'} not"
        raise UsageError(f"logit_bias: {told} a token id below {vocab_size}; POST /tokenize gives ids", param="logit_bias")
    return tuple((int(key), float(value)) for key, value in given.items())


def _token_set(ids: list[int] | None, vocab_size: int, param: str) -> frozenset[int] | None:
    return None if ids is None else frozenset(check_tokens(ids, vocab_size, param))


def check_tokens(ids: list[int], vocab_size: int, param: str) -> list[int]:
    """``ids`` if all are in the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"{param}: token id `{shown(token)}` is outside the vocabulary of {vocab_size} tokens", param=param
            )
    return ids


def choices(params: GenerationParams, n: int) -> list[GenerationParams]:
    """``params`` for ``n`` answers; a fixed seed gives each its own, repeatably."""
    if params.seed is None:
        return [params] * n
    return [replace(params, seed=(params.seed + index) % 2**64) for index in range(n)]


class NamesModel(Body):
    """A request that says which model is to answer."""

    model: str | None = Field(None, max_length=limits.MODEL_CHARACTERS)
    keep_alive: str | float | None = None
    """How long it stays loaded then; see `keep_alive_seconds`."""


class StreamOptions(Body):
    """What a stream has beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Streaming(Sampling, NamesModel):
    """A request whose answer can be streamed in OpenAI's chunks, with what vLLM tells of its tokens."""

    n: int | None = Field(None, ge=1, le=limits.CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    """vLLM's, as the next ones."""
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """In log-probabilities."""

    @property
    def scored(self) -> int | None:
        return self.prompt_logprobs

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk has the usage so far: where the usage is wanted at all, as with vLLM."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats and self.wants_usage)

    def _check_extra(self) -> None:
        super()._check_extra()
        if self.stream and self.prompt_logprobs is not None:
            raise UsageError("prompt_logprobs come in no stream; leave `stream` out", param="prompt_logprobs")
        if self.stream_options is not None and not self.stream:
            raise UsageError("stream_options needs `stream`: true", param="stream_options")
