"""What llama.cpp tells beside an answer: the settings that held, how likely its tokens were, where the time went."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from edge_llm.config import GenerationParams
from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Finish, Request
from edge_llm.server.shapes import timings

ANY_SEED = 2**32 - 1
"""llama.cpp's word for "any"."""


def generation_settings(params: GenerationParams, eos: Iterable[int], *, stream: bool = False) -> dict[str, Any]:
    """``params`` in llama.cpp's names; samplers that are not here have the value that turns them off."""
    limit = -1 if params.max_tokens is None else params.max_tokens
    biases: list[dict[str, Any]] = [{"token": token, "bias": bias} for token, bias in params.logit_bias]
    if params.ignore_eos:  # null is minus infinity
        biases += [{"token": token, "bias": None} for token in sorted(eos)]
    grammar = params.grammar
    return {
        "seed": ANY_SEED if params.seed is None else params.seed,
        "temperature": params.temperature,
        "dynatemp_range": 0.0,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": -1,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "dry_multiplier": params.dry_multiplier,
        "dry_base": params.dry_base,
        "dry_allowed_length": params.dry_allowed_length,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": list(params.dry_sequence_breakers),
        "mirostat": 0,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.0,
        "stop": list(params.stop),
        "n_predict": limit,
        "max_tokens": limit,
        "ignore_eos": params.ignore_eos,
        "stream": stream,
        "logit_bias": biases,
        "n_probs": params.logprobs or 0,
        "grammar": "" if grammar is None else grammar.text,
        "lora": [],
    }


def verbose_fields(engine: Engine, request: Request) -> dict[str, Any]:
    """What `verbose` adds to the answer to ``request``: the prompt as the model reads it, and the settings that hold."""
    settings = generation_settings(request.params, engine.tokenizer.eos_ids)
    prompt = engine.tokenizer.decode(request.prompt, skip_special=False)
    return {"__verbose": {"prompt": prompt, "tokens_evaluated": len(request.prompt), "generation_settings": settings}}


def probabilities(found: Sequence[TokenLogprobs], *, chosen: bool, greedy: bool) -> list[dict[str, Any]]:
    """How likely each token was, and what might have stood there.

    ``chosen`` tells probabilities instead of their logarithms, of the distribution that tokens were drawn from: the model's
    own, or with ``greedy`` one in which the likeliest token is certain.
    """
    return [_likely(one, chosen=chosen, greedy=greedy) for one in found]


def _likely(one: TokenLogprobs, *, chosen: bool, greedy: bool) -> dict[str, Any]:
    def item(token: int, piece: bytes, logprob: float) -> dict[str, Any]:
        value = {"prob": 1.0 if greedy else math.exp(logprob)} if chosen else {"logprob": logprob}
        return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), **value}

    top = [item(token, piece, logprob) for (token, logprob), piece in zip(one.top, one.top_pieces, strict=True)]
    own = item(one.token, one.piece, one.logprob)
    if not chosen:
        return own | {"top_logprobs": top}
    return own | {"top_probs": [own] if greedy else [each for each in top if each["prob"] > 0.0]}


def llama_timings(finish: Finish) -> dict[str, Any]:
    """Where the time went, as llama.cpp tells it of a completion."""
    usage = finish.usage
    found = timings(finish)
    guesses = {"draft_n": finish.timings.drafted_tokens, "draft_n_accepted": finish.timings.accepted_tokens}
    return found | (guesses if usage.completion_tokens and finish.timings.drafted_tokens else {})


def stop_fields(finish: Finish, context: int) -> dict[str, Any]:
    """Why an answer ended, and whether the context of ``context`` tokens was full."""
    kind = "limit" if finish.reason != "stop" else "eos" if finish.stop is None else "word"
    full = kind == "limit" and finish.usage.prompt_tokens + finish.usage.completion_tokens >= context
    return {"stop": True, "stop_type": kind, "stopping_word": finish.stop or "", "truncated": full}
