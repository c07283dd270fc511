"""The options of a `RuntimeConfig` with every default filled in, as a model and a machine allow."""

from __future__ import annotations

from dataclasses import replace

from edge_llm.ascend.npu.chips import longest_chunk
from edge_llm.config import AUTO, DEFAULT_CONTEXT, DEFAULT_ENCODED, MOST_ENCODED, ModelConfig, RuntimeConfig
from edge_llm.decoding.draft import own_layers
from edge_llm.devices import check_device
from edge_llm.errors import UsageError
from edge_llm.models import describe
from edge_llm.opening.budgets import check_sizes
from edge_llm.opening.cpus import on_chosen_cpus
from edge_llm.opening.machine import Machine
from edge_llm.runner.order import check_policy
from edge_llm.subgraphs.placement import choose_placement


def fill_defaults(options: RuntimeConfig, config: ModelConfig, machine: Machine) -> tuple[RuntimeConfig, Machine]:
    """``options`` with a device, threads, a context that the model allows, and chunks; ``machine`` with the CPUs they choose.

    Raises `UsageError` for an unknown device, and for options that contradict each other, the model or the machine.
    """
    check_policy(options.policy)
    (device, reason), here = _device(options, machine), on_chosen_cpus(machine, options.cpus, options.numa)
    encodes = describe(config).is_encoder
    if encodes and options.device == AUTO and device != "host":
        device, reason = "host", "an encoder runs there only"
    context = options.context or min(config.context, DEFAULT_ENCODED if encodes else DEFAULT_CONTEXT)
    if context > config.context:
        raise UsageError(f"--ctx `{context}` is more than the {config.context} tokens this model was made for", param="context")
    if encodes and context > MOST_ENCODED:
        raise UsageError(f"--ctx `{context}` is more than the {MOST_ENCODED} tokens of a text for an encoder", param="context")
    found = replace(
        options,
        device=device,
        device_reason=reason,
        threads=options.threads or here.threads,
        context=context,
        chunk=max(context if encodes else 1, options.chunk or longest_chunk(device)),
    )
    return found, here


def check_options(options: RuntimeConfig, machine: Machine) -> None:
    """Raise `UsageError` for a policy, a device, CPUs, sizes or a draft with which no model can be opened on ``machine``."""
    check_policy(options.policy)
    own_layers(options.draft)
    _device(options, machine)
    on_chosen_cpus(machine, options.cpus, options.numa)
    check_sizes(options)


def _device(options: RuntimeConfig, machine: Machine) -> tuple[str, str]:
    """The device, and why it is this one."""
    device, reason = options.device, options.device_reason
    if device == "auto":
        device, reason = ("host", reason) if options.float_path else (machine.auto.device, machine.auto.reason)
    check_device(device)
    if options.float_path:
        _check_float(options, device)
    return device, reason


def _check_float(options: RuntimeConfig, device: str) -> None:
    """Raise `UsageError` for what a float model does not have."""
    if options.memory is not None:
        raise UsageError("--memory has no meaning with --float, which reads the source's own weights", param="memory")
    if device != "host":
        raise UsageError(f"--float runs on the host only, not on `{device}`", param="device")
    choose_placement(options.placement, ("host",), "--float")
    if options.card_memory is not None:
        raise UsageError("--card-memory has no meaning with --float, which runs on the host", param="card_memory")
