"""What a server is told of its answers when it starts: the chat template, thoughts, and sampling where requests say nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edge_llm.cli.values import Real, Whole

if TYPE_CHECKING:
    from edge_llm.engine.engine import Engine
    from edge_llm.server.pool import ModelPool

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = (
    click.option(
        "--chat-template", metavar="NAME|FILE",
        help="Another chat template: a file, or chatml, llama3, gemma, mistral and others.",
    ),
    click.option(
        "--reasoning", type=click.Choice(("on", "off", "auto")), default="auto", show_default=True,
        help="Whether the model thinks where a request says nothing; auto leaves it to the template.",
    ),
    click.option("--temperature", type=Real(0, 2), help="Where a request has none; default: the model author's, or 1."),
    click.option("--seed", type=Whole(0, 2**63), help="Where a request has none; default: another for each."),
    click.option("--tag", "tags", multiple=True, help="A word about the model, in GET /models; may be repeated."),
    click.option(
        "--without", type=click.Choice(("page", "slots", "metrics")), multiple=True, help="Leave this out; may be repeated."
    ),
    click.option("--verbose", is_flag=True, help="Show in each chat completion the prompt that the model read (`__verbose`)."),
)  # fmt: skip


def answer_options(command: Command) -> Command:
    """The options that `Answering` is made of."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Answering:
    """What holds for all answers of a server."""

    source: str | None
    """Of another chat template than the model's."""
    reasoning: str
    sampling: dict[str, Any]
    tags: tuple[str, ...]
    verbose: bool
    without: frozenset[str]

    @classmethod
    def of(cls, options: dict[str, Any]) -> Answering:
        """What ``options`` say, which loses them.  Raises `UsageError` for a template that is not there."""
        from edge_llm.talk.served_template import template_source

        named = options.pop("chat_template")
        sampling = {name: value for name in ("temperature", "seed") if (value := options.pop(name)) is not None}
        source = None if named is None else template_source(named)
        without = frozenset(options.pop("without"))
        return cls(source, options.pop("reasoning"), sampling, options.pop("tags"), options.pop("verbose"), without)

    def told(self, engine: Engine) -> Engine:
        """``engine``, which answers so."""
        from edge_llm.talk.served_template import served_template

        engine.template = served_template(engine.template, engine.tokenizer, self.source, self.reasoning)
        engine.served = replace(engine.served, **self.sampling)
        for adapted in engine.adapted.values():
            self.told(adapted)
        return engine

    def show(self, pool: ModelPool) -> ModelPool:
        """``pool``, which says so."""
        pool.without, pool.tags, pool.verbose = self.without, self.tags, self.verbose
        if pool.one is not None:
            for host in (pool.one, *pool.one.beside):
                host.verbose = self.verbose
        return pool
