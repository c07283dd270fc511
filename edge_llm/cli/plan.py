"""`edge-llm plan`: what a memory budget means for a model, before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import click

from edge_llm.ascend.selftest.report import ESTIMATES, source_of_times
from edge_llm.bench.rates import CardDevice, device_rates, law_of
from edge_llm.bench.roofs import Costs
from edge_llm.cli.here import known_here
from edge_llm.cli.options import card_memory_option, context_option, device_option, placement_option, shared, threads_option
from edge_llm.cli.terminal import say, say_json
from edge_llm.cli.values import MODEL
from edge_llm.config import RuntimeConfig
from edge_llm.devices.base import Device
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.opening.assembly import choose_activations, fill_defaults, make_device, or_on_host, plan_device, room
from edge_llm.paths import find_bundle
from edge_llm.progress import byte_size
from edge_llm.runner.base import Site
from edge_llm.subgraphs.placement import PLACEMENTS
from edge_llm.weights.plan import MemoryPlan, Prediction, Rates, WeightSizes, Work, layer_ranges, predict


@click.command("plan")
@click.argument("model", type=MODEL, required=False)
@shared("--memory", default="100%", show_default=True, help="For weights: 300MiB, 1.5GB, bytes, or 50% of them.")
@device_option
@placement_option
@card_memory_option
@context_option
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def plan_command(model: str | None, as_json: bool, **options: Any) -> None:
    """Say what of MODEL stays in memory under a budget, what is read from flash per token, and how fast that can be.

    Measures the disk, the main memory and a layer's products for a second or two; the speeds are what these allow.
    With a card, emulated or not, a layer's products take what its chip is estimated to take, launches and copies included, or
    what `edge-llm doctor --selftest` measured on this machine.
    """
    with open_bundle(find_bundle(known_here(model))) as bundle:
        runtime = fill_defaults(RuntimeConfig(**options), bundle.config)
        reckoned = or_on_host(runtime, partial(_reckon, bundle))
    if as_json:
        say_json(reckoned.facts)
    else:
        say(_text(reckoned))


class _Reckoned(NamedTuple):
    plan: MemoryPlan
    sizes: WeightSizes
    rates: Rates
    prediction: Prediction
    facts: dict[str, Any]


def _reckon(bundle: Bundle, runtime: RuntimeConfig) -> _Reckoned:
    sizes = WeightSizes.of_bundle(bundle)
    device = make_device(runtime, bundle.decoder)
    plan = plan_device(bundle, runtime, device)
    card = _card(bundle, runtime, device, sizes) | _times(device)
    rates = device_rates(bundle, runtime, device)
    costs = Costs.of_bundle(bundle)
    assert runtime.chunk is not None
    prediction = predict(plan, Work(costs.operations, costs.weight_bytes), rates, runtime.window * runtime.chunk)
    facts = {"weights_bytes": bundle.size, **_facts(plan, sizes, rates, prediction)}
    scaled = replace(runtime, activations=choose_activations(runtime.activations, bundle, device))
    facts |= {"n_threads": runtime.threads, **asdict(Site.of(scaled, device)), **card}
    return _Reckoned(plan, sizes, rates, prediction, facts)


def _card(bundle: Bundle, runtime: RuntimeConfig, device: Device, sizes: WeightSizes) -> dict[str, Any]:
    """What lies on the card of ``device``, and what lies on the host a second time; empty without a card."""
    if not isinstance(device, CardDevice):
        return {}
    space = room(runtime)
    needs = device.needs(bundle.decoder, bundle.tensors, space)
    streamed = device.streamed(bundle.decoder, bundle.tensors, space)
    twice = sum(layer.held - layer.beside_card for layer in sizes.layers) if device.placement.decodes_on_host else 0
    return {
        "card_bytes": needs.held(streamed),
        "card_memory_bytes": device.most(needs.weights(streamed)),
        "card_streamed_layers": streamed,
        "held_twice_bytes": twice,
    }


def _times(device: Device) -> dict[str, str]:
    """Where the times of the chip of ``device`` come from; empty without a chip."""
    law = law_of(device)
    return {} if law is None else {"card_times": source_of_times(law)}


def _facts(plan: MemoryPlan, sizes: WeightSizes, rates: Rates, prediction: Prediction) -> dict[str, Any]:
    return {
        "memory_bytes": sizes.total,
        "budget_bytes": plan.budget,
        "held_bytes": plan.held_bytes,
        "resident_layers": plan.resident,
        "streamed_layers": plan.streamed,
        "slots": plan.slots,
        "streamed_bytes_per_token": plan.streamed_bytes,
        "disk_bytes_per_s": rates.disk,
        "memory_bytes_per_s": rates.memory,
        "operations_per_s": rates.operations,
        "predicted_decode_ts": prediction.decode,
        "predicted_prefill_ts": prediction.prefill,
        "free_prompt_tokens": prediction.free_prompt,
    }


def _text(reckoned: _Reckoned) -> str:
    plan, sizes, rates, prediction, facts = reckoned
    device = facts["device"]
    assumed = _assumed(facts)
    token = "" if PLACEMENTS[facts["placement"]].decodes_on_host else f" of weights in a token's products{assumed}"
    rows = [
        ("device", f"{device} ({facts['device_reason']})"),
        ("placement", f"{facts['placement']} ({facts['placement_reason']})"),
        ("weights", f"{byte_size(facts['weights_bytes'])}; {byte_size(sizes.total)} in memory, where scales are computed"),
        ("held", f"{byte_size(plan.held_bytes)} in memory"),
        *_card_rows(facts),
        ("resident", f"{len(plan.resident)} layers: {layer_ranges(plan.resident) or 'none'}"),
        ("streamed", f"{len(plan.streamed)} layers through {plan.slots} slots: {layer_ranges(plan.streamed)}"),
        ("from flash", f"{byte_size(plan.streamed_bytes)} per generated token, or per window of a prompt"),
        ("disk", f"{rates.disk / 1e9:.2f} GB/s"),
        ("memory", f"{rates.memory / 1e9:.1f} GB/s{token}"),
        ("processor", f"{rates.operations / 1e9:.0f} INT8 GOP/s in a layer of this model{assumed}"),
        ("generation", f"about {prediction.decode:.1f} tokens/s"),
        ("prompt", f"about {prediction.prefill:.0f} tokens/s"),
        ("free from", f"prompts of {prediction.free_prompt} tokens: computing them takes as long as reading the weights"),
    ]
    if not plan.resident and not plan.streamed:  # a card has them all
        rows = [row for row in rows if row[0] != "resident"]
    if not plan.streamed:
        rows = [row for row in rows if row[0] not in ("streamed", "from flash", "free from")]
    return "\n".join(f"{name:11} {value}" for name, value in rows)


def _assumed(facts: Mapping[str, Any]) -> str:
    """Where the speeds of products come from, behind them."""
    device, times = facts["device"], facts.get("card_times")
    if times is None:
        return "" if device == "host" else ", measured on the host"
    return f", assumed of {device}" if times == ESTIMATES else f", {times}"


def _card_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "card_bytes" not in facts:
        return []
    rows = [
        ("card", f"{byte_size(facts['card_bytes'])} are taken, of {byte_size(facts['card_memory_bytes'])} at most"),
    ]
    if facts["held_twice_bytes"]:
        rows.append(("twice", f"{byte_size(facts['held_twice_bytes'])} lie on both sides, because the host decodes"))
    return rows
