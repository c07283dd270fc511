"""`edge-llm embed`: vectors of texts on stdout."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from edge_llm.cli.here import model_here, yes_option
from edge_llm.cli.options import runtime_config, runtime_options
from edge_llm.cli.piped import given_texts
from edge_llm.cli.terminal import quiet_progress, say, say_json
from edge_llm.cli.values import ANY_MODEL, TEXT, Whole
from edge_llm.engine.embedding import shortened
from edge_llm.engine.engine import Engine
from edge_llm.errors import UsageError
from edge_llm.opening.load import load_engine


@click.command("embed")
@click.argument("model", type=ANY_MODEL)
@click.argument("texts", metavar="[TEXT]...", type=TEXT, nargs=-1)
@runtime_options
@yes_option
@click.option("--prompt", metavar="NAME", help="One of the model's prompts, such as `query`, to stand before every text.")
@click.option("--dimensions", type=Whole(1), help="The first numbers of each vector only, made as long as 1 again.")
@click.option("--truncate/--no-truncate", default=True, show_default=True, help="Cut a text that is too long, or refuse it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: model, embeddings, tokens.")
def embed_command(
    model: str,
    texts: tuple[str, ...],
    prompt: str | None,
    dimensions: int | None,
    truncate: bool,
    as_json: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Print the vector of each TEXT, a line each; without TEXT, of each line of stdin.

    Vectors have the length 1, so the product of two is their cosine.  Numbers are parted by spaces.
    """
    given = given_texts(texts, "texts", 'edge-llm embed MODEL "your text"')
    runtime = runtime_config(options)
    name = model_here(model, runtime, yes=yes)
    with quiet_progress() as progress:
        engine = load_engine(name, runtime, progress)
    tokens = _tokens(engine, given, prompt, truncate)
    vectors = shortened(engine.embed(tokens), dimensions)
    if as_json:
        found = {"model": engine.name, "embeddings": vectors.tolist(), "tokens": sum(map(len, tokens))}
        say_json(found, indent=None)
        return
    for vector in vectors:
        say(" ".join(np.format_float_positional(number, trim="0", unique=True) for number in vector))


def _tokens(engine: Engine, texts: list[str], prompt: str | None, truncate: bool) -> list[list[int]]:
    found = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(engine.text_tokens(text, prompt, truncate=truncate))
        except UsageError as error:
            raise UsageError(f"text {number}: {error}", param=error.param) from error
    return found
