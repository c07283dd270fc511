"""`edge-llm run`: one answer on stdout."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

import click

from edge_llm.cli.answer import Printer, cut_short, is_drawn
from edge_llm.cli.here import model_here, no_store_option, yes_option
from edge_llm.cli.options import (
    generation_options,
    generation_params,
    grammar_of,
    grammar_options,
    one_lora_option,
    prefix_cache_option,
    runtime_config,
    runtime_options,
)
from edge_llm.cli.piped import is_piped_in, read_all
from edge_llm.cli.terminal import has_person, note, quiet_progress, say_json
from edge_llm.cli.values import ANY_MODEL, TEXT, NewFile
from edge_llm.decoding.guided import check_grammar
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.request import Answer, Delta, Request
from edge_llm.errors import ModelNotFound, UsageError
from edge_llm.files import shown
from edge_llm.opening.load import load_engine
from edge_llm.paths import find_bundle
from edge_llm.talk.conversation import conversation_request
from edge_llm.talk.outcome import AnswerSyntax


@click.command("run")
@click.argument("model", type=ANY_MODEL, required=False)
@click.argument("words", metavar="[PROMPT] [-]", type=TEXT, nargs=-1)
@generation_options
@grammar_options
@runtime_options
@prefix_cache_option
@one_lora_option
@yes_option
@no_store_option
@click.option("--system", type=TEXT, help="System message, for a model with a chat template.")
@click.option("--raw", is_flag=True, help="Continue the prompt exactly as it stands, without the chat template.")
@click.option(
    "--parse-special/--no-parse-special",
    default=None,
    help="With --raw, what spells a control token in the prompt is one; default: yes.",
)
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on after the end token.")
@click.option("--trace-experts", metavar="FILE", type=NewFile(), help="Write which experts rows go to, for `bench experts`.")
@click.option("--plain", is_flag=True, help="Print the answer as it was said; on a terminal its Markdown is drawn.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: text, reasoning, tokens, usage, timings, device.")
def run_command(
    model: str | None,
    words: tuple[str, ...],
    system: str | None,
    raw: bool,
    parse_special: bool | None,
    plain: bool,
    as_json: bool,
    yes: bool,
    no_store: bool,
    **options: Any,
) -> None:
    """Answer PROMPT with MODEL (default: the built-in model) and print the answer.

    Without PROMPT, stdin is the prompt.  Beside PROMPT, text that is piped into this command goes behind it:
    `cat notes.txt | edge-llm run MODEL "Summarize this:"`, and so with `< notes.txt`.  What the shell around it reads from is
    left alone, so `while read LINE; do edge-llm run MODEL "$LINE"; done < file` works; in a script, `-` behind PROMPT
    reads stdin all the same, and `</dev/null` never does.  The end of the last line is not part of the prompt, but with --raw.

    A model with a chat template answers as an assistant; one without continues the text.  What the
    model thinks before it answers goes, dimmed, to stderr if that is a terminal, and into `reasoning` with --json.
    """
    if model == STDIN and not words:
        model, words = None, (STDIN,)
    if parse_special is not None and not raw:
        raise UsageError("--parse-special and --no-parse-special need --raw", param="parse_special")
    text = _whole_prompt(model, words, raw)
    runtime = runtime_config(options)
    grammar = grammar_of(options)
    model = model_here(model, runtime, yes=yes, store=not no_store)
    drawn = is_drawn() and grammar is None and not (raw or plain or as_json)
    if drawn:
        threading.Thread(target=import_module, args=[_WRITER], daemon=True).start()  # takes as long as a small model
    with quiet_progress() as progress:
        engine = load_engine(model, runtime, progress).with_only_adapter
    if grammar is not None:
        check_grammar(grammar, engine.tokenizer)
    params = generation_params(options | {"grammar": grammar}, engine.defaults)
    request, syntax = _request(engine, text, system, params, raw=raw, parse_special=raw and parse_special is not False)
    if as_json:
        found = _as_dict(engine.answer(request), syntax) | asdict(engine.runner.site)
        inside = engine.runner.look()
        found |= {} if inside.token_bytes is None else inside.token_bytes.facts
        say_json(found | ({} if inside.experts is None else inside.experts.facts), indent=None)
    else:
        drawn = drawn and not engine.template.is_default  # a text that is continued is no Markdown
        _print_stream(engine, request, syntax, Printer(import_module(_WRITER).MarkdownWriter() if drawn else None))


STDIN = "-"
_WRITER = "edge_llm.cli.markdown_writer"
"""Loads what draws Markdown, which nobody needs without a terminal."""


def _whole_prompt(model: str | None, words: tuple[str, ...], raw: bool) -> str:
    """PROMPT, what is piped in, or both.  Raises `UsageError` where there is neither, or more than one PROMPT."""
    prompts = words[:-1] if words[-1:] == (STDIN,) else words
    if len(prompts) > 1:
        quoted = " ".join([*(part for part in [model] if part), f'"{" ".join(prompts)[:80]}"'])
        raise UsageError(f"the prompt is one argument; put it in quotes: `edge-llm run {quoted}`", param="prompt")
    wanted = not prompts and not has_person()
    piped = read_all(exact=raw) if prompts != words or wanted or is_piped_in() else ""
    if not prompts and not piped:
        with contextlib.suppress(ModelNotFound):
            find_bundle(model)  # a prompt in its place is told so
        named = "" if model is None else f" for the model `{shown(model)}`"
        raise UsageError(f'no prompt{named}; write `edge-llm run MODEL "your text"` or pipe it in', param="prompt")
    text = "\n\n".join(part for part in (*prompts, piped) if part)
    if not text:
        raise UsageError("the prompt is empty; give at least one character", param="prompt")
    return text


def _request(
    engine: Engine, text: str, system: str | None, params: Any, *, raw: bool, parse_special: bool
) -> tuple[Request, AnswerSyntax]:
    if raw or engine.template.is_default:
        if system is not None:
            raise UsageError("--system needs a model with a chat template, and no --raw", param="system")
        return engine.text_request(text, params, parse_special=parse_special), AnswerSyntax(engine.tokenizer)
    messages = [] if system is None else [{"role": "system", "content": system}]
    return conversation_request(engine, [*messages, {"role": "user", "content": text}], params)


def _as_dict(answer: Answer, syntax: AnswerSyntax) -> dict[str, Any]:
    """The JSON object of --json: the text without thoughts, and these; ``tokens`` are all that the model wrote."""
    outcome = syntax.outcome(answer)
    return answer.as_dict() | {"text": outcome.said, "reasoning": outcome.thought}


def _print_stream(engine: Engine, request: Request, syntax: AnswerSyntax, printer: Printer) -> None:
    reader = syntax.reader()

    def printed() -> Iterator[Delta]:
        for delta in engine.stream(request):
            for piece in reader.read(delta):
                printer.show(piece)
            yield delta

    try:
        answer = collect(printed())
    finally:
        printer.finish()
    if said := cut_short(answer.finish, request.params.max_tokens):
        note(said)
    if sys.stderr is not None and sys.stderr.isatty() and sys.stdout.isatty():
        timings = answer.finish.timings
        note(
            f"[{answer.finish.usage.prompt_tokens} tokens read at {timings.prompt_per_second:.0f}/s, "
            f"{answer.finish.usage.completion_tokens} written at {timings.predicted_per_second:.0f}/s]"
        )
