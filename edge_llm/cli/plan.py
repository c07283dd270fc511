"""`edge-llm plan`: what a memory budget means for a model, before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from edge_llm.ascend.selftest.report import ESTIMATES, source_of_times
from edge_llm.bench.rates import device_rates, law_of
from edge_llm.bench.roofs import Costs
from edge_llm.cli.here import known_here
from edge_llm.cli.options import card_memory_option, context_option, device_option, placement_option, shared, threads_option
from edge_llm.cli.terminal import say, say_json
from edge_llm.cli.values import MODEL
from edge_llm.config import RuntimeConfig
from edge_llm.devices.base import Device
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.begin import say as say_notices
from edge_llm.opening.machine import this_machine
from edge_llm.opening.plan import Plan, WeightsPlan, expert_words, neuron_words, site_rows
from edge_llm.opening.resolve import resolve
from edge_llm.paths import find_bundle
from edge_llm.progress import byte_size
from edge_llm.subgraphs.placement import PLACEMENTS
from edge_llm.weights.memory_plan import layer_ranges
from edge_llm.weights.speeds import Prediction, Rates, Work, predict


@click.command("plan")
@click.argument("model", type=MODEL, required=False)
@shared("--memory", help="For weights: 300MiB, 1.5GB, bytes, or 50% of them.  Default: all.")
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
        plan = resolve(RuntimeConfig(**options), this_machine(), bundle)
        say_notices(plan.notices)
        reckoned = _reckon(plan)
    if as_json:
        say_json(reckoned.facts)
    else:
        say(_text(reckoned))


class _Reckoned(NamedTuple):
    plan: Plan
    rates: Rates
    prediction: Prediction
    facts: dict[str, Any]


def _reckon(plan: Plan) -> _Reckoned:
    assert plan.device is not None
    bundle, host = plan.bundle, plan.weights.host
    rates = device_rates(bundle, plan.runtime, plan.device)
    costs = Costs.of_bundle(bundle)
    work, sent = Work(costs.operations, costs.weight_bytes), 0 if plan.weights.card is None else plan.weights.card.sent
    prediction = predict(host, work, rates, plan.runtime.window * plan.chunk, sent)
    facts = plan.facts | {"weights_bytes": bundle.size, **_facts(plan.weights, rates, prediction)}
    return _Reckoned(plan, rates, prediction, facts | _card(plan.weights) | _times(plan.device))


def _card(weights: WeightsPlan) -> dict[str, Any]:
    """What lies on the card, and what lies on the host a second time; empty without a card."""
    if (card := weights.card) is None:
        return {}
    return {
        "card_bytes": card.held,
        "card_memory_bytes": card.most,
        "card_streamed_layers": weights.to_card,
        "card_sent_bytes_per_token": card.sent,
        "held_twice_bytes": card.twice,
    }


def _times(device: Device) -> dict[str, str]:
    """Where the times of the chip of ``device`` come from; empty without a chip."""
    law = law_of(device)
    return {} if law is None else {"card_times": source_of_times(law)}


def _facts(weights: WeightsPlan, rates: Rates, prediction: Prediction) -> dict[str, Any]:
    return {
        "memory_bytes": weights.total,
        "budget_bytes": weights.host.budget,
        "held_bytes": weights.host.held_bytes,
        "slots": weights.host.slots,
        "disk_bytes_per_s": rates.disk,
        "memory_bytes_per_s": rates.memory,
        "operations_per_s": rates.operations,
        "predicted_decode_ts": prediction.decode,
        "predicted_prefill_ts": prediction.prefill,
        "free_prompt_tokens": prediction.free_prompt,
    }


def _text(reckoned: _Reckoned) -> str:
    weights, host = reckoned.plan.weights, reckoned.plan.weights.host
    rates, prediction, facts = reckoned.rates, reckoned.prediction, reckoned.facts
    assumed = _assumed(facts)
    token = "" if PLACEMENTS[facts["placement"]].decodes_on_host else f" of weights in a token's products{assumed}"
    rows = [
        *site_rows(facts),
        ("weights", f"{byte_size(facts['weights_bytes'])}; {byte_size(weights.total)} in memory, where scales are computed"),
        ("held", f"{byte_size(host.held_bytes)} in memory"),
        *_card_rows(facts),
        *_token_rows(facts),
        ("resident", f"{len(host.resident)} layers: {layer_ranges(host.resident) or 'none'}"),
        ("streamed", f"{len(host.streamed)} layers through {host.slots} slots: {layer_ranges(host.streamed)}"),
        ("from flash", f"{byte_size(host.streamed_bytes)} per generated token, or per window of a prompt"),
        *_parts_rows(facts),
        ("disk", f"{rates.disk / 1e9:.2f} GB/s"),
        ("memory", f"{rates.memory / 1e9:.1f} GB/s{token}"),
        ("processor", f"{rates.operations / 1e9:.0f} INT8 GOP/s in a layer of this model{assumed}"),
        ("generation", f"about {prediction.decode:.1f} tokens/s"),
        ("prompt", f"about {prediction.prefill:.0f} tokens/s"),
        ("free from", f"prompts of {prediction.free_prompt} tokens: computing them takes as long as reading the weights"),
    ]
    if not host.resident and not host.streamed:  # a card has them all
        rows = [row for row in rows if row[0] != "resident"]
    if not host.streamed:
        left_out = ("streamed", "from flash", *(() if host.experts is not None else ("free from",)))
        rows = [row for row in rows if row[0] not in left_out]
    return "\n".join(f"{name:11} {value}" for name, value in rows)


def _parts_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What comes from flash of layers that are resident but for their experts or neurons."""
    words = {"experts": expert_words, "neurons": neuron_words}
    return [(part, say(facts[part], facts["streamed_bytes_per_token"])) for part, say in words.items() if facts[part]]


def _assumed(facts: Mapping[str, Any]) -> str:
    """Where the speeds of products come from, behind them."""
    device, times = facts["device"], facts.get("card_times")
    if times is None:
        return "" if device == "host" else ", measured on the host"
    return f", assumed of {device}" if times == ESTIMATES else f", {times}"


def _token_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a token takes from each place, where that is more than one; and the layers that lie in main memory for a card."""
    places = {"the card": "card", "main memory": "host", "flash": "flash"}
    taken = [(words, count) for words, place in places.items() if (count := facts[f"{place}_bytes_per_token"])]
    rows = [("a token", ", ".join(f"{byte_size(count)} from {words}" for words, count in taken))] if len(taken) > 1 else []
    if hosted := facts["hosted_layers"]:
        sent = f"{byte_size(facts['card_sent_bytes_per_token'])} are copied to the card per token"
        rows.append(("hosted", f"layers {layer_ranges(hosted)} stay in main memory for the card; {sent}"))
    return rows


def _card_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "card_bytes" not in facts:
        return []
    rows = [
        ("card", f"{byte_size(facts['card_bytes'])} are taken, of {byte_size(facts['card_memory_bytes'])} at most"),
    ]
    if facts["held_twice_bytes"]:
        rows.append(("twice", f"{byte_size(facts['held_twice_bytes'])} lie on both sides, because the host decodes"))
    return rows
