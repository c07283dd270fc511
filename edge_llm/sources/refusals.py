"""What several files refuse in the same words."""

from __future__ import annotations

from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown


def adapter_refusal(adapter: str, base: object) -> UnsupportedModel:
    """The error for ``adapter``, which changes the model ``base`` where that is known."""
    known = shown(base) if isinstance(base, str) and base else ""
    of, model = (f" of `{known}`", known) if known else ("", "MODEL")
    way_out = f"`edge-llm import {model} --lora {shown(adapter)}` merges the two"
    more = "" if known else "; MODEL is the one that it was made for"
    return UnsupportedModel(f"`{shown(adapter)}` is an adapter (LoRA){of}, not a whole model: {way_out}{more}")
