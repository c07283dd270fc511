"""Models of this machine, answering in this process.

Imports the engine: a face imports this file when its first frame is shown.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from edge_llm.config import INT8, RuntimeConfig
from edge_llm.convert.apart import fetch
from edge_llm.decoding.defaults import another, generation_defaults, with_overrides
from edge_llm.engine.delta_stream import DeltaStream
from edge_llm.engine.engine import Engine
from edge_llm.engine.inside import Inside, look
from edge_llm.engine.request import Delta, Finish, Request
from edge_llm.engine.service import BatchingService
from edge_llm.errors import ModelNotFound, Unavailable, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.sizes import int8_bytes, sizes
from edge_llm.models import describe
from edge_llm.models.known import KnownModel, find_known, known_models
from edge_llm.opening.library import InstalledModel, default_kv_bytes, fits, installed_models
from edge_llm.opening.load import load_engine
from edge_llm.paths import BUILTIN_MODEL_NAME, find_bundle
from edge_llm.progress import StageProgress, byte_count
from edge_llm.providers.base import Ask, Ended, Facts, Fetch, Figures, ModelRow, Piece, Provider, Reply, Wanted
from edge_llm.providers.batches import Bell, in_batches, joined, readable
from edge_llm.providers.settings import changed, differences
from edge_llm.resources import free_memory, give_memory_back
from edge_llm.talk.conversation import NO_TEMPLATE, conversation_length, conversation_request, plain_messages
from edge_llm.talk.outcome import AnswerReader, AnswerSyntax
from edge_llm.talk.pieces import CallArguments, CallBegun, Said, Thought
from edge_llm.talk.tools import ToolUse
from edge_llm.talk.wish import Wish, wish_of

MOST_COUNTED = 4 << 20
"""Tokens that are counted; nobody has such a context."""


class LocalCatalogue:
    """The models that are imported here; ``runtime`` is how they are run where a chat wants nothing else.

    An adapter in ``runtime`` is for the model ``adapted`` alone.
    """

    can_fetch = True

    def __init__(self, runtime: RuntimeConfig, adapted: str | None = None) -> None:
        self._runtime = runtime
        self._adapted = adapted

    def rows(self) -> Sequence[ModelRow]:
        free = free_memory()
        here = installed_models()
        taken = {model.repository.casefold() for model in here}
        offered = [_offer(model, free) for model in known_models() if model.repository.casefold() not in taken]
        return [*(_row(model, free) for model in here), *offered]

    def check(self, model: str) -> None:
        try:
            find_bundle(model)
        except (ModelNotFound, UsageError):
            if (known := find_known(model)) is None:
                raise
            raise ModelNotFound(
                f"`{model}` is not here yet: `/pull {model}` downloads {known.repository} ({byte_count(known.download)})"
            ) from None

    def open(self, wanted: Wanted, progress: StageProgress) -> Provider:
        here = self._runtime if wanted.model == self._adapted else replace(self._runtime, lora=())
        engine = load_engine(wanted.model, changed(here, wanted.runtime), progress).with_only_adapter
        with open_bundle(find_bundle(wanted.model)) as bundle:
            provider = LocalProvider(engine, generation_defaults(bundle.generation_config).left_out)
            provider.see_weights(describe(bundle.config).parameters, sizes(bundle).precision, bundle.size)
            return provider

    def fetch(self, source: str) -> Fetch:
        return fetch(source)


def _row(model: InstalledModel, free: int) -> ModelRow:
    if model.problem is not None:
        return ModelRow(model.name, problem=model.problem)
    return ModelRow(model.name, model.weights_bytes, model.precision, model.context, model.fits(free))


def _offer(model: KnownModel, free: int) -> ModelRow:
    """A model of the shipped table, as it would be once it is here."""
    size = int8_bytes(describe(model.config))
    fitting = fits(size, default_kv_bytes(model.config), free)
    return ModelRow(
        model.name, size, INT8, model.config.context, fitting, "", model.repository, model.download, model.gated
    )


class LocalProvider:
    """``engine`` behind a service; ``left_out`` says which of the author's sampling defaults cannot be used."""

    def __init__(self, engine: Engine, left_out: Sequence[str] = ()) -> None:
        self._engine: Engine | None = engine
        self._service = BatchingService(engine)
        self._left_out = tuple(left_out)
        self._last_facts = self._facts_of(engine)
        self._closing = threading.Lock()
        self._counting = threading.Lock()

    @property
    def facts(self) -> Facts:
        if (engine := self._engine) is not None:  # after a device was lost it runs elsewhere
            self._last_facts = replace(self._last_facts, site=str(engine.runner.site))
        return self._last_facts

    def ask(self, ask: Ask) -> Reply:
        return LocalReply(self, ask)

    def see_weights(self, parameters: int, precision: str, nbytes: int) -> None:
        """What the facts say of the model's weights."""
        self._last_facts = replace(self._last_facts, parameters=parameters, precision=precision, weights=nbytes)

    def count(self, ask: Ask) -> int:
        with self._counting:
            engine = self._running()
            messages, variables = self._rendered(engine, ask)
            return conversation_length(engine, messages, variables=variables, most=MOST_COUNTED)

    def count_text(self, text: str) -> int:
        with self._counting:
            return self._running().tokenizer.count(text, MOST_COUNTED)

    def look(self) -> Inside | None:
        engine = self._engine
        return None if engine is None else look(engine)

    def close(self) -> None:
        with self._closing:
            if self._engine is not None:
                self._service.close(drain_seconds=0.0)
                del self._service
                self._engine = None
                give_memory_back()  # its weights are to be gone before others come

    def request(self, ask: Ask) -> tuple[Request, AnswerSyntax]:
        """``ask`` in tokens, and how to read what answers it; takes as long as the conversation."""
        engine = self._running()
        tools = ToolUse.of([dict(tool) for tool in ask.tools], None, None, engine)
        messages, variables = self._rendered(engine, ask)
        params = changed(engine.defaults, ask.sampling, with_overrides)
        params = another(params) if ask.again else params
        wish = wish_of(ask.thinking, "thinking")
        if wish is not None and wish.on and params.think_tokens is None:
            params = replace(params, think_tokens=wish.most_tokens(engine.template.source))
        return conversation_request(engine, messages, params, begun=ask.continues, tools=tools, variables=variables)

    def _rendered(self, engine: Engine, ask: Ask) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What the template is given."""
        wish = wish_of(ask.thinking, "thinking")
        messages = plain_messages([dict(message) for message in ask.messages])
        if not messages:
            raise UsageError("there is no message to answer", param="messages")
        return messages, {} if wish is None else dict(wish.variables(engine.template.source))

    def submit(self, request: Request) -> DeltaStream:
        """The answer to ``request`` as it comes."""
        self._running()
        return self._service.submit(request)

    def _running(self) -> Engine:
        if (engine := self._engine) is None:
            raise Unavailable(f"the model `{self._last_facts.name}` was closed; open it again")
        return engine

    def _facts_of(self, engine: Engine) -> Facts:
        notes = [NO_TEMPLATE] if engine.template.is_default else []
        notes += [engine.runner.site.note] if engine.runner.site.note else []
        notes += [f"It answers with the adapter `{shown(engine.name)}`."] if engine.base else []
        notes += [f"A sampling default of this model's author is left out: {reason}" for reason in self._left_out]
        return Facts(
            engine.base or engine.name,
            engine.runner.context,
            str(engine.runner.site),
            differences(engine.defaults),
            can_switch_thinking=bool(Wish(False).variables(engine.template.source)),
            notes=tuple(notes),
            most_context=engine.config.context,
            is_toy=engine.name == BUILTIN_MODEL_NAME,
        )


class LocalReply:
    """An answer of ``provider``: its request is made in a thread, and its deltas are fetched a few times a second."""

    def __init__(self, provider: LocalProvider, ask: Ask) -> None:
        self._provider = provider
        self._ask = ask
        self._asked_at = time.perf_counter()
        self._prepared_after = 0.0
        self._given_up = asyncio.get_running_loop().create_future()
        self._stream: DeltaStream | None = None
        self.tokens = 0
        self._answers = False
        """The prompt is through: deltas have come."""
        self._failure: BaseException | None = None

    async def __aiter__(self) -> AsyncIterator[Sequence[Piece]]:
        try:
            prepared = await self._prepared()
            if prepared is None:
                yield [Ended("cancelled")]
                return
            request, syntax = prepared
            self._stream = stream = self._provider.submit(request)
            reader, bell = syntax.reader(), Bell()
            stream.attach(bell.ring)
            async for pieces in in_batches(bell, lambda: self._ready(stream), lambda: self._take(stream, reader)):
                yield pieces
        except Exception as error:
            raise readable(error) from None
        finally:
            self._let_go()

    def cancel(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)
        if self._stream is not None:
            self._stream.cancel()

    @property
    def prompt_progress(self) -> tuple[int, int] | None:
        stream = self._stream
        return None if stream is None or self._answers else stream.prompt_done

    async def _prepared(self) -> tuple[Request, AnswerSyntax] | None:
        """The request and how to read its answer; None if it is cancelled before."""
        if self._given_up.done():
            return None
        preparing = asyncio.ensure_future(asyncio.to_thread(self._provider.request, self._ask))
        try:
            await asyncio.wait({preparing, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
            if self._given_up.done():
                return None
            self._prepared_after = time.perf_counter() - self._asked_at
            return preparing.result()
        finally:
            preparing.cancel()

    def _ready(self, stream: DeltaStream) -> bool:
        return self._failure is not None or stream.ready

    def _take(self, stream: DeltaStream, reader: AnswerReader) -> list[Piece]:
        """All that has come; an error waits until what came before it has been told."""
        if self._failure is not None:
            raise self._failure
        text: list[str] = []
        finish: Finish | None = None
        self._answers = True
        try:
            while (delta := stream.poll()) is not None:
                text.append(delta.text)
                self.tokens += len(delta.tokens)
                finish = delta.finish
        except Exception as error:
            self._failure = error
        read = reader.read(Delta("".join(text), finish=finish))
        thought = "".join(piece.text for piece in read if isinstance(piece, Thought))
        said = "".join(piece.text for piece in read if isinstance(piece, Said))
        pieces = [*joined(thought, said), *(piece for piece in read if isinstance(piece, CallBegun | CallArguments))]
        return pieces if finish is None else [*pieces, Ended(finish.reason, self._figures(finish))]

    def _figures(self, finish: Finish) -> Figures:
        usage, timings = finish.usage, finish.timings
        return Figures(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            self._prepared_after + timings.prompt_ms / 1e3 if usage.completion_tokens else None,
            timings.prompt_per_second or None,
            timings.predicted_per_second or None,
            timings.drafted_tokens,
            timings.accepted_tokens,
        )

    def _let_go(self) -> None:
        """Stop what still runs, and hold nothing of the engine: its memory may be wanted for another one."""
        if self._stream is not None:
            self._stream.cancel()
        self._stream = self._failure = None

