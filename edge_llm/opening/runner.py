"""For measuring: a bundle is planned and becomes a runner alone, without a tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_llm.config import RuntimeConfig
from edge_llm.devices.base import Watch
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import Bundle
from edge_llm.opening.adapter_plan import OpenAdapters
from edge_llm.opening.carry_out import open_runner
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import check_writes, resolve
from edge_llm.runner.base import Runner
from edge_llm.runner.runner import Int8Runner


def load_runner(
    bundle: Bundle,
    runtime: RuntimeConfig,
    needed: int,
    watch: Watch | None = None,
    adapters: OpenAdapters | None = None,
) -> tuple[Runner[Any], RuntimeConfig]:
    """A runner with a context of at least ``needed`` tokens, and its options with every default filled in.

    ``watch`` sees every operation.  Raises `UsageError`, `CorruptBundle`, `DeviceError`.
    """
    check_writes(bundle)
    if runtime.context is None and needed > bundle.config.context:
        raise UsageError(f"a test of `{needed}` tokens is more than the {bundle.config.context} that this model was made for")
    context = max(needed, 1) if runtime.context is None else runtime.context
    if needed > context:
        raise UsageError(f"--ctx `{context}` is too small for a test of {needed} tokens", param="context")
    plan = resolve(replace(runtime, context=context), this_machine(), bundle, adapters=adapters)
    return open_runner(plan, watch=watch), plan.runtime


def load_int8_runner(
    bundle: Bundle, runtime: RuntimeConfig, needed: int, adapters: OpenAdapters | None = None
) -> Int8Runner:
    """The INT8 runner with a context of at least ``needed`` tokens, to look at its lanes."""
    runner, _ = load_runner(bundle, replace(runtime, float_path=False), needed, adapters=adapters)
    assert isinstance(runner, Int8Runner)
    return runner
