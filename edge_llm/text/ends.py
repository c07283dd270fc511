"""The tokens that end a turn, as a chat template shows them: authors forget to name them in their configs."""

from __future__ import annotations

from edge_llm.errors import EdgeLLMError
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import Tokenizer

_ASKED, _SAID, _ASKED_AGAIN = "qoxvakask", "qoxvaksaid", "qoxvakagain"
"""Words that no template has."""


def turn_end(template: ChatTemplate, tokenizer: Tokenizer) -> int | None:
    """The token that ``template`` puts behind what the assistant says; None where that is one which ends answers already.

    What begins the next turn is such a token too: who writes it speaks for the user.
    """
    if template.is_default:
        return None
    words = (("user", _ASKED), ("assistant", _SAID), ("user", _ASKED_AGAIN))
    try:
        text = template.render([{"role": role, "content": word} for role, word in words])
    except EdgeLLMError:  # it wants other messages
        return None
    behind = text.rpartition(_SAID)[2].partition(_ASKED_AGAIN)[0].lstrip()
    found = max((mark for mark in tokenizer.marks if behind.startswith(mark)), key=len, default=None)
    token = None if found is None else tokenizer.token_id(found)
    return None if token in (*tokenizer.eos_ids, tokenizer.bos_id) else token
