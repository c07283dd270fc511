"""A model's name or path and a `RuntimeConfig` become an `Engine`."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edge_llm.config import AUTO, ROW, RuntimeConfig
from edge_llm.decoding.defaults import generation_defaults
from edge_llm.decoding.draft import Drafter, no_draft, prompt_lookup
from edge_llm.engine.engine import Engine
from edge_llm.engine.limits import Limits
from edge_llm.engine.model_facts import ModelFacts
from edge_llm.errors import StorageError, UsageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.leftovers import clear_leftovers
from edge_llm.formats.sizes import float_sizes, sizes
from edge_llm.opening.assembly import fill_defaults, host_runtime, int8_runner, make_runner, run_on_host
from edge_llm.opening.draft_model import model_drafter
from edge_llm.paths import BUILTIN_MODEL_NAME, builtin_bundle, find_bundle, models_folder
from edge_llm.progress import StageProgress
from edge_llm.quant.shadow import NONE
from edge_llm.runner.base import Runner
from edge_llm.text.chat import ChatTemplate, begun_process
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.budget import parse_memory
from edge_llm.weights.plan import WeightSizes


def load_engine(model: str | Path | None, runtime: RuntimeConfig, progress: StageProgress | None = None) -> Engine:
    """Load a bundle and make it ready to answer.

    Raises `ModelNotFound`, `CorruptBundle`, `UsageError` (a context that the model does not have), `DeviceError`.
    """
    started = time.perf_counter()
    folder = find_bundle(model)
    _clear_leftovers()
    bundle = open_bundle(folder)
    config = bundle.config
    runtime = fill_defaults(runtime, config)
    tokenizer, template, runner = _load_parts(folder, bundle, runtime, progress)
    drafter = make_drafter(runtime, bundle)
    defaults = generation_defaults(bundle.generation_config)
    on_host = limits_of(host_runtime(runtime, "the device is lost"))
    return Engine(
        name=BUILTIN_MODEL_NAME if folder == builtin_bundle() else folder.name,
        config=config,
        tokenizer=tokenizer,
        template=template,
        defaults=defaults.params,
        runner=runner,
        load_ms=1e3 * (time.perf_counter() - started),
        limits=replace(limits_of(runtime), after_loss=on_host),
        make_drafter=drafter,
        replace_runner=partial(run_on_host, bundle, runtime),
        facts=model_facts(bundle, runtime, runner.site.activations),
        served=defaults.served,
    )


def limits_of(runtime: RuntimeConfig) -> Limits:
    """The limits of steps as the filled-in ``runtime`` says."""
    assert runtime.chunk is not None
    return Limits(runtime.chunk * runtime.window, mixed_tokens=runtime.chunk, most_running=runtime.parallel)


def _load_parts(
    folder: Path, bundle: Bundle, runtime: RuntimeConfig, progress: StageProgress | None
) -> tuple[Tokenizer, ChatTemplate, Runner[Any]]:
    """All that an engine is made of; weights are read while the tokenizer is built."""

    def texts() -> tuple[Tokenizer, ChatTemplate]:
        process = begun_process(folder)
        tokenizer = Tokenizer.from_folder(folder, bundle.config.vocab_size)
        return tokenizer, ChatTemplate.from_folder(folder, tokenizer, process)

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return *texts(), make_runner(bundle, runtime, progress)  # one after the other: memory that is there stays there
    with ThreadPoolExecutor(1) as background:
        loading = background.submit(make_runner, bundle, runtime, progress)
        tokenizer, template = texts()
        return tokenizer, template, loading.result()


def model_facts(bundle: Bundle, runtime: RuntimeConfig, activations: str) -> ModelFacts:
    """The facts of the model in ``bundle`` as the filled-in ``runtime`` runs it, with these scales of ``activations``."""
    budget = None if runtime.memory is None else parse_memory(runtime.memory, WeightSizes.of_bundle(bundle).total)
    found = float_sizes(bundle) if runtime.float_path else sizes(bundle)
    all_kept = ModelFacts(
        linears=len(bundle.facts),
        budget=budget,
        precision=found.precision,
        weights_bytes=found.nbytes,
        bits_per_weight=found.bits_per_weight,
    )
    if runtime.float_path or not runtime.shadow or activations == ROW:
        return all_kept
    hot = sum(tensor.shape[0] for name, tensor in bundle.tensors.items() if name.endswith(".hot_index"))
    shadowed = sum(facts.get("shadow", NONE) != NONE for facts in bundle.facts.values())
    return replace(all_kept, hot_channels=hot, shadowed_linears=shadowed)


def _clear_leftovers() -> None:
    """Of imports and removals that were killed; a home that cannot be used concerns only who needs it."""
    with contextlib.suppress(StorageError):
        clear_leftovers(models_folder())


def make_drafter(runtime: RuntimeConfig, target: Bundle) -> Callable[[], Drafter]:
    """What guesses ahead for answers of the bundle ``target``; one drafter serves one answer.

    Raises `UsageError` for a draft model whose tokens are not the target's.
    """
    if runtime.draft == "lookup":
        return prompt_lookup
    if runtime.draft == "none":
        return lambda: no_draft
    folder = find_bundle(runtime.draft)
    if (folder / "tokenizer.json").read_bytes() != (target.folder / "tokenizer.json").read_bytes():
        raise UsageError(f"the draft model `{runtime.draft}` has another tokenizer than the model it would help", param="draft")
    bundle = open_bundle(folder)
    context = min(bundle.config.context, runtime.context or bundle.config.context)
    on_host = host_runtime(runtime, "a draft model runs there")
    runner = make_runner(bundle, replace(on_host, memory=None, context=context, draft="none", activations=AUTO))
    vocab_size = min(bundle.config.vocab_size, target.config.vocab_size)
    return lambda: model_drafter(runner, vocab_size)


def load_comparison(model: str | Path, runtime: RuntimeConfig) -> tuple[Tokenizer, Runner[Any], Runner[Any]]:
    """Tokenizer, INT8 runner and float runner of one model."""
    folder = find_bundle(model)
    bundle = open_bundle(folder)
    runtime = fill_defaults(runtime, bundle.config)
    tokenizer = Tokenizer.from_folder(folder, bundle.config.vocab_size)
    return tokenizer, int8_runner(bundle, runtime), make_runner(bundle, replace(runtime, float_path=True))
