"""The engine: one loaded model that answers requests as streams of deltas."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from edge_llm.config import GenerationParams, ModelConfig
from edge_llm.decoding.draft import Drafter, prompt_lookup
from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.counters import Counters
from edge_llm.engine.delta_stream import DeltaStream
from edge_llm.engine.drafting import Drafting
from edge_llm.engine.driver import Driver
from edge_llm.engine.embedding import EmbeddingJob, Taking, text_tokens
from edge_llm.engine.generation import Generation
from edge_llm.engine.model_facts import ModelFacts
from edge_llm.engine.ranking import COSINE, RankingPrompts, taking_of
from edge_llm.engine.request import Answer, Delta, Finish, Request
from edge_llm.engine.runner_place import Replace, Vacancy, no_other
from edge_llm.errors import ContextOverflow, EdgeLLMError, UsageError
from edge_llm.models.head import Head
from edge_llm.models.layer import DescribedConfig
from edge_llm.models.reading import Reading
from edge_llm.runner.base import Cancel, Runner, never
from edge_llm.text.chat import ChatTemplate, chat_prompt
from edge_llm.text.template_files import TURNS
from edge_llm.text.tokenizer import Tokenizer


class Engine:
    """A model ready to answer: makes requests of what people write, and answers them through its driver.

    Keys and values of earlier requests stay while there is memory, so a prompt that begins like one of them (the next turn
    of a chat) computes only what is new.  Because every row's numbers are the same however they are computed, a kept
    prefix changes no token.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        defaults: GenerationParams,
        runner: Runner[Any],
        load_ms: float,
        limits: Limits | None = None,
        make_drafter: Callable[[], Drafter] = prompt_lookup,
        replace_runner: Replace = no_other,
        facts: ModelFacts | None = None,
        served: GenerationParams | None = None,
        head: Head | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.tokenizer = tokenizer
        self.template = template
        self.defaults = defaults
        """How answers are sampled where people say nothing: as the model's author has it, if the author names sampling."""
        self.served = defaults if served is None else served
        """The same for API clients."""
        self.load_ms = load_ms
        self.counters = Counters()
        """Of all its answers."""
        self.facts = facts or ModelFacts()
        self.batcher = Batcher(runner, limits or Limits(), replace_runner, drafting)
        self.driver = Driver(self.batcher)
        self.head = head or Head(Reading(), {})
        """What stands behind the pooling of its states."""
        self._make_drafter = make_drafter
        self.adapter = 0
        """The number of the adapter that its answers are computed with; 0: none."""
        self.base = ""
        """The name of the model that its adapter is added to; empty: it is that model."""
        self.adapted: dict[str, Engine] = {}
        """By the names of the model's adapters, the same engine that answers with one."""

    def add_adapter(self, name: str, number: int, template: ChatTemplate | None) -> None:
        """Answer as ``name``, too, with the adapter that the runner has by ``number``; ``template``: its own, where it has one.

        Its requests are computed in the steps of all others.
        """
        engine = copy.copy(self)
        engine.name, engine.base, engine.adapter, engine.adapted = name, self.name, number, {}
        engine.template = template or self.template
        engine.counters = Counters()
        self.adapted[name] = engine

    @property
    def with_only_adapter(self) -> Engine:
        """It with its adapter, where it has one; where it has several or none, as it is."""
        return next(iter(self.adapted.values())) if len(self.adapted) == 1 else self

    @property
    def runner(self) -> Runner[Any]:
        """What computes the model: another one after its device was lost."""
        return self.batcher.runner

    @property
    def plan(self) -> Mapping[str, Any]:
        """The facts of its plan, for faces; where it runs is said of the runner that it has now."""
        return {**self.facts.plan, **asdict(self.runner.site)}

    @property
    def refusal(self) -> EdgeLLMError | None:
        """Why every request is refused; None as long as there is a runner."""
        return self.runner.refusal if isinstance(self.runner, Vacancy) else None

    @property
    def is_encoder(self) -> bool:
        """Whether it makes vectors of texts and writes nothing."""
        return isinstance(self.config, DescribedConfig) and self.config.decoder.is_encoder

    @property
    def reading(self) -> Reading | None:
        """How a text becomes a vector; None: the model was not trained for that, and the mean of all states has to do."""
        return self.config.decoder.reading if isinstance(self.config, DescribedConfig) else None

    @property
    def vector_size(self) -> int:
        """Numbers of a text's vector."""
        return (self.reading or Reading()).size(self.config.hidden_size)

    def text_tokens(self, text: str, prompt: str | None = None, *, truncate: bool = False) -> list[int]:
        """The tokens of ``text`` as its vector is made of them, within the control tokens that the model was trained with.

        ``prompt`` names one of the model's prompts to stand before it; None: its default.  A text that is too long is cut
        with ``truncate``; else raises `ContextOverflow`.  Raises `UsageError` for a prompt that the model does not have.
        """
        return text_tokens(self.tokenizer, self.reading, text, prompt, self.runner.context, truncate=truncate)

    def chat_request(
        self,
        messages: Sequence[dict[str, Any]],
        params: GenerationParams,
        variables: Mapping[str, Any] | None = None,
        *,
        begun: bool = False,
    ) -> Request:
        """A request that answers ``messages`` ({"role": ..., "content": ...}) through the model's chat template.

        With ``begun`` the last message is the beginning of the answer, which the model goes on with; ``variables`` go to
        the template.  A model without a template gets plain "role: content" lines, and its answer ends where another line
        speaks for somebody.
        """
        if self.template.is_default:
            params = replace(params, stop=(*params.stop, *TURNS))
        prompt = chat_prompt(self.template, self.tokenizer, messages, variables, begun=begun, most=self.runner.context)
        goes_on = begun and bool(messages[-1]["content"])
        return replace(self._request(prompt.tokens, params, continues=goes_on), thinking=prompt.thinking)

    def text_request(self, text: str, params: GenerationParams, *, parse_special: bool = False) -> Request:
        """A request that continues ``text`` as it stands; with ``parse_special`` what spells a control token is one."""
        tokens = self.tokenizer.encode_raw(text, parse_special=parse_special, most=self.runner.context)
        return self.token_request(tokens, params)

    def token_request(self, tokens: Sequence[int], params: GenerationParams) -> Request:
        """A request that continues ``tokens`` as they stand."""
        return self._request(tokens, params, continues=True)

    def embedding_job(self, prompts: Sequence[Sequence[int]], cancelled: Cancel = never) -> EmbeddingJob:
        """``prompts`` (token ids) as the driver takes them to make a vector of each."""
        return EmbeddingJob(prompts, cancelled, self._taking(COSINE))

    def ranking_job(self, ranking: RankingPrompts, cancelled: Cancel = never) -> EmbeddingJob:
        """``ranking`` as the driver takes it to score each document."""
        return EmbeddingJob(ranking.prompts, cancelled, self._taking(ranking.way), ranking.second_starts)

    def _taking(self, way: str) -> Taking:
        return replace(taking_of(self, way), adapter=self.adapter)

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """The vector of each of ``prompts`` (token ids): float32 [prompts, vector_size], each as long as 1."""
        if not prompts:
            raise UsageError("there is nothing to embed; give at least one text", param="input")
        for prompt in prompts:
            if len(prompt) > self.runner.context:
                raise ContextOverflow(len(prompt), self.runner.context)
        return self._result(self.embedding_job(prompts))

    def rank(self, ranking: RankingPrompts) -> np.ndarray:
        """What `RankingPrompts.scores` takes of each prompt."""
        return self._result(self.ranking_job(ranking))

    def _result(self, job: EmbeddingJob) -> np.ndarray:
        self.driver.add_job(job)
        self.driver.run_until(job.future.done)
        return job.future.result()

    def generation(self, request: Request, cancelled: Cancel = never) -> Generation:
        """``request`` as the batcher takes it."""
        return Generation(
            request,
            self.tokenizer,
            most_tokens=self.runner.context - len(request.prompt),
            load_ms=self.load_ms,
            drafter=self._make_drafter(),
            cancelled=cancelled,
            counters=self.counters,
            pool=self.runner.pool,
        )

    def prepare(self, request: Request, cancel: Cancel = never) -> tuple[Generation, DeltaStream]:
        """``request`` as the driver takes it, and where its deltas will come.

        ``cancel`` is asked between chunks and tokens, by whichever thread runs the step.
        """
        stream = DeltaStream(request, self.driver.tidy)
        generation = self.generation(request, lambda: stream.cancelled or cancel())
        stream.progress = generation.progress
        return generation, stream

    def stream(self, request: Request, cancel: Cancel = never) -> Iterator[Delta]:
        """Answer ``request`` piece by piece; closing the iterator stops.

        Any number of streams may be open, in any threads: each gives the deltas that it gives alone.  Whoever waits for a
        delta computes for all, so one that is left open is answered along with the others.
        """
        generation, answering = self.prepare(request, cancel)
        try:
            self.driver.add(generation, answering)
            finish: Finish | None = None
            while finish is None:
                self.driver.run_until(lambda: answering.ready)
                delta = answering.poll()
                assert delta is not None, "only one thread iterates"
                finish = delta.finish
                yield delta
        finally:
            answering.cancel()

    def answer(self, request: Request, cancel: Cancel = never) -> Answer:
        """Answer ``request`` as a whole."""
        return collect(self.stream(request, cancel))

    def _request(self, prompt: Sequence[int], params: GenerationParams, *, continues: bool = False) -> Request:
        if self.is_encoder:
            raise UsageError(
                f"`{self.name}` is an encoder, which makes vectors of texts and writes nothing; use `edge-llm embed` or "
                "/v1/embeddings, or another model",
                param="model",
            )
        if not prompt:
            raise UsageError("the prompt is empty; give at least one character", param="prompt")
        if len(prompt) >= self.runner.context:
            raise ContextOverflow(len(prompt), self.runner.context)
        self._check_tokens("stop_tokens", params.stop_tokens)
        self._check_tokens("logit_bias", [token for token, _ in params.logit_bias])
        if params.min_tokens and len(params.stop_tokens | self.tokenizer.eos_ids) == self.config.vocab_size:
            raise UsageError(
                f"min_tokens `{params.min_tokens}` cannot be kept where each of the {self.config.vocab_size} tokens of this "
                "model ends the answer; name fewer stop tokens",
                param="min_tokens",
            )
        self._check_allowed(params)
        return Request(tuple(prompt), params, continues, adapter=self.adapter)

    def _check_allowed(self, params: GenerationParams) -> None:
        """Refuse tokens that leave nothing to choose from."""
        if params.allowed_tokens is None:
            return
        self._check_tokens("allowed_token_ids", params.allowed_tokens)
        ends = self.tokenizer.eos_ids if params.ignore_eos else frozenset()
        ends |= params.stop_tokens | self.tokenizer.eos_ids if params.min_tokens else frozenset()
        if params.allowed_tokens <= ends:
            raise UsageError(
                "allowed_token_ids has only tokens that end the answer, which min_tokens or ignore_eos forbid; name others",
                param="allowed_token_ids",
            )

    def _check_tokens(self, param: str, tokens: Iterable[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.config.vocab_size:
                raise UsageError(f"{param}: `{token}` is not one of this model's {self.config.vocab_size} tokens", param=param)


def collect(deltas: Iterable[Delta]) -> Answer:
    """Put the deltas of one stream together."""
    text: list[str] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    finish: Finish | None = None
    for delta in deltas:
        text.append(delta.text)
        tokens.extend(delta.tokens)
        logprobs.extend(delta.logprobs)
        prompt_logprobs.extend(delta.prompt_logprobs)
        finish = delta.finish or finish
    assert finish is not None, "a stream ends with a delta that says how it finished"
    return Answer("".join(text), tuple(tokens), finish, tuple(logprobs), tuple(prompt_logprobs))
