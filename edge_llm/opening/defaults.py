"""The options of a `RuntimeConfig` with every default filled in, as a model and a machine allow."""

from __future__ import annotations

from dataclasses import replace

from edge_llm.ascend.npu.chips import longest_chunk
from edge_llm.config import DEFAULT_CONTEXT, ModelConfig, RuntimeConfig
from edge_llm.devices import check_device
from edge_llm.errors import UsageError
from edge_llm.opening.cpus import chosen_cpus
from edge_llm.opening.machine import Machine
from edge_llm.subgraphs.placement import choose_placement


def fill_defaults(options: RuntimeConfig, config: ModelConfig, machine: Machine) -> RuntimeConfig:
    """``options`` with a device, threads, a context that the model allows, and chunks.

    Raises `UsageError` for an unknown device, and for options that contradict each other, the model or the machine.
    """
    return filled(options, config, on_chosen_cpus(options, machine))


def on_chosen_cpus(options: RuntimeConfig, machine: Machine) -> Machine:
    """``machine`` with those of its CPUs that ``options`` choose.  Raises `UsageError`."""
    return machine.narrowed(chosen_cpus(options.cpus, options.numa, machine.cpus, machine.nodes))


def filled(options: RuntimeConfig, config: ModelConfig, machine: Machine) -> RuntimeConfig:
    """`fill_defaults` on a ``machine`` of which only chosen CPUs are left."""
    device, reason = options.device, options.device_reason
    if device == "auto":
        device, reason = ("host", reason) if options.float_path else (machine.auto.device, machine.auto.reason)
    check_device(device)
    if options.float_path:
        _check_float(options, device)
    context = options.context or min(config.context, DEFAULT_CONTEXT)
    if context > config.context:
        raise UsageError(f"--ctx `{context}` is more than the {config.context} tokens this model was made for", param="context")
    return replace(
        options,
        device=device,
        device_reason=reason,
        threads=options.threads or machine.threads,
        context=context,
        chunk=options.chunk or longest_chunk(device),
    )


def _check_float(options: RuntimeConfig, device: str) -> None:
    """Raise `UsageError` for what a float model does not have."""
    if options.memory is not None:
        raise UsageError("--memory has no meaning with --float, which reads the source's own weights", param="memory")
    if device != "host":
        raise UsageError(f"--float runs on the host only, not on `{device}`", param="device")
    choose_placement(options.placement, ("host",), "--float")
    if options.card_memory is not None:
        raise UsageError("--card-memory has no meaning with --float, which runs on the host", param="card_memory")


def host_options(options: RuntimeConfig, reason: str) -> RuntimeConfig:
    """The filled-in ``options`` on the host, for this ``reason``; the host's own chunk replaces the device's own."""
    chunk = options.chunk if options.chunk != longest_chunk(options.device) else longest_chunk("host")
    return replace(
        options, device="host", device_reason=reason, placement="auto", keys="auto", card_memory=None, chunk=chunk
    )
