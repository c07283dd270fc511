"""The one place that chooses concrete classes: a model's name or path and a `RuntimeConfig` become an `Engine`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_llm.config import GenerationParams, ModelConfig, RuntimeConfig
from edge_llm.devices.base import Device
from edge_llm.devices.host import HostDevice
from edge_llm.engine.engine import Engine
from edge_llm.engine.machine import usable_cores
from edge_llm.errors import DeviceError, EdgeLLMError, ModelNotFound, UsageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.safetensors import open_model_folder
from edge_llm.models.reference import FloatModel, rope_tables
from edge_llm.paths import BUILTIN_MODEL_NAME, builtin_bundle, bundle_path
from edge_llm.runner.base import Runner
from edge_llm.runner.float_path import FloatRunner
from edge_llm.runner.runner import Int8Runner
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.resident import ResidentWeights

Progress = Callable[[str, int, int], None]
"""Told (stage, done, total) while a model loads."""
Watch = Callable[[Device], Device]
"""Puts a device around a device."""


def find_bundle(model: str | Path | None) -> Path:
    """The bundle folder that ``model`` names: a name given at import, a path to a bundle, or the built-in model."""
    if model is None or str(model) == BUILTIN_MODEL_NAME:
        return builtin_bundle()
    path = Path(model).expanduser()
    looks_like_path = isinstance(model, Path) or os.sep in model or path.is_dir()
    folder = path if looks_like_path else bundle_path(str(model))
    if (folder / "manifest.json").is_file():
        return folder
    if (folder / "config.json").is_file() or folder.suffix == ".gguf":
        raise ModelNotFound(f"`{model}` is not imported yet; run `edge-llm import {model} --name NAME` first")
    raise ModelNotFound(f"no model `{model}`; `edge-llm list` shows what is here, `edge-llm import SOURCE` adds one")


def load_engine(model: str | Path | None, runtime: RuntimeConfig, progress: Progress | None = None) -> Engine:
    """Load a bundle and make it ready to answer.

    Raises `ModelNotFound`, `CorruptBundle`, `UsageError` (a context that the model does not have), `DeviceError`.
    """
    started = time.perf_counter()
    folder = find_bundle(model)
    bundle = open_bundle(folder)
    config = bundle.config
    runtime = resolve(runtime, config)
    with ThreadPoolExecutor(1) as background:  # weights are read while the tokenizer is built
        loading = background.submit(_make_runner, bundle, runtime, progress)
        tokenizer = Tokenizer.from_folder(folder, config.vocab_size)
        template = ChatTemplate.from_folder(folder, tokenizer)
        runner = loading.result()
    return Engine(
        name=BUILTIN_MODEL_NAME if folder == builtin_bundle() else folder.name,
        config=config,
        tokenizer=tokenizer,
        template=template,
        defaults=generation_defaults(bundle.generation_config),
        runner=runner,
        load_ms=1e3 * (time.perf_counter() - started),
    )


def load_runner(
    bundle: Bundle, runtime: RuntimeConfig, needed: int, watch: Watch | None = None
) -> tuple[Runner[Any], RuntimeConfig]:
    """A runner alone, for measuring: its context is at least ``needed`` tokens, and it has no tokenizer.

    ``watch`` puts another device around the one that it runs on, to see what that is asked for.
    """
    context = max(needed, 1) if runtime.context is None else runtime.context
    if needed > context:
        raise UsageError(f"--ctx `{context}` is too small for a test of {needed} tokens", param="context")
    runtime = resolve(replace(runtime, context=context), bundle.config)
    return _make_runner(bundle, runtime, watch=watch), runtime


def load_comparison(model: str | Path, runtime: RuntimeConfig) -> tuple[Tokenizer, Runner[Any], Runner[Any]]:
    """Tokenizer, INT8 runner and float runner of one model."""
    folder = find_bundle(model)
    bundle = open_bundle(folder)
    runtime = resolve(runtime, bundle.config)
    tokenizer = Tokenizer.from_folder(folder, bundle.config.vocab_size)
    return tokenizer, int8_runner(bundle, runtime), float_runner(bundle, runtime)


def resolve(runtime: RuntimeConfig, config: ModelConfig) -> RuntimeConfig:
    """``runtime`` with everything chosen: threads for this machine, a context that the model has."""
    if runtime.device not in ("auto", "host"):
        raise DeviceError(f"no device `{runtime.device}`; this version runs on: host")
    context = runtime.context or min(config.context, DEFAULT_CONTEXT)
    if context > config.context:
        raise UsageError(f"--ctx `{context}` is more than the {config.context} tokens this model was made for")
    return replace(runtime, device="host", threads=runtime.threads or usable_cores(), context=context)


DEFAULT_CONTEXT = 32768
"""Context when none is asked for and the model has more; pages get memory only when tokens are written."""


def _make_runner(
    bundle: Bundle, runtime: RuntimeConfig, progress: Progress | None = None, watch: Watch | None = None
) -> Runner[Any]:
    return float_runner(bundle, runtime) if runtime.float_path else int8_runner(bundle, runtime, progress, watch)


def int8_runner(
    bundle: Bundle, runtime: RuntimeConfig, progress: Progress | None = None, watch: Watch | None = None
) -> Runner[Any]:
    """The INT8 runner over resident weights."""
    assert runtime.threads is not None
    assert runtime.context is not None
    device: Device = HostDevice(runtime.threads, shadow=runtime.shadow)
    if watch is not None:
        device = watch(device)
    on_bytes = None if progress is None else lambda done, total: progress("load", done, total)
    weights = ResidentWeights(bundle, on_bytes)
    return Int8Runner(bundle.config, weights, device, runtime, rope_tables(bundle.config, runtime.context))


def float_runner(bundle: Bundle, runtime: RuntimeConfig) -> Runner[Any]:
    """The float oracle over the source's own weights, which the bundle carries or remembers the place of."""
    assert runtime.context is not None
    source = bundle.float_source()
    if source is None:
        raise ModelNotFound(
            f"the float weights of `{bundle.folder.name}` are not here any more; import the model again, "
            "with --keep-float to keep them in the bundle"
        )
    with open_model_folder(source) as opened:
        return FloatRunner(FloatModel(opened, bundle.config), runtime.context)


def generation_defaults(raw: dict[str, Any]) -> GenerationParams:
    """The model author's sampling defaults (Hugging Face `generation_config.json`); greedy unless `do_sample`."""
    penalty = raw.get("repetition_penalty")
    params = GenerationParams(repetition_penalty=1.0 if penalty is None else float(penalty))
    if not raw.get("do_sample", False):
        return params
    given = {name: raw[name] for name in ("temperature", "top_k", "top_p", "min_p") if raw.get(name) is not None}
    try:
        return replace(params, **({"temperature": 1.0} | given))
    except (EdgeLLMError, TypeError) as error:
        raise UsageError(f"generation_config.json of the model holds a value that cannot be used: {error}") from error
