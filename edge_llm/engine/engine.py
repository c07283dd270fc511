"""The engine: one loaded model that answers requests, one at a time, as streams of deltas."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from edge_llm.config import GenerationParams, ModelConfig
from edge_llm.decoding.processors import make_processors
from edge_llm.decoding.sampler import make_sampler
from edge_llm.decoding.stop import StopStrings
from edge_llm.engine.request import Answer, Delta, Finish, Request, Timings, Usage
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.runner.base import Cancel, Cancelled, Runner
from edge_llm.text.chat import ChatTemplate, encode_chat
from edge_llm.text.tokenizer import IncrementalDecoder, Tokenizer


def never() -> bool:
    """A `Cancel` that never asks to stop."""
    return False


class Engine:
    """A model ready to answer.

    The keys and values of the last request stay, so a prompt that begins like it (the next turn of a chat) computes
    only what is new.  Because every row's numbers are the same however they are computed, a kept prefix changes no
    token.
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
    ) -> None:
        self.name = name
        self.config = config
        self.tokenizer = tokenizer
        self.template = template
        self.defaults = defaults
        """The model author's sampling defaults."""
        self.runner = runner
        self.load_ms = load_ms
        self._sequence = runner.open()
        self._cached: list[int] = []

    def chat_request(self, messages: Sequence[dict[str, Any]], params: GenerationParams) -> Request:
        """A request that answers ``messages`` ({"role": ..., "content": ...}) through the model's chat template.

        A model without a template gets plain "role: content" lines, and its answer ends where it speaks for the user.
        """
        if self.template.is_default:
            params = replace(params, stop=(*params.stop, "\nuser:"))
        return self._request(encode_chat(self.template, self.tokenizer, messages), params)

    def text_request(self, text: str, params: GenerationParams) -> Request:
        """A request that continues ``text`` as it stands."""
        return self._request(self.tokenizer.encode(text, add_bos=self.tokenizer.add_bos), params, continues=True)

    def stream(self, request: Request, cancel: Cancel = never) -> Iterator[Delta]:
        """Answer ``request`` piece by piece.  ``cancel`` is asked between chunks and tokens; closing the iterator stops too."""
        started = time.perf_counter()
        cached = self._reuse_prefix(request.prompt)
        sampler = make_sampler(request.params)
        processors = make_processors(request.params, self.tokenizer.eos_ids)
        decoder = IncrementalDecoder(self.tokenizer, continues=request.continues)
        stops = StopStrings(request.params.stop)
        limit = self._token_limit(request)
        tokens: list[int] = []
        reason = "cancelled"
        first_token_at = started
        try:
            new_tokens: Sequence[int] = request.prompt[cached:]
            while not cancel():
                logits = self._forward(new_tokens, cancel)
                if not tokens:
                    first_token_at = time.perf_counter()
                for processor in processors:
                    logits = processor((*request.prompt, *tokens), logits)
                token = sampler(logits)
                tokens.append(token)
                if token in self.tokenizer.eos_ids and not request.params.ignore_eos:
                    reason = "stop"
                    break
                text = stops.push(decoder.push(token))
                if stops.stopped or len(tokens) == limit:
                    reason = "stop" if stops.stopped else "length"
                    yield Delta(text, (token,))
                    break
                yield Delta(text, (token,))
                new_tokens = [token]
        except Cancelled:
            pass
        tail = "" if stops.stopped else stops.push(decoder.finish()) + stops.finish()
        usage = Usage(len(request.prompt), len(tokens), cached)
        timings = self._timings(usage, started, first_token_at, time.perf_counter())
        yield Delta(tail, finish=Finish(reason, usage, timings))

    def answer(self, request: Request, cancel: Cancel = never) -> Answer:
        """Answer ``request`` as a whole."""
        return collect(self.stream(request, cancel))

    def _request(self, prompt: list[int], params: GenerationParams, *, continues: bool = False) -> Request:
        if not prompt:
            raise UsageError("the prompt is empty; give at least one character", param="prompt")
        if len(prompt) >= self.runner.context:
            raise ContextOverflow(len(prompt), self.runner.context)
        return Request(tuple(prompt), params, continues)

    def _token_limit(self, request: Request) -> int:
        """Tokens that may be generated: what was asked for, or what the context has room for."""
        room = self.runner.context - len(request.prompt)
        return room if request.params.max_tokens is None else min(room, request.params.max_tokens)

    def _reuse_prefix(self, prompt: Sequence[int]) -> int:
        """Keep the longest common beginning of ``prompt`` and the last request; return its length.

        The last prompt token is always computed anew, because its logits are needed.
        """
        same = 0
        for old, new in zip(self._cached, prompt[:-1], strict=False):
            if old != new:
                break
            same += 1
        self._sequence.truncate(same)
        del self._cached[same:]
        return same

    def _forward(self, tokens: Sequence[int], cancel: Cancel) -> Any:
        logits = self.runner.forward(self._sequence, tokens, cancel=cancel)
        self._cached.extend(tokens)
        return logits[-1]

    def _timings(self, usage: Usage, started: float, first_token_at: float, ended: float) -> Timings:
        prompt_seconds = first_token_at - started
        predicted_seconds = ended - first_token_at
        computed = usage.prompt_tokens - usage.cached_tokens
        steps = max(0, usage.completion_tokens - 1)  # the first token comes with the prompt
        return Timings(
            load_ms=round(self.load_ms, 3),
            prompt_ms=round(1e3 * prompt_seconds, 3),
            prompt_per_second=round(computed / prompt_seconds, 3) if prompt_seconds > 0 else 0.0,
            predicted_ms=round(1e3 * predicted_seconds, 3),
            predicted_per_second=round(steps / predicted_seconds, 3) if predicted_seconds > 0 else 0.0,
        )


def collect(deltas: Iterable[Delta]) -> Answer:
    """Put the deltas of one stream together."""
    text: list[str] = []
    tokens: list[int] = []
    finish: Finish | None = None
    for delta in deltas:
        text.append(delta.text)
        tokens.extend(delta.tokens)
        finish = delta.finish or finish
    assert finish is not None, "a stream ends with a delta that says how it finished"
    return Answer("".join(text), tuple(tokens), finish)
