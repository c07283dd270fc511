"""Which model a chat opens with where nobody names one."""

from __future__ import annotations

from edge_llm.chats.store import ChatStore
from edge_llm.errors import EdgeLLMError
from edge_llm.paths import find_bundle, imported_models

_CHATS_LOOKED_AT = 50


def first_model(store: ChatStore) -> str | None:
    """The model of the newest chat of which the model is here, else the one that was imported last.

    None where only the built-in model is here.
    """
    try:
        used = (found.chat.settings.get("model") for found in store.chats(limit=_CHATS_LOOKED_AT))
        named = (name for name in used if isinstance(name, str) and name and _is_here(name))
        return next(named, None) or next(iter(imported_models()), None)
    except EdgeLLMError:  # opening the model tells what is wrong with the folder
        return None


def _is_here(model: str) -> bool:
    try:
        find_bundle(model)
    except EdgeLLMError:
        return False
    return True
