"""POST /completion, /infill and, without /v1, /completions: text goes on, in llama.cpp's fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.config import GenerationParams
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Answer, Delta, Finish, PromptProgress
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.fields import LLAMA_CPP, Rule, refusals
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.llama_settings import generation_settings, llama_timings, probabilities, stop_fields
from edge_llm.server.problems import Problem
from edge_llm.server.progress import ProgressTeller
from edge_llm.server.prompt_shapes import prompts_of, text_of
from edge_llm.server.replies import Asking, answered
from edge_llm.server.schemas import Body, Streaming, check_tokens, choices
from edge_llm.server.stream import event
from edge_llm.strict_json import parse_object
from edge_llm.text.infill import infill_prompt

NO_BIAS = -100.0
"""What "never" becomes: the model's own logits lie far within."""


class NativeBody(Streaming, Guided):
    """The body of llama.cpp's completion."""

    prompt: Any = None
    biases: list[Any] | dict[str, Any] | None = None
    """llama.cpp's `logit_bias`: pairs, or an object, of a token's id or a text and a number, or false for never."""
    n_probs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    response_fields: list[str] | None = Field(None, max_length=limits.TOOLS)

    rules: ClassVar[Sequence[Rule]] = LLAMA_CPP
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(LLAMA_CPP)

    @model_validator(mode="before")
    @classmethod
    def _own_biases(cls, given: Any) -> Any:
        if isinstance(given, dict) and (biases := given.get("logit_bias")) is not None:
            if isinstance(biases, list | dict) and len(biases) > limits.LOGIT_BIASES:
                raise UsageError(f"logit_bias takes at most {limits.LOGIT_BIASES} tokens", param="logit_bias")
            return {name: value for name, value in given.items() if name != "logit_bias"} | {"biases": biases}
        return given

    def reply(self, host: ModelHost, model: str) -> NativeReply:
        """What answers this request."""
        engine = host.engine
        prompts = self.prompts(host)
        params = self.native_params(engine)
        requests = [
            replace(engine.token_request(tokens, params), params=one)
            for tokens in prompts
            for one in choices(params, self.n or 1)
        ]
        return NativeReply(self, engine, model, requests, as_list=len(requests) > 1)

    def prompts(self, host: ModelHost) -> list[list[int]]:
        """The token ids of each prompt."""
        if self.prompt is None:
            raise UsageError("prompt is missing; give a text", param="prompt")
        return prompts_of(host, self.prompt, "prompt", limits.PROMPTS, partial(_encode, host.engine))

    def native_params(self, engine: Engine) -> GenerationParams:
        """How tokens are chosen."""
        params = replace(
            self.params(engine.served, engine.config.vocab_size),
            logprobs=self.n_probs or None,
            grammar=self.answer_grammar(engine.tokenizer),
        )
        if self.biases:
            params = replace(params, logit_bias=tuple(_biases(engine, self.biases).items()))
        if self.n_probs and self.post_sampling_probs and not _is_plain(params):
            raise UsageError(
                "post_sampling_probs can be told of plain sampling alone: with temperature 0, or with temperature 1 and "
                "without top_k, top_p, min_p, penalties, biases and grammars",
                param="post_sampling_probs",
            )
        return params


async def native_completion(request: Request) -> Response:
    """Continue one or several prompts in llama.cpp's shape."""
    return await answered(request, NativeBody)


def either_completion(openai: type[Asking]) -> Callable[[Request], Awaitable[Response]]:
    """POST /completions without /v1: llama.cpp's shape, or that of ``openai`` for a body that is OpenAI's.

    OpenAI's clients must name a `model`, and llama.cpp's shape has no such field: a body that has one, and no field that is
    llama.cpp's alone, gets OpenAI's answer.
    """
    native = NativeBody.model_fields.keys() - getattr(openai, "model_fields", {}).keys() | _NATIVE

    class Either(NativeBody):
        @classmethod
        def parse(cls, data: bytes, context: int | None = None) -> Any:
            """The body in ``data`` as one of the two."""
            most = limits.body_bytes(context)
            given = parse_object(data, "request body", error=UsageError, max_bytes=most, max_depth=limits.JSON_DEPTH)
            is_openai = given.get("model") is not None and not native & given.keys()
            return (openai if is_openai else NativeBody).parse(data, context)

    async def complete(request: Request) -> Response:
        return await answered(request, Either)

    return complete


