"""`edge-llm chat`: a conversation, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from edge_llm.cli.answer import Printer
from edge_llm.cli.options import generation_options, generation_params, prefix_cache_option, runtime_config, runtime_options
from edge_llm.cli.piped import read_lines
from edge_llm.cli.terminal import has_person, note, quiet_progress, say
from edge_llm.cli.values import MODEL, TEXT
from edge_llm.engine.engine import Engine
from edge_llm.engine.load import load_engine
from edge_llm.engine.request import Finish
from edge_llm.errors import EdgeLLMError
from edge_llm.talk.conversation import conversation_request

HELP = """\
/help          this list
/reset         forget the conversation
/system TEXT   set the system message and start over
/stats         speed of the last answer
/exit          leave (also Ctrl-D); Ctrl-C stops an answer"""


@click.command("chat")
@click.argument("model", type=MODEL, required=False)
@generation_options
@runtime_options
@prefix_cache_option
@click.option("--system", type=TEXT, help="System message.")
def chat_command(model: str | None, system: str | None, **options: Any) -> None:
    """Chat with MODEL (default: the built-in model).

    What the model thinks before it answers goes, dimmed, to stderr if that is a terminal; it is not shown to it again.
    """
    runtime = runtime_config(options)
    with quiet_progress() as progress:
        engine = load_engine(model, runtime, progress)
    Conversation(engine, system, generation_params(options, engine.defaults)).run()


class Conversation:
    """The messages so far, and what each line of the person does to them."""

    def __init__(self, engine: Engine, system: str | None, params: Any) -> None:
        self._engine = engine
        self._params = params
        self._system = system
        self._messages = self._opening()
        self._last: Finish | None = None

    def run(self) -> None:
        """Answer line after line until the person leaves."""
        interactive = has_person()
        if interactive:
            note(f"{self._engine.name}: context {self._engine.runner.context} tokens. /help lists the commands.")
        if self._engine.template.is_default:
            note("This model brings no chat template and may not be made for chatting; it gets plain `role: text` lines.")
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
        elif command in ("/reset", "/clear"):
            self._messages = self._opening()
            note("The conversation starts over.")
        elif command == "/system":
            self._system = argument.strip() or None
            self._messages = self._opening()
            note("The system message is set; the conversation starts over.")
        elif command == "/stats":
            note(_speed(self._last) if self._last else "No answer yet.")
        else:
            note(f"unknown command `{command}`; /help lists the commands")
        return True

    def _answer(self, line: str) -> None:
        """One turn.  A turn that fails or is interrupted before the model says anything leaves the conversation as it was."""
        messages = [*self._messages, {"role": "user", "content": line}]
        printer: Printer | None = None
        try:
            request, syntax = conversation_request(self._engine, messages, self._params)
            printer = Printer(syntax)
            for delta in self._engine.stream(request):
                printer.show(delta)
                self._last = delta.finish or self._last
        except KeyboardInterrupt:
            note("\n[stopped]")
        except EdgeLLMError as error:
            note(f"error: {error}" + (" (/reset starts over)" if len(messages) > 1 else ""))
            return
        else:
            say()
        if printer is not None and printer.said:
            self._messages = [*messages, {"role": "assistant", "content": printer.said}]


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
            note("\n(/exit or Ctrl-D leaves)")


def _speed(finish: Finish) -> str:
    usage, timings = finish.usage, finish.timings
    return (
        f"{usage.prompt_tokens} tokens read ({usage.cached_tokens} from the last turn) at "
        f"{timings.prompt_per_second:.0f}/s, {usage.completion_tokens} written at {timings.predicted_per_second:.0f}/s"
    )
