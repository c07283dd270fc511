"""`edge-llm perplexity`: how near the INT8 path is to the float path on a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from edge_llm.bench.kv_quality import KVQuality, kv_quality_table, measure_kv_quality
from edge_llm.bench.quality import compare
from edge_llm.bench.shares import Shares, measure_shares
from edge_llm.cli.here import known_here
from edge_llm.cli.options import KEYS_FORMS, activations_option, device_option, placement_option, shared, threads_option
from edge_llm.cli.terminal import progress_bar, say, say_json
from edge_llm.cli.values import MODEL, Whole
from edge_llm.config import KV_ALIASES, RuntimeConfig
from edge_llm.errors import EdgeLLMError, UsageError
from edge_llm.files import read_file, shown
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.sizes import sizes
from edge_llm.opening.defaults import fill_defaults
from edge_llm.opening.load import load_comparison
from edge_llm.opening.machine import this_machine
from edge_llm.paths import find_bundle
from edge_llm.quant.kv import KVScheme, kv_schemes
from edge_llm.quant.quality import Quality
from edge_llm.runner.base import Runner
from edge_llm.text.tokenizer import Tokenizer

Encoded = Callable[[Tokenizer], tuple[list[int], int | None]]
"""The tokens of the text, and the one that begins every window."""
MAX_TEXT_BYTES = 64 << 20


@click.command("perplexity")
@click.argument("model", type=MODEL)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--window", type=Whole(2), default=512, show_default=True, help="Tokens per window.")
@click.option("--max-tokens", type=Whole(2), help="Use only the first tokens of FILE.")
@threads_option
@device_option
@placement_option
@activations_option
@shared(
    "--kv",
    metavar="SCHEME[,...]",
    default="auto",
    show_default=True,
    help="On the host: a table of what keys and values cost alone, kept as float16, int8, int4/int8 (keys/values), or all "
    "that there are.  On a card: how it keeps them, int8 or float16.",
)
@click.option("--parse-special", is_flag=True, help="Control tokens spelled in FILE are control tokens (rendered chats).")
@click.option("--no-shadow", is_flag=True, help="Drop the shadow outliers, to see what they are worth.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def perplexity_command(
    model: str,
    file: Path,
    window: int,
    max_tokens: int | None,
    threads: int | None,
    device: str,
    placement: str,
    activations: str,
    kv: str,
    parse_special: bool,
    no_shadow: bool,
    as_json: bool,
) -> None:
    """Perplexity of MODEL on the text FILE: the INT8 path beside the float path on the source's own weights.

    On the host it also tells what the divergence comes from.  With --kv it measures keys and values apart from the weights.
    """
    text = _text(file)
    runtime = RuntimeConfig(
        threads=threads, shadow=not no_shadow, device=device, placement=placement, activations=activations
    )

    def encoded(tokenizer: Tokenizer) -> tuple[list[int], int | None]:
        tokens = tokenizer.encode(text, parse_special=parse_special)[:max_tokens]
        return tokens, tokenizer.bos_id if tokenizer.add_bos else None

    model = str(known_here(model))
    if kv != "auto" and _runs_on_host(model, runtime):
        found = _kv_quality(model, runtime, kv_schemes(kv), encoded, window)
        return say_json({"kv": [asdict(each) for each in found]}, indent=None) if as_json else say(kv_quality_table(found))
    runtime = replace(runtime, keys=_on_card(kv))
    with progress_bar() as draw:
        draw("loading", 0, 1)  # the float weights of a large model take long
        tokenizer, runner, oracle = load_comparison(model, runtime)
        draw("loading", 1, 1)
        precision = _precision(model)
        tokens, bos = encoded(tokenizer)
        window = min(window, runner.context)
        quality = compare(runner, oracle, tokens, window, bos, partial(draw, "perplexity"))
        shares = None
        if runner.site.device == "host":
            shares = measure_shares(model, runtime, tokens, window, bos, partial(draw, "shares"))
    if as_json:
        facts = {"shares": shares and asdict(shares), "clipped_inputs": runner.clipped, "precision": precision}
        return say_json(asdict(quality) | facts | asdict(runner.site), indent=None)
    return say(f"{_table(quality, precision.upper())}\n{_shares(shares) if shares else _place(runner)}")


def _runs_on_host(model: str, runtime: RuntimeConfig) -> bool:
    with open_bundle(find_bundle(model)) as bundle:
        return fill_defaults(runtime, bundle.config, this_machine())[0].device == "host"


def _on_card(kv: str) -> str:
    name = kv.strip().lower()
    keys = KV_ALIASES.get(name, name)
    if keys not in KEYS_FORMS:
        raise UsageError(f"--kv `{shown(kv)}`: a card keeps keys and values as {' or '.join(KEYS_FORMS[1:])}", param="kv")
    return keys


def _kv_quality(
    model: str, runtime: RuntimeConfig, schemes: Sequence[KVScheme], encoded: Encoded, window: int
) -> list[KVQuality]:
    """What each of ``schemes`` costs the model."""
    folder = find_bundle(model)
    with open_bundle(folder) as bundle:
        config = bundle.config
    tokens, bos = encoded(Tokenizer.from_folder(folder, config.vocab_size))
    with progress_bar() as draw:
        progress = partial(draw, "perplexity")
        return measure_kv_quality(folder, runtime, schemes, tokens, min(window, config.context), bos, progress)


def _text(file: Path) -> str:
    try:
        return read_file(file, MAX_TEXT_BYTES).decode("utf-8-sig")
    except EdgeLLMError as error:
        raise UsageError(f"cannot read the text: {error}", param="file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"`{file}` is not UTF-8 text (byte {error.start})", param="file") from error


def _precision(model: str) -> str:
    """The schemes of the model's weights, such as `int8`."""
    with open_bundle(find_bundle(model)) as bundle:
        return sizes(bundle).precision


def _place(runner: Runner[Any]) -> str:
    return f"inputs cut off      {runner.clipped:10d}\n{runner.site}"


def _shares(shares: Shares) -> str:
    parts = {place: share for place, share in asdict(shares).items() if place != "tokens"}
    whole = sum(max(0.0, share) for share in parts.values()) or 1.0
    lines = [f"  {place:17} {share:10.6f}   {share / whole:4.0%}" for place, share in parts.items()]
    return "\n".join([f"of the divergence, on {shares.tokens} tokens", *lines])


def _table(quality: Quality, precision: str) -> str:
    ratio = quality.perplexity / quality.float_perplexity
    return (
        f"{'perplexity ' + precision:19} {quality.perplexity:10.4f}\n"
        f"perplexity float    {quality.float_perplexity:10.4f}   ({precision} is x{ratio:.5f})\n"
        f"mean KL divergence  {quality.mean_kl:10.6f}   nats per token\n"
        f"top-1 agreement     {100 * quality.top1_agreement:10.2f} %\n"
        f"tokens              {quality.tokens:10d}"
    )
