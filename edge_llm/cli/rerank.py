"""`edge-llm rerank`: lines of stdin in the order in which they answer a query."""

from __future__ import annotations

from typing import Any

import click

from edge_llm.cli.here import model_here, yes_option
from edge_llm.cli.options import runtime_config, runtime_options
from edge_llm.cli.piped import given_texts
from edge_llm.cli.terminal import quiet_progress, say, say_json
from edge_llm.cli.values import ANY_MODEL, TEXT, Whole
from edge_llm.engine.ranking_texts import ranking_prompts
from edge_llm.opening.load import load_engine


@click.command("rerank")
@click.argument("model", type=ANY_MODEL)
@click.argument("query", type=TEXT)
@click.argument("documents", metavar="[DOCUMENT]...", type=TEXT, nargs=-1)
@runtime_options
@yes_option
@click.option("--top", type=Whole(1), help="Print so many only.")
@click.option("--instruction", type=TEXT, help="What it is for, to models that are asked in words, such as Qwen3-Reranker.")
@click.option("--truncate/--no-truncate", default=True, show_default=True, help="Cut too long documents, or refuse them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: model, results, tokens.")
def rerank_command(
    model: str,
    query: str,
    documents: tuple[str, ...],
    top: int | None,
    instruction: str | None,
    truncate: bool,
    as_json: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Print each DOCUMENT, or each line of stdin, behind its score, the one that answers QUERY best first.

    A reranker gives the score that it was trained for, an embedding model the cosine, and any other model how sure it is, from
    0 to 1, that the document answers the query.
    """
    given = given_texts(documents, "documents", f'edge-llm rerank MODEL "{query}" "a document"')
    runtime = runtime_config(options)
    name = model_here(model, runtime, yes=yes)
    with quiet_progress() as progress:
        engine = load_engine(name, runtime, progress)
    asked = ranking_prompts(engine, query, given, instruction=instruction, truncate=truncate)
    scores = asked.scores(engine.rank(asked))
    best = sorted(range(len(given)), key=lambda index: -scores[index])[:top]
    if as_json:
        results = [{"index": index, "relevance_score": scores[index], "text": given[index]} for index in best]
        say_json({"model": engine.name, "results": results, "tokens": asked.tokens}, indent=None)
        return
    for index in best:
        say(f"{scores[index]:.6f}\t{given[index]}")
