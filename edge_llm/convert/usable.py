"""Whether the imported model will be able to answer: checked before anything is measured or written."""

from __future__ import annotations

from collections.abc import Callable

from edge_llm.decoding.defaults import generation_defaults
from edge_llm.errors import InvalidModel, UsageError
from edge_llm.files import shown
from edge_llm.sources.base import Source
from edge_llm.text.chat import ChatTemplate, encode_chat
from edge_llm.text.tokenizer import Tokenizer

SHORTEST_PROMPT = "Hi"


def check_usable(source: Source, tokenizer: Tokenizer, notice: Callable[[str], None]) -> None:
    """Check that the model of ``source`` has room for the shortest prompt and an answer.

    ``notice`` is told of each sampling default that cannot be used.  Raises `InvalidModel` when the context has
    no room for a prompt and one token of its answer.
    """
    tokens = _shortest_prompt(source.template(tokenizer), tokenizer)
    context = source.config.context
    if tokens >= context:
        raise InvalidModel(
            f"config.json: a context of `{context}` tokens has no room for an answer to `{SHORTEST_PROMPT}`, "
            f"which is {tokens} tokens with all that the model wants around it; check max_position_embeddings"
        )
    if tokenizer.left_out:
        texts = ", ".join(f"`{shown(text, 40)}`" for text in tokenizer.left_out[:3])
        notice(f"tokenizer.json: {len(tokenizer.left_out)} added tokens beyond the embedding are left out: {texts}")
    for reason in generation_defaults(source.generation_config()).left_out:
        notice(f"generation_config.json: {reason}; the model runs without this default")


def _shortest_prompt(template: ChatTemplate, tokenizer: Tokenizer) -> int:
    """Tokens of the shortest prompt as `edge-llm run` makes it."""
    if not template.is_default:
        try:
            return len(encode_chat(template, tokenizer, [{"role": "user", "content": SHORTEST_PROMPT}]))
        except UsageError:
            pass  # the template wants other messages; the text alone is a bound from below
    return len(tokenizer.encode(SHORTEST_PROMPT, add_bos=tokenizer.add_bos))
