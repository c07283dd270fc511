"""A conversation line by line: for pipes, for plain terminals, and for who likes it calm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from edge_llm.chats.attachments import find_attachments, missing_files
from edge_llm.cli.answer import LOOPED, Printer, cut_short
from edge_llm.cli.options import generation_params
from edge_llm.cli.piped import read_lines
from edge_llm.cli.terminal import has_person, note, quiet_progress, say
from edge_llm.config import REPETITION, GenerationParams, RuntimeConfig
from edge_llm.decoding.defaults import another
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Finish
from edge_llm.errors import EdgeLLMError
from edge_llm.files import shown
from edge_llm.opening.load import load_engine
from edge_llm.providers.base import Ask, Catalogue, Ended, Figures, Provider, Wanted
from edge_llm.talk.conversation import NO_TEMPLATE, conversation_request
from edge_llm.talk.pieces import AnswerPiece

HELP = """\
/help          this list
/regenerate    answer the last prompt again, in other words
/continue      go on where the last answer ends
/reset         forget the conversation
/system TEXT   set the system message and start over
/stats         speed of the last answer
/exit          leave (also Ctrl-D); Ctrl-C stops an answer"""

Messages = Sequence[dict[str, str]]


class Partner(Protocol):
    """Who answers."""

    @property
    def greeting(self) -> str:
        """Who it is, in a line."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know before chatting with it."""
        ...

    @property
    def speed(self) -> str:
        """Of the last answer."""
        ...

    @property
    def cut(self) -> str | None:
        """What to say of the last answer, if it was cut short."""
        ...

    @property
    def reason(self) -> str:
        """How the last answer ended, as `Ended.reason` has it; empty for one that did not."""
        ...

    def answer(self, messages: Messages, *, again: bool = False, begun: bool = False) -> Iterator[AnswerPiece]:
        """The pieces of the answer to ``messages``, as they come; closing the iterator stops it.

        With ``again`` it is another one than that which is there, with ``begun`` the last message is its beginning.
        """
        ...


def chat_here(model: str | None, runtime: RuntimeConfig, system: str | None, options: dict[str, Any]) -> None:
    """Chat with a model in this process; ``options`` are those of generation."""
    with quiet_progress() as progress:
        engine = load_engine(model, runtime, progress).with_only_adapter
    Conversation(ModelHere(engine, generation_params(options, engine.defaults)), system).run()


def chat_elsewhere(model: str | None, catalogue: Catalogue, system: str | None, sampling: dict[str, Any]) -> None:
    """Chat with a model of a server; ``sampling`` are the fields that are to differ from its defaults."""
    provider = catalogue.open(Wanted(model), lambda *_: None)
    Conversation(ModelElsewhere(provider, sampling), system).run()


class ModelHere:
    """A model in this process."""

    def __init__(self, engine: Engine, params: GenerationParams) -> None:
        self._engine = engine
        self._params = params
        self._last: Finish | None = None
        self.reason = ""
        self.greeting = f"{engine.name}: context {engine.runner.context} tokens."
        self.notes = (NO_TEMPLATE,) if engine.template.is_default else ()

    @property
    def speed(self) -> str:
        if self._last is None:
            return "No whole answer yet."
        usage, timings = self._last.usage, self._last.timings
        return (
            f"{usage.prompt_tokens} tokens read ({usage.cached_tokens} from the last turn) at "
            f"{timings.prompt_per_second:.0f}/s, {usage.completion_tokens} written at {timings.predicted_per_second:.0f}/s"
        )

    @property
    def cut(self) -> str | None:
        return None if self._last is None else cut_short(self._last, self._params.max_tokens)

    def answer(self, messages: Messages, *, again: bool = False, begun: bool = False) -> Iterator[AnswerPiece]:
        self.reason = ""
        params = another(self._params) if again else self._params
        request, syntax = conversation_request(self._engine, messages, params, begun=begun)
        reader = syntax.reader()
        for delta in self._engine.stream(request):
            yield from reader.read(delta)
            if delta.finish is not None:
                self._last, self.reason = delta.finish, delta.finish.reason


