"""Options that several verbs share, and how they become frozen values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from edge_llm.cli.here import known_here
from edge_llm.cli.values import MODEL, REAL, TEXT, WHOLE, Whole
from edge_llm.config import ACTIVATIONS, AUTO, KV_ALIASES, MOST_PARALLEL, GenerationParams, Grammar, RuntimeConfig
from edge_llm.decoding.defaults import with_overrides
from edge_llm.decoding.draft import NO_MODELS, own_layers
from edge_llm.errors import UsageError
from edge_llm.files import read_file, shown

Command = TypeVar("Command", bound=Callable[..., Any])


def option_name(param: click.Parameter) -> str:
    """What the file and the environment call ``param``: its long flag, or an argument's name."""
    flags = sorted(param.opts, key=lambda flag: not flag.startswith("--"))
    return flags[0].lstrip("-").replace("_", "-").lower()


class SharedOption(click.Option):
    """An option that means the same in several commands: `EDGE_LLM_NAME` and [defaults] of the config file may set it."""

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.envvar = "EDGE_LLM_" + option_name(self).upper().replace("-", "_")

    def value_from_envvar(self, ctx: click.Context) -> Any:
        value = self.resolve_envvar_value(ctx) if self.multiple else super().value_from_envvar(ctx)
        return (value,) if self.multiple and value is not None else value  # one text, whatever spaces are in it


shared = partial(click.option, cls=SharedOption)

threads_option = shared("-t", "--threads", type=WHOLE, help="CPU threads; default: the cores this process may use.")
float_option = shared(
    "--float", "float_path", is_flag=True, help="Compute in float32 on the source's weights (slow, exact)."
)

device_option = shared(
    "--device",
    default="auto",
    show_default=True,
    help="Where the model runs: host, ascend (a card), emulated:CHIP (such as 310p), onnx (products in onnxruntime), "
    "om:FOLDER (compiled products), or auto: ascend if a card is here and lacks nothing, else host.",
)
placement_option = shared(
    "--placement",
    default="auto",
    show_default=True,
    help="What a card computes: split (INT8 products), split,host (those of prompts alone) or card (everything).",
)


KEYS_FORMS = ("auto", "int8", "float16")
"""How devices keep keys and values; auto: the device chooses."""