_NATIVE = {"cache_prompt", "id_slot", "n_keep", "n_predict", "samplers"}
"""More fields that are llama.cpp's alone."""


class ExtraFile(Body):
    """A file that the model sees beside the one with the gap."""

    filename: str | None = None
    text: str


class InfillBody(NativeBody):
    """The body of a request for what stands between two texts."""

    prompt: str | None = None
    """What stands behind the prefix already."""
    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[ExtraFile] | None = Field(None, max_length=limits.PROMPTS)

    def prompts(self, host: ModelHost) -> list[list[int]]:
        """The one prompt, in the control tokens of the model's family."""
        if self.input_prefix is None and self.input_suffix is None and self.prompt is None:
            raise UsageError("input_prefix is missing; give the text before the gap", param="input_prefix")
        prefix = (self.input_prefix or "") + (self.prompt or "")
        files = [(one.filename or "tmp", one.text) for one in self.input_extra or ()]
        host.check_length(prefix, self.input_suffix or "", *(text for _, text in files))
        engine = host.engine
        most = engine.runner.context
        return [infill_prompt(engine.tokenizer, prefix, self.input_suffix or "", files=files, most=most)]


async def infill(request: Request) -> Response:
    """Write what stands between a prefix and a suffix."""
    return await answered(request, InfillBody)


def _encode(engine: Engine, text: str, begins: bool) -> list[int]:
    return engine.tokenizer.encode_raw(text, add_bos=None if begins else False, most=engine.runner.context)


def _biases(engine: Engine, given: list[Any] | dict[str, Any]) -> dict[int, float]:
    """The bias of each token; of a text, all of its tokens have it."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise UsageError(f"logit_bias takes pairs of a token and a number, got `{shown(pair, 40)}`", param="logit_bias")
        name, bias = pair
        if bias is False:
            bias = NO_BIAS
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise UsageError(f"logit_bias: `{shown(bias, 40)}` is not a number", param="logit_bias")
        is_id = type(name) is int or (isinstance(given, dict) and name.isdecimal() and len(name) < 12)
        tokens = [int(name)] if is_id else engine.tokenizer.encode(text_of(name, "logit_bias"), most=limits.LOGIT_BIASES)
        found |= dict.fromkeys(check_tokens(tokens, engine.config.vocab_size, "logit_bias"), float(bias))
    return found


def _is_plain(params: GenerationParams) -> bool:
    """Whether tokens are drawn from the model's own distribution, or are the likeliest ones."""
    edited = params.grammar is not None or params.logit_bias or params.repetition_penalty != 1 or params.dry_multiplier
    filtered = params.temperature and (params.temperature != 1 or params.top_k or params.top_p != 1 or params.min_p)
    return not (edited or filtered or params.frequency_penalty or params.presence_penalty)


