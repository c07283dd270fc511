"""Who guesses ahead for the answers of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_llm.decoding.draft import LOOKUP, Drafter, no_draft, own_layers, prompt_lookup
from edge_llm.engine.drafters import DraftModel, OwnLayers
from edge_llm.engine.drafting import GroupDrafter
from edge_llm.opening.plan import Plan
from edge_llm.runner.base import Runner
from edge_llm.runner.runner import Int8Runner


def answer_drafter(plan: Plan) -> Callable[[], Drafter]:
    """Makes what guesses for one answer of the model of ``plan`` by its text alone."""
    return prompt_lookup if plan.options.draft == LOOKUP else lambda: no_draft


def group_drafter(plan: Plan, runner: Runner[Any], draft: Runner[Any] | None) -> GroupDrafter | None:
    """What guesses for all answers of ``runner``, which runs ``plan``: its first layers, or the model that ``draft`` runs."""
    if (layers := own_layers(plan.options.draft)) is not None:
        assert isinstance(runner, Int8Runner), "the plan is checked"
        return OwnLayers(runner, layers)
    if draft is None or plan.draft is None:
        return None
    return DraftModel(draft, min(plan.draft.bundle.config.vocab_size, plan.bundle.config.vocab_size))
