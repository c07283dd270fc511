"""A model is planned, and its plan becomes an engine: the process is bound to CPUs, and all that answers need is read."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from edge_llm.config import ROW, RuntimeConfig
from edge_llm.convert.in_memory import clear_memory
from edge_llm.decoding.defaults import generation_defaults
from edge_llm.decoding.draft import NO_MODELS, own_layers
from edge_llm.engine.drafting import Drafting
from edge_llm.engine.engine import Engine
from edge_llm.engine.model_facts import ModelFacts
from edge_llm.errors import StorageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.layout import HEAD
from edge_llm.formats.leftovers import clear_leftovers
from edge_llm.models.head import Head
from edge_llm.models.reading import Reading
from edge_llm.opening.adapters import open_adapters
from edge_llm.opening.begin import begin
from edge_llm.opening.carry_out import open_runner, open_runners, run_on_host
from edge_llm.opening.draft_model import answer_drafter, group_drafter
from edge_llm.opening.machine import this_machine
from edge_llm.opening.plan import Plan
from edge_llm.opening.resolve import check_writes, resolve
from edge_llm.paths import find_bundle, models_folder, name_of
from edge_llm.progress import StageProgress
from edge_llm.quant.shadow import NONE
from edge_llm.runner.base import Runner
from edge_llm.text.texts import load_texts
from edge_llm.text.tokenizer import Tokenizer

First = TypeVar("First")
Second = TypeVar("Second")


def load_engine(model: str | Path | None, runtime: RuntimeConfig, progress: StageProgress | None = None) -> Engine:
    """Load a bundle and make it ready to answer.

    Raises `ModelNotFound`, `CorruptBundle`, `UsageError` (a context that the model does not have), `DeviceError`.
    """
    started = time.perf_counter()
    return open_engine(plan_of(model, runtime), progress, started=started)


def plan_of(model: str | Path | None, runtime: RuntimeConfig) -> Plan:
    """How `load_engine` would run ``model``.  Raises what `load_engine` raises but `CorruptBundle` of weights."""
    folder = find_bundle(model)
    _clear_leftovers()
    bundle = open_bundle(folder)
    adapters = open_adapters(runtime.lora, bundle, name_of(folder)) if runtime.lora else None
    return resolve(runtime, this_machine(), bundle, _draft_bundle(runtime.draft), adapters)


def _clear_leftovers() -> None:
    """Of imports and removals that were killed, in memory too; a home that cannot be used concerns only who needs it."""
    clear_memory()
    with contextlib.suppress(StorageError):
        clear_leftovers(models_folder())


def _draft_bundle(name: str) -> Bundle | None:
    """The model ``name`` that guesses ahead; None where no model does."""
    return None if name in NO_MODELS or own_layers(name) is not None else open_bundle(find_bundle(name))


def open_engine(plan: Plan, progress: StageProgress | None = None, *, started: float | None = None) -> Engine:
    """Carry out ``plan``; loading counts from ``started`` (`time.perf_counter`), or from now.

    Raises `CorruptBundle`, `DeviceError` for a device that was asked for and refuses now, `OutOfMemory`.
    """
    started = time.perf_counter() if started is None else started
    begin(plan.cpus, plan.notices)
    reading_texts = partial(load_texts, plan.bundle.folder, plan.bundle.config.vocab_size)
    (tokenizer, template), (plan, runner, draft) = _together(reading_texts, partial(open_runners, plan, progress))
    defaults = generation_defaults(plan.bundle.generation_config)
    engine = Engine(
        name=plan.name,
        config=plan.bundle.config,
        tokenizer=tokenizer,
        template=template,
        defaults=defaults.params,
        runner=runner,
        load_ms=1e3 * (time.perf_counter() - started),
        limits=plan.limits,
        make_drafter=answer_drafter(plan),
        drafting=Drafting(group_drafter(plan, runner, draft)),
        replace_runner=partial(run_on_host, plan),
        facts=_model_facts(plan),
        served=defaults.served,
        head=head_of(plan.bundle),
    )
    for number, one in enumerate(plan.adapters.named if plan.adapters is not None else (), 1):
        engine.add_adapter(one.name, number, one.template)
    return engine


def head_of(bundle: Bundle) -> Head:
    """What stands behind the pooling of an embedding model or a reranker."""
    tensors = {one.name: bundle.read(f"{HEAD}.{one.name}") for one in bundle.decoder.head_tensors}
    return Head(bundle.decoder.reading or Reading(), tensors)


def _together(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """What both make; ``second`` works in another thread meanwhile."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return first(), second()  # one after the other: memory that is there stays there
    with ThreadPoolExecutor(1) as background:
        beside = background.submit(second)
        return first(), beside.result()


def _model_facts(plan: Plan) -> ModelFacts:
    """The facts of the model of ``plan`` as it runs."""
    bundle, options = plan.bundle, plan.options
    all_kept = ModelFacts(
        linears=len(bundle.facts),
        budget=plan.weights.budget,
        precision=plan.sizes.precision,
        weights_bytes=plan.sizes.nbytes,
        bits_per_weight=plan.sizes.bits_per_weight,
        plan=plan.facts,
    )
    if options.float_path or not options.shadow or plan.site.activations == ROW:
        return all_kept
    hot = sum(tensor.shape[0] for name, tensor in bundle.tensors.items() if name.endswith(".hot_index"))
    shadowed = sum(facts.get("shadow", NONE) != NONE for facts in bundle.facts.values())
    return replace(all_kept, hot_channels=hot, shadowed_linears=shadowed)


def load_comparison(model: str | Path, runtime: RuntimeConfig) -> tuple[Tokenizer, Runner[Any], Runner[Any]]:
    """Tokenizer, INT8 runner and float runner of one model."""
    from edge_llm.opening.float_assembly import float_runner  # much code that nearly no start needs

    plan = plan_of(model, replace(runtime, float_path=False))
    check_writes(plan.bundle)
    tokenizer = Tokenizer.from_folder(plan.bundle.folder, plan.bundle.config.vocab_size)
    return tokenizer, open_runner(plan), float_runner(plan.bundle, plan.context)
