"""The engine: one loaded model that answers requests as streams of deltas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edge_llm.config import GenerationParams, ModelConfig
from edge_llm.decoding.draft import Drafter, prompt_lookup
from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Answer, Delta, Finish, Request
from edge_llm.errors import ContextOverflow, EdgeLLMError, NumericError, UsageError
from edge_llm.runner.base import Cancel, Runner
from edge_llm.text.chat import ChatTemplate, encode_chat
from edge_llm.text.tokenizer import Tokenizer


def never() -> bool:
    """A `Cancel` that never asks to stop."""
    return False


class Engine:
    """A model ready to answer: makes requests of what people write, and answers them through its batcher.

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
    ) -> None:
        self.name = name
        self.config = config
        self.tokenizer = tokenizer
        self.template = template
        self.defaults = defaults
        """The model author's sampling defaults."""
        self.runner = runner
        self.load_ms = load_ms
        self.batcher = Batcher(runner, limits or Limits())
        self._make_drafter = make_drafter

    def chat_request(
        self, messages: Sequence[dict[str, Any]], params: GenerationParams, *, begun: str = "", **variables: Any
    ) -> Request:
        """A request that answers ``messages`` ({"role": ..., "content": ...}) through the model's chat template.

        ``begun`` is the beginning of the answer, which the model goes on with; ``variables`` go to the template.
        A model without a template gets plain "role: content" lines, and its answer ends where it speaks for the user.
        """
        if self.template.is_default:
            params = replace(params, stop=(*params.stop, "\nuser:"))
        prompt = encode_chat(self.template, self.tokenizer, messages, **variables)
        return self._request(prompt + self.tokenizer.encode(begun), params, continues=bool(begun))

    def text_request(self, text: str, params: GenerationParams) -> Request:
        """A request that continues ``text`` as it stands."""
        return self.token_request(self.tokenizer.encode(text, add_bos=self.tokenizer.add_bos), params)

    def token_request(self, tokens: Sequence[int], params: GenerationParams) -> Request:
        """A request that continues ``tokens`` as they stand."""
        return self._request(tokens, params, continues=True)

    def embed(self, tokens: Sequence[int], cancel: Cancel = never) -> np.ndarray:
        """What ``tokens`` mean as a vector: their last hidden states, averaged, of length 1: float32 [hidden_size].

        Raises `Cancelled`.
        """
        mean = self.runner.embed(tokens, cancel=cancel)
        length = float(np.linalg.norm(mean))
        if not math.isfinite(length) or length == 0.0:
            raise NumericError(f"the hidden states have the length `{length}`; the model or the device computed nonsense")
        return (mean / length).astype(np.float32)

    def check_fits(self, text: str) -> None:
        """Refuse a text that is too long for the context in any tokens, before it takes memory to find them.

        Raises `ContextOverflow`.
        """
        if len(text) > self.runner.context:
            fewest = -(-len(text) // self.tokenizer.longest_token)
            if fewest > self.runner.context:
                raise ContextOverflow(fewest, self.runner.context, at_least=True)

    def generation(self, request: Request, cancelled: Cancel = never) -> Generation:
        """``request`` as the batcher takes it."""
        return Generation(
            request,
            self.tokenizer,
            most_tokens=self.runner.context - len(request.prompt),
            load_ms=self.load_ms,
            drafter=self._make_drafter(),
            cancelled=cancelled,
        )

    def stream(self, request: Request, cancel: Cancel = never) -> Iterator[Delta]:
        """Answer ``request`` piece by piece.  ``cancel`` is asked between chunks and tokens; closing the iterator stops too."""
        wanted = True
        generation = self.generation(request, cancelled=lambda: not wanted or cancel())
        self.batcher.add(generation)
        try:
            while not generation.finished:
                for _, delta in self.batcher.step():
                    if isinstance(delta, EdgeLLMError):
                        raise delta
                    yield delta
        finally:
            wanted = False
            while self.batcher.running or self.batcher.waiting:
                list(self.batcher.step())

    def answer(self, request: Request, cancel: Cancel = never) -> Answer:
        """Answer ``request`` as a whole."""
        return collect(self.stream(request, cancel))

    def _request(self, prompt: Sequence[int], params: GenerationParams, *, continues: bool = False) -> Request:
        if not prompt:
            raise UsageError("the prompt is empty; give at least one character", param="prompt")
        if len(prompt) >= self.runner.context:
            raise ContextOverflow(len(prompt), self.runner.context)
        return Request(tuple(prompt), params, continues)


def collect(deltas: Iterable[Delta]) -> Answer:
    """Put the deltas of one stream together."""
    text: list[str] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    finish: Finish | None = None
    for delta in deltas:
        text.append(delta.text)
        tokens.extend(delta.tokens)
        logprobs.extend(delta.logprobs)
        finish = delta.finish or finish
    assert finish is not None, "a stream ends with a delta that says how it finished"
    return Answer("".join(text), tuple(tokens), finish, tuple(logprobs))
