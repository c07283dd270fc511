"""`edge-llm run`: one answer on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from edge_llm.cli.answer import LOOPED, Printer
from edge_llm.cli.options import (
    generation_options,
    generation_params,
    grammar_of,
    grammar_options,
    prefix_cache_option,
    runtime_config,
    runtime_options,
)
from edge_llm.cli.piped import read_all
from edge_llm.cli.terminal import has_person, note, quiet_progress, say, say_json
from edge_llm.cli.values import MODEL, TEXT
from edge_llm.config import REPETITION
from edge_llm.decoding.guided import check_grammar
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.load import load_engine
from edge_llm.engine.request import Answer, Delta, Request
from edge_llm.errors import EdgeLLMError, UsageError
from edge_llm.files import shown
from edge_llm.talk.conversation import conversation_request
from edge_llm.talk.outcome import AnswerSyntax


@click.command("run")
@click.argument("model", type=MODEL, required=False)
@click.argument("prompt", type=TEXT, required=False)
@generation_options
@grammar_options
@runtime_options
@prefix_cache_option
@click.option("--system", type=TEXT, help="System message, for a model with a chat template.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it stands, without the chat template.")
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on after the end token.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: text, reasoning, tokens, usage, timings, device.")
def run_command(model: str | None, prompt: str | None, system: str | None, raw: bool, as_json: bool, **options: Any) -> None:
    """Answer PROMPT with MODEL (default: the built-in model) and print the answer.

    Text piped to stdin is the prompt, or is put after PROMPT if both are given; the end of its last line is not
    part of it.  A model with a chat template answers as an assistant; one without continues the text.  What the
    model thinks before it answers goes, dimmed, to stderr if that is a terminal, and into `reasoning` with --json.
    """
    text = _whole_prompt(model, prompt)
    runtime = runtime_config(options)
    grammar = grammar_of(options)
    with quiet_progress() as progress:
        engine = load_engine(model, runtime, progress)
    if grammar is not None:
        check_grammar(grammar, engine.tokenizer)
    params = generation_params(options | {"grammar": grammar}, engine.defaults)
    request, syntax = _request(engine, text, system, raw, params)
    if as_json:
        say_json(_as_dict(engine.answer(request), syntax) | asdict(engine.runner.site), indent=None)
    else:
        _print_stream(engine, request, syntax)


def _whole_prompt(model: str | None, prompt: str | None) -> str:
    piped = "" if sys.stdin is None or has_person() else read_all()
    if prompt is None and not piped:
        named = "" if model is None else f" for the model `{shown(model)}`"
        raise UsageError(f'no prompt{named}; write `edge-llm run MODEL "your text"` or pipe it in', param="prompt")
    text = "\n\n".join(part for part in (prompt, piped) if part)
    if not text:
        raise UsageError("the prompt is empty; give at least one character", param="prompt")
    return text


def _request(engine: Engine, text: str, system: str | None, raw: bool, params: Any) -> tuple[Request, AnswerSyntax]:
    if raw or engine.template.is_default:
        if system is not None:
            raise UsageError("--system needs a model with a chat template, and no --raw", param="system")
        return engine.text_request(text, params), AnswerSyntax(engine.tokenizer)
    messages = [] if system is None else [{"role": "system", "content": system}]
    return conversation_request(engine, [*messages, {"role": "user", "content": text}], params)


def _as_dict(answer: Answer, syntax: AnswerSyntax) -> dict[str, Any]:
    """The JSON object of --json: the text without thoughts, and these; ``tokens`` are all that the model wrote."""
    outcome = syntax.outcome(answer)
    return answer.as_dict() | {"text": outcome.said, "reasoning": outcome.thought}


def _print_stream(engine: Engine, request: Request, syntax: AnswerSyntax) -> None:
    printer, reader = Printer(), syntax.reader()

    def printed() -> Iterator[Delta]:
        for delta in engine.stream(request):
            for piece in reader.read(delta):
                printer.show(piece)
            yield delta

    try:
        answer = collect(printed())
    except (KeyboardInterrupt, EdgeLLMError):
        say()
        raise
    printer.end()
    if not printer.said.endswith("\n"):
        say()
    if answer.finish.reason == "length" and request.params.grammar is not None:
        note(f"the answer is not complete: it ended after {answer.finish.usage.completion_tokens} tokens (--max-tokens, --ctx)")
    if answer.finish.reason == REPETITION:
        note(f"{LOOPED} (--no-loop-guard lets it go on)")
    if sys.stderr is not None and sys.stderr.isatty() and sys.stdout.isatty():
        timings = answer.finish.timings
        note(
            f"[{answer.finish.usage.prompt_tokens} tokens read at {timings.prompt_per_second:.0f}/s, "
            f"{answer.finish.usage.completion_tokens} written at {timings.predicted_per_second:.0f}/s]"
        )
