"""The tokens of a query and its documents, as the model reads them to order these."""

from __future__ import annotations

from collections.abc import Sequence

from edge_llm.engine.embedding import text_tokens
from edge_llm.engine.ranking import COSINE, JUDGE, PAIR, RankingModel, RankingPrompts, judging
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.models.reading import SIGMOID, Reading
from edge_llm.text.chat import ChatTemplate, chat_prompt
from edge_llm.text.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can "
    'only be "yes" or "no".'
)


def way_of(model: RankingModel) -> str:
    """How ``model`` orders documents."""
    if model.reading is not None:
        return PAIR if model.reading.score else COSINE
    return JUDGE if not model.is_encoder and judging(model.tokenizer) else COSINE


def ranking_prompts(
    model: RankingModel, query: str, documents: Sequence[str], *, instruction: str | None = None, truncate: bool = True
) -> RankingPrompts:
    """The prompts that order ``documents`` by ``query``; a document that is too long is cut with ``truncate``.

    Raises `ContextOverflow`, and `UsageError` for an empty text, or an ``instruction`` where the model takes none.
    """
    way = way_of(model)
    named = [("query", "the query", query), *(("documents", f"document {at}", one) for at, one in enumerate(documents, 1))]
    for name, which, text in named:
        if not text:
            raise UsageError(f"{which} is empty; give at least one character", param=name)
    if instruction and way != JUDGE:
        raise UsageError("this model takes no instruction; leave it out", param="instruction")
    if way == JUDGE:
        prompts = [_judge_tokens(model, query, one, instruction or INSTRUCTION, truncate) for one in documents]
        return RankingPrompts(way, prompts, [0] * len(prompts), sigmoid=True)
    if way == PAIR:
        pairs = _pairs(model.tokenizer, query, documents, model.runner.context, truncate)
        prompts, second_starts = [tokens for tokens, _ in pairs], [start for _, start in pairs]
        return RankingPrompts(way, prompts, second_starts, (model.reading or Reading()).score == SIGMOID)
    kinds = {"query": "query", "documents": "document"}
    prompts = [_of_kind(model, kinds[name], text, truncate, name) for name, _, text in named]
    return RankingPrompts(way, prompts, (), sigmoid=False)


def _of_kind(model: RankingModel, kind: str, text: str, truncate: bool, named: str) -> list[int]:
    """The tokens of a query or a document, behind the model's prompt of that name where it has one."""
    prompt = kind if model.reading is not None and model.reading.prompt(kind) is not None else None
    return text_tokens(
        model.tokenizer, model.reading, text, prompt, model.runner.context, truncate=truncate, named=named
    )


def _pairs(
    tokenizer: Tokenizer, query: str, documents: Sequence[str], most: int, truncate: bool
) -> list[tuple[list[int], int]]:
    """The tokens of the query with each of ``documents``, and where their second text begins; the document alone is cut."""
    frame = tokenizer.pair_frame
    asked = tokenizer.encode(query)
    head = [*frame.begin, *asked, *frame.between]
    room = most - len(head) - len(frame.end)
    if room < 1:
        raise ContextOverflow(len(head) + len(frame.end) + 1, most, at_least=True)
    found = []
    for document in documents:
        ids = tokenizer.encode(document)
        if len(ids) > room and not truncate:
            raise ContextOverflow(len(head) + len(ids) + len(frame.end), most)
        found.append(([*head, *ids[:room], *frame.end], len(head) - frame.early if frame.two_kinds else 0))
    return found


def _judge_tokens(model: RankingModel, query: str, document: str, instruction: str, truncate: bool) -> list[int]:
    """The prompt that asks whether ``document`` answers ``query``; with ``truncate`` the document is cut until it fits."""
    template, tokenizer, most = model.template, model.tokenizer, model.runner.context

    def prompt(document: str) -> list[int]:
        return _judged(template, tokenizer, query, document, instruction)

    tokens = prompt(document)
    if len(tokens) <= most:
        return tokens
    if not truncate:
        raise ContextOverflow(len(tokens), most)
    ids = tokenizer.encode(document)
    beside = len(prompt("")) + 8  # words meet at a cut
    if beside >= most:
        raise ContextOverflow(beside, most, at_least=True)
    return prompt(tokenizer.decode(ids[: most - beside]))[:most]


def _judged(template: ChatTemplate, tokenizer: Tokenizer, query: str, document: str, instruction: str) -> list[int]:
    asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": asked}]
    return list(chat_prompt(template, tokenizer, messages, {"enable_thinking": False}).tokens)