@dataclass(frozen=True)
class NativeReply:
    """What all pieces of one reply have in common."""

    body: NativeBody
    engine: Engine
    model: str
    requests: list[Prompt]
    as_list: bool
    """Whether the whole reply is a list of completions."""
    prompts: list[str] = field(init=False)
    """The texts of the prompts, as the model reads them."""

    def __post_init__(self) -> None:
        texts = {one.prompt: "" for one in self.requests}
        for prompt in texts:
            texts[prompt] = self.engine.tokenizer.decode(prompt, skip_special=False)
        object.__setattr__(self, "prompts", [texts[one.prompt] for one in self.requests])

    def events(self) -> _Events:
        """The reply that is streamed."""
        return _Events(self)

    def whole(self, answers: Sequence[Answer]) -> Any:
        """The reply that is not streamed: an object, or a list of them."""
        tokens = bool(self.body.return_tokens)
        found = [
            self.ended(index, one.finish, one.text, one.tokens if tokens else ())
            | ({"completion_probabilities": self.likely(one)} if one.logprobs else {})
            for index, one in enumerate(answers)
        ]
        wanted = [self._fields(one) for one in found]
        return wanted if self.as_list else wanted[0]

    def ended(self, index: int, finish: Finish, text: str, tokens: Sequence[int]) -> dict[str, Any]:
        """Completion ``index`` as it is told at its end, with ``text`` and ``tokens``."""
        engine, request, usage = self.engine, self.requests[index], finish.usage
        return {
            **self.piece(index, text, tokens, usage.completion_tokens),
            **stop_fields(finish, engine.runner.context),
            "model": self.model,
            "tokens_cached": usage.cached_tokens,
            "generation_settings": generation_settings(
                request.params, engine.tokenizer.eos_ids, stream=bool(self.body.stream)
            ),
            "prompt": self.prompts[index],
            "has_new_line": "\n" in text,
            "timings": llama_timings(finish),
        }

    def piece(self, index: int, text: str, tokens: Sequence[int], so_far: int) -> dict[str, Any]:
        """The next piece of completion ``index``, which has ``so_far`` tokens by now."""
        return {
            "index": index,
            "content": text,
            "tokens": list(tokens),
            "id_slot": -1,
            "stop": False,
            "tokens_predicted": so_far,
            "tokens_evaluated": len(self.requests[index].prompt),
        }

    def likely(self, one: Answer | Delta) -> list[dict[str, Any]]:
        """How likely its tokens were."""
        greedy = not self.requests[0].params.temperature
        return probabilities(one.logprobs, chosen=bool(self.body.post_sampling_probs), greedy=greedy)

    def _fields(self, whole: dict[str, Any]) -> dict[str, Any]:
        """Of ``whole`` what `response_fields` name, such as ``generation_settings/n_predict``; all where it names none."""
        if not self.body.response_fields:
            return whole
        found = {}
        for name in self.body.response_fields:
            value: Any = whole
            for part in name.split("/"):
                value = value.get(part, _NOTHING) if isinstance(value, dict) else _NOTHING
            if value is not _NOTHING:
                found[name] = value
        return found


_NOTHING = object()


class _Events:
    """The text of all completions as it comes, each with its end; no word follows the last."""

    def __init__(self, reply: NativeReply) -> None:
        self._reply = reply
        self._counts = [0] * len(reply.requests)
        self._new_line = [False] * len(reply.requests)
        self._teller = ProgressTeller(wanted=bool(reply.body.return_progress))

    def opening(self) -> Iterator[str]:
        return iter(())

    @property
    def looks_often(self) -> bool:
        """Whether progress is told."""
        return self._teller.wanted

    def reading(self, progress: PromptProgress) -> Iterator[str]:
        """What is told of the first prompt while it is read."""
        for news in self._teller.news(progress):
            yield event(self._reply.piece(0, "", (), 0) | news)

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        reply = self._reply
        self._counts[index] += len(delta.tokens)
        self._new_line[index] |= "\n" in delta.text
        if delta.logprobs:
            yield from self._one_by_one(index, delta)
        elif delta.tokens:
            yield event(reply.piece(index, delta.text, delta.tokens, self._counts[index]))
        if delta.finish is not None:
            tail = "" if delta.tokens else delta.text
            last = reply.ended(index, delta.finish, tail, ())
            yield event(last | {"has_new_line": self._new_line[index]})

    def _one_by_one(self, index: int, delta: Delta) -> Iterator[str]:
        """A piece for each token, with how likely it was; the last one has the text."""
        reply, likely = self._reply, self._reply.likely(delta)
        before = self._counts[index] - len(likely)
        for at, (one, found) in enumerate(zip(delta.logprobs, likely, strict=True), 1):
            text = delta.text if at == len(likely) else ""
            piece = reply.piece(index, text, (one.token,), before + at)
            yield event(piece | {"completion_probabilities": [found]})

    def closing(self) -> Iterator[str]:
        return iter(())

    def failed(self, problem: Problem) -> Iterator[str]:
        yield event(problem.openai())