class _KeysForm(click.Choice):
    """How a device keeps keys and values, by our name or another engine's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(KV_ALIASES.get(value, value), param, ctx)


keys_option = shared(
    "--kv",
    "keys",
    type=_KeysForm(KEYS_FORMS),
    default="auto",
    show_default=True,
    help="How keys and values are kept; the host has int8, a model on a card either.",
)
activations_option = shared(
    "--activations",
    type=click.Choice((AUTO, *ACTIVATIONS)),
    default=AUTO,
    show_default=True,
    help="Scales of INT8 activations: one for each row, or static ones with what overflows kept apart.",
)
card_memory_option = shared(
    "--card-memory", help="Most of the card's memory to take (4GiB); layers that do not fit come from main memory or flash."
)
context_option = shared(
    "--ctx", "context", type=WHOLE, help="Context in tokens; default: the model's own, at most 32768."
)
chunk_option = shared(
    "--chunk", type=WHOLE, help="Longest prefill chunk in tokens.  [default: 256; on an Ascend card what its chip likes: 1024]"
)
lora_option = click.option(
    "--lora", multiple=True, metavar="NAME=FOLDER", help="An adapter that requests may name as a model; may be repeated."
)
one_lora_option = click.option(
    "--lora", metavar="FOLDER", help="Answer with this adapter (LoRA) of the model: a folder, a GGUF file, or a hub id."
)
parallel_option = shared(
    "--parallel",
    type=Whole(1, MOST_PARALLEL),
    default=RuntimeConfig.parallel,
    show_default=True,
    help="Most answers at a time; others wait, as they do for --kv-memory.",
)
prefix_cache_option = shared(
    "--prefix-cache", metavar="SIZE", help="Disk for keys and values of prompts, for the next start (1GiB).  Default: none."
)

_PLACE = (
    device_option,
    placement_option,
    keys_option,
    activations_option,
    card_memory_option,
    shared("--cpus", help="CPUs to run on, such as 0-3,8."),
    shared("--numa", help="Run on the CPUs of this NUMA node; `card`: of the node of the Ascend card."),
    shared("--memory", help="Most memory for weights (300MiB, 50%); the rest is streamed from flash.  Default: all."),
    context_option,
    chunk_option,
)
draft_option = shared(
    "--draft",
    type=MODEL,
    default="lookup",
    show_default=True,
    help="Who guesses tokens ahead: lookup, none, a small MODEL, or self:N, the model's first N layers; where it pays.",
)

_GENERATION = (
    shared("--temperature", type=REAL, help="0 is greedy; default: the model author's, or 0.7 with --min-p 0.05 and DRY."),
    shared("--top-p", type=REAL, help="Keep the most likely tokens up to this mass."),
    shared("--top-k", type=WHOLE, help="Keep the K most likely tokens; 0 keeps all."),
    shared("--min-p", type=REAL, help="Keep tokens at least this fraction as likely as the best."),
    shared("--repetition-penalty", type=REAL, help="Above 1 makes seen tokens less likely."),
    shared("--dry-multiplier", type=REAL, help="DRY: what a token costs that would lengthen a repeat; 0 is off."),
    shared("--seed", type=WHOLE, help="Same seed, same text."),
    shared("-n", "--max-tokens", type=WHOLE, help="Stop after this many tokens."),
    shared("--think-tokens", type=WHOLE, help="End a thought after this many tokens; the answer follows."),
    shared("--stop", type=TEXT, multiple=True, help="Stop before this text; may be repeated."),
    shared("--loop-guard/--no-loop-guard", default=None, help="End an answer that says the same over and over; default: yes."),
)


_GRAMMARS: dict[str, Literal["json_schema", "lark", "regex"]] = {
    "json_schema": "json_schema", "grammar": "lark", "regex": "regex",
}  # fmt: skip
"""Kinds of grammars by the options that give them."""
_GRAMMAR = (
    click.option("--json-schema", metavar="FILE|TEXT", help="Answer with JSON that fits this schema."),
    click.option("--grammar", metavar="FILE|TEXT", help="Answer with what this grammar allows (Lark or GBNF syntax)."),
    click.option("--regex", type=TEXT, help="Answer with text that matches this regular expression as a whole."),
)
MAX_GRAMMAR_BYTES = 4 << 20


def runtime_options(command: Command) -> Command:
    """Add --threads --device --placement --kv --card-memory --cpus --numa --memory --ctx --chunk --draft --float."""
    return add_options(command, threads_option, *_PLACE, draft_option, float_option)


def place_options(command: Command) -> Command:
    """Add --device --placement --kv --card-memory --cpus --numa --memory --ctx --chunk."""
    return add_options(command, *_PLACE)


def generation_options(command: Command) -> Command:
    """Add the sampling options."""
    return add_options(command, *_GENERATION)


def grammar_options(command: Command) -> Command:
    """Add --json-schema --grammar --regex."""
    return add_options(command, *_GRAMMAR)


def grammar_of(options: dict[str, Any]) -> Grammar | None:
    """The grammar that the parsed ``options`` ask for; the keys used are taken out of ``options``."""
    given = {name: value for name in _GRAMMARS if (value := options.pop(name)) is not None}
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names} cannot be combined; leave all but one out", param=list(given)[1])
    for name, value in given.items():
        text = value if name == "regex" else _text_or_file(value, name)
        return Grammar(_GRAMMARS[name], text)
    return None


def _text_or_file(value: str, name: str) -> str:
    """``value``, or the text of the file that it names."""
    if not _is_file(value):
        if name == "json_schema" and not value.lstrip().startswith("{"):
            raise UsageError(f"no file `{shown(value)}`, and no JSON object; give one of them", param=name)
        return TEXT(value, param=None)
    try:
        return read_file(Path(value), MAX_GRAMMAR_BYTES, error=UsageError).decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        raise UsageError(f"`{shown(value)}`: byte {failure.start} is not UTF-8", param=name) from None


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except OSError:  # too long for a name, or where nobody may look
        return False


_RUNTIME = (
    "device", "placement", "keys", "activations", "card_memory", "cpus", "numa", "memory", "threads", "context", "chunk",
    "draft", "float_path", "parallel", "prefix_cache", "trace_experts", "lora",
)  # fmt: skip
"""Options that are a part of the `RuntimeConfig`."""


def runtime_config(options: dict[str, Any]) -> RuntimeConfig:
    """The `RuntimeConfig` that the parsed ``options`` ask for; the keys used are taken out of ``options``.

    What a verb has no option for is as `RuntimeConfig` has it.  Raises what `known_here` does for a draft model.
    """
    draft = options.get("draft")
    if draft not in (None, *NO_MODELS) and own_layers(draft) is None:
        options["draft"] = known_here(draft)
    return RuntimeConfig(**{name: options.pop(name) for name in _RUNTIME if name in options})


def generation_params(options: dict[str, Any], defaults: GenerationParams) -> GenerationParams:
    """``defaults`` with what the parsed ``options`` say otherwise."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    return with_overrides(defaults, **given)


def add_options(command: Command, *options: Callable[[Any], Any]) -> Command:
    """``command`` with ``options``, which its help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


SHARED = click.command("defaults")(
    add_options(
        lambda **_: None,
        threads_option,
        *_PLACE,
        draft_option,
        float_option,
        parallel_option,
        prefix_cache_option,
        *_GENERATION,
    )
)
"""No command, but the parameters that [defaults] may set: one of each name."""
SHARED_NAMES = frozenset(map(option_name, SHARED.params))
