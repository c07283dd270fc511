"""What goes on now, in words: the model that loads, the prompt that is read, the answer that is written."""

from __future__ import annotations

import time

from edge_llm.chats.tree import is_full as ends_full
from edge_llm.tui.session import Session
from edge_llm.tui.status import Estimate, bar
from edge_llm.tui.units import time_so_far

_READING = "reading"
FILLING = 0.8
ALMOST_FULL = 0.95
"""Shares of a context from which on its gauge is yellow, and red."""
Part = tuple[str, str]
"""A text and its style."""


def activity(session: Session, estimate: Estimate) -> str:
    """One line; empty when nothing goes on."""
    if doing := session.tools.doing(session.chat):
        return doing
    answering = session.answering
    if answering is not None and answering.begun is None and (progress := answering.reply.prompt_progress) is not None:
        done, total = progress
        return f"{estimate.text(_READING, done, total)}  {bar(done / max(1, total), 12)}  {done}/{total} tokens"
    if answering is not None and answering.begun is not None:
        rate = f"{answering.rate:.3g} tokens/s  " if answering.rate else ""
        return f"writing  {rate}{time_so_far(time.monotonic() - answering.begun)}  Esc stops"
    if session.loading is not None:
        loading = session.loading
        text = estimate.text(loading.stage, loading.done, loading.total)
        return f"{loading.name}: {text}" + (f"  {bar(loading.done / loading.total, 12)}" if loading.total else "")
    if session.busy:
        return f"{session.at_work}  Esc stops" if session.at_work else "waiting"
    if (fetching := session.fetching) is not None:
        step = fetching.step
        drawn = f"  {bar(step.share, 12)}" if step.total else ""
        return f"{fetching.source}: {step if step.total else step.stage}{drawn}  Esc stops"
    return ""


def situation(session: Session) -> list[Part]:
    """The model, how full its context is, what the prompt adds to it, and whether something is not saved."""
    parts: list[Part] = [("NOT SAVED", "$text-warning")] if session.unsaved else []
    facts = session.provider.facts if session.provider is not None else None
    if facts is None:
        return parts if session.loading else [*parts, ("no model", "$foreground-muted")]
    used, typed = context_used(session), session.typed_tokens
    if typed:
        over = facts.context is not None and used + typed > facts.context
        parts.append((f"+{typed} tokens", "$text-error" if over else "$foreground-muted"))
    if facts.context and used:
        parts.append((f"{bar(used / facts.context, 8)} {used}/{facts.context}", _alarm(used / facts.context)))
    elif facts.context:
        parts.append((f"context {facts.context}", "$foreground-muted"))
    return [*parts, (f"{facts.name} at {facts.host}" if facts.host else facts.name, "$foreground-muted")]


def _alarm(share: float) -> str:
    return "bold $text-error" if share >= ALMOST_FULL else "$text-warning" if share >= FILLING else "$foreground-muted"


def is_full(session: Session) -> bool:
    """Whether the chat on the screen ends where its context had no more room."""
    facts = session.provider.facts if session.provider is not None else None
    if not ends_full(session.chat.path):
        return False
    used = context_used(session)  # a larger one may have been chosen since
    return not (facts and facts.context and used) or bool(session.chat.path[-1].state == "failed") or (
        used >= ALMOST_FULL * facts.context
    )


def context_used(session: Session) -> int:
    """Tokens of the context that the chat on the screen takes, as its last answer says; 0 when unknown."""
    path = session.chat.path
    cut = max((message.cut for message in reversed(path) if message.cut is not None), key=lambda cut: cut.at, default=None)
    for message in reversed(path):
        tokens = [message.figures.get(name) for name in ("prompt_tokens", "completion_tokens")]
        if message.role == "assistant" and None not in tokens:
            if cut is not None and cut.at > message.id:  # it was told more than is sent now
                return cut.tokens
            return sum(int(count) for count in tokens if count is not None)
    return 0
