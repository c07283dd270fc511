"""What a chat asks of whoever answers it.

    catalogue = ...                                  # of this machine, or of a server
    provider = catalogue.open(Wanted("qwen"), progress)    # in a thread: takes as long as a model takes to load
    reply = provider.ask(Ask(({"role": "user", "content": "Hi"},)))
    async for pieces in reply:                       # at most `BATCHES_PER_SECOND` times a second
        ...                                          # Thought and Said; the last one is `Ended`

Imports nothing heavy: a face shows its first frame before a model's code is loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from edge_llm.progress import StageProgress, Step
from edge_llm.talk.pieces import CallArguments, CallBegun, Said, Thought

if TYPE_CHECKING:
    from edge_llm.engine.inside import Inside

BATCHES_PER_SECOND = 30


@dataclass(frozen=True)
class Ask:
    """A conversation to be continued."""

    messages: tuple[Mapping[str, Any], ...]
    """Each {"role": system, user or assistant, "content": text}; tool calls and their results as OpenAI writes them."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `GenerationParams` that differ from the model's own defaults."""
    thinking: bool | str | None = None
    """Whether to think before answering, or how hard: low, medium, high.  None leaves it to the model."""
    continues: bool = False
    """The last message is the assistant's, and the answer goes on where it ends."""
    again: bool = False
    """There is an answer already, and this one must be another: never greedy, from a seed of its own."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """What the model may call, as OpenAI declares functions."""


@dataclass(frozen=True)
class Figures:
    """What an answer took; None is unknown, as some servers do not say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens whose keys and values were there already."""
    completion_tokens: int | None = None
    first_token_seconds: float | None = None
    """From the request to its first token."""
    prompt_per_second: float | None = None
    tokens_per_second: float | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None


@dataclass(frozen=True)
class Ended:
    """The end of an answer.  ``reason``: stop, length (a limit of tokens), repetition (the loop guard), or cancelled."""

    reason: str
    figures: Figures = Figures()


Piece = Thought | Said | CallBegun | CallArguments | Ended


class Reply(Protocol):
    """One answer on its way.  It is iterated once."""

    def __aiter__(self) -> AsyncIterator[Sequence[Piece]]:
        """What has come since the last time, never empty; ends behind `Ended`, or raises an `EdgeLLMError`."""
        ...

    def cancel(self) -> None:
        """Stop at once: what was said stands, and the end's reason is ``cancelled``."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens of the answer that have come; a server's pieces, where it does not count them."""
        ...

    @property
    def prompt_progress(self) -> tuple[int, int] | None:
        """Tokens of the prompt that are computed, and all of them; None when unknown or over."""
        ...


@dataclass(frozen=True)
class Facts:
    """What a face shows of a provider."""

    name: str
    context: int | None = None
    """Tokens."""
    site: str = ""
    """Where it runs, in a line."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The model's own defaults: fields of `GenerationParams`."""
    most_context: int | None = None
    """Tokens of the longest context that the model was made for."""
    parameters: int | None = None
    precision: str = ""
    """Of its weights: `int8`, `w4+int8`."""
    weights: int | None = None
    """Bytes of its weights."""
    is_toy: bool = False
    """It is the built-in model, which is there to try things out."""
    can_switch_thinking: bool = False
    notes: tuple[str, ...] = ()
    """What a person should know before chatting with it."""
    host: str = ""
    """Name or address, and port, of the server that it is of; empty for this machine."""


class Provider(Protocol):
    """A model that answers."""

    @property
    def facts(self) -> Facts: ...

    def ask(self, ask: Ask) -> Reply:
        """Answer; called on the event loop, returns at once.  What is wrong with the question is raised by the reply."""
        ...

    def count(self, ask: Ask) -> int | None:
        """Tokens of the prompt that ``ask`` becomes; None where nobody says.  Called in a thread, raises `EdgeLLMError`."""
        ...

    def count_text(self, text: str) -> int | None:
        """Tokens of ``text`` on its own; None where nobody says.  Called in a thread, raises `EdgeLLMError`."""
        ...

    def look(self) -> Inside | None:
        """What goes on inside at this moment; None where that cannot be seen."""
        ...

    def close(self) -> None:
        """Stop all answers and give the memory back; called in a thread."""
        ...


@dataclass(frozen=True)
class Wanted:
    """A model to open, and what a chat wants otherwise than the command line: device, context, memory."""

    model: str | None
    runtime: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `RuntimeConfig`."""


@dataclass(frozen=True)
class ModelRow:
    """A model that can be chosen."""

    name: str
    size: int | None = None
    """Bytes of its weights."""
    precision: str = ""
    context: int | None = None
    fits: bool | None = None
    """Whether its weights fit in the memory that is free now."""
    problem: str = ""
    """Why it cannot be opened."""
    source: str = ""
    """Of a model that is not here: the hub id that brings it."""
    download: int = 0
    """Bytes that come then, about."""
    gated: bool = False
    """Its terms must be accepted on its page before."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """How people's answers are sampled where nobody says, as far as its server does not do so anyway: `GenerationParams`."""
    is_loading: bool = False
    """Its server loads it now: it cannot answer, and what is known of it comes later."""
    done: int = 0
    """How much of ``total`` is loaded then."""
    total: int = 0
    is_unloaded: bool = False
    """Its server loads it when it is asked to."""


class Fetch(Protocol):
    """A model on its way to this machine, in a process of its own."""

    def __iter__(self) -> Iterator[Step]:
        """How far it is.  Ends when the model is there; raises an `EdgeLLMError`."""
        ...

    @property
    def name(self) -> str:
        """What the model is called here, once it is there."""
        ...

    def cancel(self) -> None:
        """Stop; nothing half-written stays visible, and a download can go on later."""
        ...


class Catalogue(Protocol):
    """The models that can be chatted with.  Every method may block and is called in a thread; all raise `EdgeLLMError`."""

    def rows(self) -> Sequence[ModelRow]:
        """The models to choose from, then those that could be brought here."""
        ...

    @property
    def can_fetch(self) -> bool:
        """Whether models can be brought here."""
        ...

    def check(self, model: str) -> None:
        """Raise `ModelNotFound` when ``model`` is not there: nobody gives up one that answers for it."""
        ...

    def open(self, wanted: Wanted, progress: StageProgress) -> Provider:
        """Make a model ready to answer."""
        ...

    def fetch(self, source: str) -> Fetch:
        """Bring the model ``source`` (as `edge-llm import` takes it) here; `UsageError` where nothing can be fetched."""
        ...