class ModelElsewhere:
    """A model of a server."""

    def __init__(self, provider: Provider, sampling: dict[str, Any]) -> None:
        self._provider = provider
        self._sampling = sampling
        self._last: Figures | None = None
        self.reason = ""
        self.greeting = f"{provider.facts.name} ({provider.facts.site})."
        self.notes = provider.facts.notes

    @property
    def speed(self) -> str:
        if self._last is None:
            return "No whole answer yet."
        rate = self._last.tokens_per_second
        return f"{self._last.completion_tokens or '?'} tokens written" + (f" at {rate:.0f}/s" if rate else "")

    @property
    def cut(self) -> str | None:
        if self.reason != "length":
            return None
        written, most = self._last and self._last.completion_tokens, self._sampling.get("max_tokens")
        if most is not None and (written is None or written >= most):
            return f"[cut short after {most} tokens; --max-tokens allows more]"
        return "[cut short: the server allows no more tokens]"

    def answer(self, messages: Messages, *, again: bool = False, begun: bool = False) -> Iterator[AnswerPiece]:
        self.reason = ""
        ask = Ask(tuple(messages), self._sampling, continues=begun, again=again)
        with asyncio.Runner() as runner:
            reply = runner.run(self._asked(ask))
            batches = aiter(reply)
            while (pieces := runner.run(anext(batches, None))) is not None:
                for piece in pieces:
                    if isinstance(piece, Ended):
                        self._last, self.reason = piece.figures, piece.reason
                    else:
                        yield piece

    async def _asked(self, ask: Ask) -> Any:
        return self._provider.ask(ask)


class Conversation:
    """The messages so far, and what each line of the person does to them."""

    def __init__(self, partner: Partner, system: str | None) -> None:
        self._partner = partner
        self._system = system
        self._messages = self._opening()

    def run(self) -> None:
        """Answer line after line until the person leaves."""
        interactive = has_person()
        if interactive:
            note(f"{self._partner.greeting} /help lists the commands.")
        for text in self._partner.notes:
            note(text)
        for line in _typed_lines() if interactive else read_lines():
            if line.startswith("/"):
                if not self._obey(line):
                    return
            elif line:
                self._answer(line)

    def _opening(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def _obey(self, line: str) -> bool:
        """Carry out a slash command; false when the person leaves."""
        command, _, argument = line.partition(" ")
        if command in ("/exit", "/quit", "/bye"):
            return False
        if command in ("/help", "/?"):
            note(HELP)
        elif command in ("/reset", "/clear", "/new"):
            self._messages = self._opening()
            note("The conversation starts over.")
        elif command == "/system":
            self._system = argument.strip() or None
            self._messages = self._opening()
            note("The system message is set; the conversation starts over.")
        elif command == "/stats":
            note(self._partner.speed)
        elif command in ("/regenerate", "/continue"):
            self._answer_more(goes_on=command == "/continue")
        else:
            note(f"unknown command `{command}`; /help lists the commands")
        return True

    def _answer(self, line: str) -> None:
        """One turn."""
        _tell_of_files(line)
        self._ask([*self._messages, {"role": "user", "content": line}])

    def _answer_more(self, *, goes_on: bool) -> None:
        """The last prompt once more, or the rest of its answer."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            note("there is no answer yet")
        elif goes_on:
            self._ask(self._messages[:-1], begun=self._messages[-1]["content"])
        else:
            self._ask(self._messages[:-1], again=True)

    def _ask(self, messages: list[dict[str, str]], *, again: bool = False, begun: str = "") -> None:
        """Print the answer to ``messages``, which goes on behind ``begun``.

        One that fails or is interrupted before the model says anything leaves the conversation as it was.
        """
        printer = Printer()
        given = [*messages, {"role": "assistant", "content": begun}] if begun else messages
        try:
            for piece in self._partner.answer(given, again=again, begun=bool(begun)):
                printer.show(piece)
        except KeyboardInterrupt:
            note("\n[stopped]")
            printer.end()
        except EdgeLLMError as error:
            note(f"error: {error}" + (" (/reset starts over)" if len(messages) > 1 else ""))
            return
        else:
            say()
            printer.end()
            if self._partner.reason == REPETITION:
                note(f"[{LOOPED}; /continue goes on, /regenerate answers again]")
            elif said := self._partner.cut:
                note(said)
        if printer.said:
            self._messages = [*messages, {"role": "assistant", "content": begun + printer.said}]


def _tell_of_files(line: str) -> None:
    """Say what becomes of the words of ``line`` by which the full-screen chat attaches files: they are sent as they are."""
    rest, found = find_attachments(line, Path.cwd())
    if missing := missing_files(rest):
        note(f"no file {missing}; sent as text")
    for path in found:
        note(f"`{shown(path.name)}` is not attached, only the full-screen chat does that; sent as text")


def _typed_lines() -> Iterator[str]:
    """Lines of the person, stripped; Ctrl-C at the prompt clears the line and does not leave."""
    import readline  # noqa: F401 - editing and history of input()

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            note("")
            return
        except UnicodeDecodeError:
            note("error: that line is not UTF-8 text")
        except KeyboardInterrupt:
            note("\n(/exit or Ctrl-D quits)")
