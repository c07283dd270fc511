"""What goes on now, in words: the model that loads, the prompt that is read, the answer that is written."""

from __future__ import annotations

import time

from edge_llm.tui.session import Session
from edge_llm.tui.status import Estimate, bar
from edge_llm.tui.units import time_so_far

_READING = "reading"


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
        return "waiting"
    if (fetching := session.fetching) is not None:
        step = fetching.step
        drawn = f"  {bar(step.share, 12)}" if step.total else ""
        return f"{fetching.source}: {step if step.total else step.stage}{drawn}  Esc stops"
    return ""


def situation(session: Session) -> str:
    """The model, how full its context is, and whether something is not saved."""
    parts = ["NOT SAVED"] if session.unsaved else []
    facts = session.provider.facts if session.provider is not None else None
    if facts is None:
        return "  ".join([*parts, "" if session.loading else "no model"])
    used = context_used(session)
    if facts.context:
        parts.append(f"{bar(used / facts.context, 8)} {used}/{facts.context}" if used else f"context {facts.context}")
    return "  ".join([*parts, facts.name])


def context_used(session: Session) -> int:
    """Tokens of the context that the chat on the screen takes, as its last answer says; 0 when unknown."""
    for message in reversed(session.chat.path):
        tokens = [message.figures.get(name) for name in ("prompt_tokens", "completion_tokens")]
        if message.role == "assistant" and None not in tokens:
            return sum(int(count) for count in tokens if count is not None)
    return 0
