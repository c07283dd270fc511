"""How much memory keys, values and states of sequences get: so many tokens, and so many states."""

from __future__ import annotations

from typing import NamedTuple

from edge_llm.config import RuntimeConfig
from edge_llm.devices.base import Device
from edge_llm.errors import UsageError
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.kv.states import FEWEST, slots_for
from edge_llm.models.layer import Decoder


class KvCost(NamedTuple):
    """Bytes that a draft model takes beside."""

    page: int = 0
    """For each page of the model."""
    state: int = 0
    """For each of its states."""

    @classmethod
    def of(cls, draft: Decoder | None) -> KvCost:
        return cls() if draft is None else cls(page_bytes(draft.attentions), draft.state_bytes)


class KvRoom(NamedTuple):
    """What sequences may hold, all together."""

    tokens: int
    states: int


def kv_room(options: RuntimeConfig, budget: int | None, decoder: Decoder, device: Device, draft: KvCost) -> KvRoom:
    """Of the filled-in ``options`` and the ``budget`` bytes that --kv-memory allows, for ``decoder`` on ``device``.

    At most half of the budget is for states, pages get what these leave; the pages of one context are there in any case.
    Raises `UsageError` where the budget holds no page beside the fewest states.
    """
    assert options.context is not None and options.chunk is not None
    state = decoder.state_bytes + draft.state
    if budget is None:
        tokens = options.kv_tokens or (options.chunk * options.window if decoder.is_encoder else options.context)
        return KvRoom(tokens, slots_for(state, options.parallel) if options.kv_states is None else options.kv_states)
    _check_least(budget, options, page_bytes(decoder.attentions) + draft.page, state)
    states = slots_for(state, options.parallel, budget // 2)
    tokens = _tokens_within(budget - states * state, decoder, device, draft.page)
    return KvRoom(max(options.context, tokens), states)


def _check_least(budget: int, options: RuntimeConfig, page: int, state: int) -> None:
    if budget < (least := page + (FEWEST * state if state else 0)):
        beside = f" beside {FEWEST} states of sequences" if state else ""
        raise UsageError(
            f"--kv-memory `{options.kv_memory}` holds no page of {PAGE_TOKENS} tokens{beside}; the least is {least} bytes",
            param="kv_memory",
        )


def _tokens_within(most: int, decoder: Decoder, device: Device, draft_page: int) -> int:
    """Tokens of as many whole pages as ``most`` bytes hold on ``device``, with ``draft_page`` bytes beside each."""
    pages, beyond = 0, most // device.page_bytes(decoder) + 1
    while beyond - pages > 1:
        middle = (pages + beyond) // 2
        if device.kv_bytes(decoder, PAGE_TOKENS * middle) + draft_page * middle <= most:
            pages = middle
        else:
            beyond = middle
    return PAGE_TOKENS * pages
