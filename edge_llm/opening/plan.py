"""The plan of one opening: where a model runs, with how much of everything, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edge_llm.config import ASKED_FOR, RuntimeConfig
from edge_llm.devices.base import Device, Room
from edge_llm.engine.limits import Limits
from edge_llm.errors import DeviceError
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.sizes import Sizes
from edge_llm.kv.pages import PAGE_TOKENS
from edge_llm.kv.windows import text_bytes
from edge_llm.opening.adapter_plan import OpenAdapters
from edge_llm.opening.ledger import MemoryNeeds
from edge_llm.opening.machine import Machine
from edge_llm.paths import name_of
from edge_llm.progress import byte_size
from edge_llm.runner.base import Site
from edge_llm.weights.base import TokenBytes
from edge_llm.weights.memory_plan import MemoryPlan, StagingPlan, layer_ranges

FLOAT_TOKEN_BYTES = 8
"""Of a key's channel in float32, and of a value's."""


@dataclass(frozen=True)
class CardShare:
    """What lies on a card, in bytes."""

    held: int
    """Of the model: weights, and where the card does everything, keys, values and activations."""
    most: int
    """What a model may take."""
    twice: int
    """Weights that lie in main memory as well, because the host decodes."""
    sent: int
    """Copied to it in every sweep, of layers that have no room there."""


@dataclass(frozen=True)
class WeightsPlan:
    """Where the weights lie."""

    total: int
    """Bytes of memory when all is resident."""
    budget: int | None
    """Bytes that they may take of main memory; None: no limit."""
    host: MemoryPlan
    """What is resident in main memory, and what is read from flash in every sweep."""
    token: TokenBytes
    """What a generated token takes from each place."""
    staging: StagingPlan | None = None
    """How they pass through the host where a card decodes; `host` is its plan."""
    to_card: tuple[int, ...] = ()
    """Layers that a card asks for again in every sweep."""
    card: CardShare | None = None
    """None where there is no card."""


@dataclass(frozen=True)
class Plan:
    """How a model will run; `edge_llm.opening.load` carries it out, once: it holds a device that was found, and its card.

    Everything is decided, and all sizes are bytes or tokens.
    """

    bundle: Bundle = field(repr=False)
    machine: Machine = field(repr=False)
    options: RuntimeConfig
    """What was asked for, with every default filled in; sizes as they were written."""
    runtime: RuntimeConfig
    """The same as the device allows: tokens of the KV cache, scales of activations."""
    site: Site
    """Where it runs, and why there."""
    room: Room
    """Tokens and chunks that it is opened for."""
    weights: WeightsPlan
    sizes: Sizes
    """Of the weights as they are stored."""
    memory: MemoryNeeds
    """All that it takes, a draft model's included."""
    prefix_bytes: int = 0
    """Most bytes of disk for pages that are kept for the next start; 0: none are kept."""
    cpus: frozenset[int] | None = None
    """CPUs that the process is bound to; None: it stays as it is."""
    device: Device | None = field(default=None, repr=False, compare=False)
    """Found, and nothing of the model on it; None for a float model."""
    adapters: OpenAdapters | None = field(default=None, repr=False, compare=False)
    """Those that requests may name, if any."""
    draft: Plan | None = None
    """Of the draft model, if one guesses ahead."""
    host: Plan | None = field(default=None, repr=False)
    """The same model on the host, for a device that refuses or is lost; None where there is none."""
    no_host: str = ""
    """Why there is none; empty where this is the host."""
    notices: tuple[str, ...] = ()
    """What the user is told when it is carried out."""

    @property
    def name(self) -> str:
        return name_of(self.bundle.folder)

    @property
    def threads(self) -> int:
        assert self.runtime.threads is not None
        return self.runtime.threads

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return self.room.positions

    @property
    def chunk(self) -> int:
        """Tokens of the longest chunk of a prompt."""
        assert self.runtime.chunk is not None
        return self.runtime.chunk

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values are held, over all requests."""
        return self.room.tokens

    @property
    def text_kv_bytes(self) -> int:
        """Bytes of the keys and values of one text that fills the context: of layers with a window, what that reaches.

        A card that does everything forgets nothing, and neither does a float model.
        """
        attentions = self.bundle.decoder.attentions
        if self.device is None:
            return FLOAT_TOKEN_BYTES * sum(one.kv_size for one in attentions) * self.context
        if self.device.placement.alone:
            return self.device.kv_bytes(self.bundle.decoder, self.context)
        return text_bytes(attentions, self.context)

    @property
    def limits(self) -> Limits:
        """How much is computed in a step, here and after a lost device."""
        return _limits(self.options, None if self.host is None else _limits(self.host.options))

    @property
    def may_move(self) -> bool:
        """Whether the host may take the place of the device: `auto` chose it."""
        return may_move(self.options)

    def on_host(self, reason: str) -> Plan:
        """The plan of the same model on the host, for this ``reason``; a draft model stays where it is.

        Raises `DeviceError` where the host cannot.
        """
        if self.host is None:
            raise DeviceError(f"{reason}; the host cannot take its place: {self.no_host or 'it is there already'}")
        options, runtime = (replace(one, device_reason=reason) for one in (self.host.options, self.host.runtime))
        site = replace(self.host.site, device_reason=reason)
        return replace(self.host, options=options, runtime=runtime, site=site, notices=(moved(reason),))

    def with_draft(self, draft: Plan) -> Plan:
        """The same, with the model of ``draft`` to guess ahead."""
        host = None if self.host is None else self.host.with_draft(draft)
        return replace(self, draft=draft, memory=self.memory + draft.memory, host=host)

    def lacks(self, free: int) -> str:
        """What of it has no room in ``free`` bytes of main memory, or on its card, and the way out; empty where all has."""
        if self.memory.main > free:
            needs = f"takes {byte_size(self.memory.main)} and {byte_size(free)} of main memory are free"
            return f"{needs}; `--memory 50%` reads weights from flash, a smaller `--ctx` keeps fewer keys and values"
        card = self.weights.card
        if card is not None and card.held > card.most:
            needs = f"takes {byte_size(card.held)} of the card, which has {byte_size(card.most)} for it"
            return f"{needs}; `--device host` leaves the card alone"
        return ""

    @property
    def facts(self) -> dict[str, Any]:
        """The plan as plain data, for faces; sizes in bytes."""
        host = self.weights.host
        return {
            **asdict(self.site),
            "n_threads": self.threads,
            "context": self.context,
            "kv_tokens": self.kv_tokens,
            "kv_pages": -(-self.kv_tokens // PAGE_TOKENS),
            "windowed_layers": sum(bool(one.scores.window) for one in self.bundle.decoder.attentions),
            "text_kv_bytes": self.text_kv_bytes,
            "states": self.room.states,
            "chunk": self.chunk,
            "window": self.runtime.window,
            "draft": self.draft.name if self.draft is not None else self.options.draft,
            "adapters": [one.name for one in self.adapters.named] if self.adapters is not None else [],
            "prefix_cache_bytes": self.prefix_bytes,
            "weights_budget_bytes": self.weights.budget,
            "resident_layers": list(host.resident),
            "streamed_layers": list(host.streamed),
            "hosted_layers": [] if self.weights.staging is None else list(self.weights.staging.hosted),
            "streamed_bytes_per_token": host.streamed_bytes,
            **self.weights.token.facts,
            "experts": None if host.experts is None else asdict(host.experts),
            "neurons": None if host.neurons is None else asdict(host.neurons),
            "memory": {**asdict(self.memory), "main": self.memory.main},
        }


def may_move(options: RuntimeConfig) -> bool:
    """Whether the host may take the place of the device of the filled-in ``options``: `auto` chose it."""
    return options.device != "host" and options.device_reason != ASKED_FOR


def refused(device: str, error: DeviceError) -> str:
    """Why the host takes the place of ``device``."""
    return f"the device `{device}` refuses: {error}"


def moved(reason: str) -> str:
    """What the user is told of it."""
    return f"--device auto uses the host: {reason}"


def _limits(options: RuntimeConfig, after_loss: Limits | None = None) -> Limits:
    assert options.chunk is not None
    step = options.chunk * options.window
    return Limits(step, mixed_tokens=options.chunk, most_running=options.parallel, after_loss=after_loss)


def site_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where a model of these `Plan.facts` runs and what it takes, as names and values for people."""
    return [
        ("device", f"{facts['device']} ({facts['device_reason']})"),
        ("placement", f"{facts['placement']} ({facts['placement_reason']})"),
        ("threads", str(facts["n_threads"])),
        ("context", f"{facts['context']} tokens; keys and values of {facts['kv_tokens']} as {facts['keys']}"),
        *([("one text", _of_one_text(facts))] if facts["windowed_layers"] else []),
        ("chunk", f"{facts['chunk']} tokens, {facts['window']} together"),
        ("draft", str(facts["draft"])),
        ("takes", _sum_of(facts["memory"])),
    ]


def _of_one_text(facts: Mapping[str, Any]) -> str:
    """What the keys and values of a full context take where some layers have a window."""
    return f"{byte_size(facts['text_kv_bytes'])} where it fills the context: {facts['windowed_layers']} layers have a window"


def plan_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All of `site_rows`, and what lies on flash, on a card and on disk."""
    rows, card = site_rows(facts), facts["memory"]["card"]
    if facts["streamed_layers"]:
        layers = layer_ranges(facts["streamed_layers"])
        rows.append(("from flash", f"layers {layers}: {byte_size(facts['streamed_bytes_per_token'])} per token"))
    if facts["experts"]:
        rows.append(("from flash", expert_words(facts["experts"], facts["streamed_bytes_per_token"])))
    if facts["neurons"]:
        rows.append(("from flash", neuron_words(facts["neurons"], facts["streamed_bytes_per_token"])))
    if card:
        rows.append(("card", byte_size(card)))
    if facts["prefix_cache_bytes"]:
        rows.append(("disk", f"{byte_size(facts['prefix_cache_bytes'])} for pages of prompts"))
    return rows


def expert_words(experts: Mapping[str, int], token_bytes: int) -> str:
    """Which experts stay in memory, and what a token reads, for people."""
    held = f"{experts['quota']} of {experts['count']} experts of a layer stay in memory, {experts['ahead']} are on their way"
    window = f"{byte_size(experts['sweep_bytes'])} per window of a prompt"
    return f"{held}; {byte_size(token_bytes)} per token if all are as likely, {window}"


def neuron_words(neurons: Mapping[str, int], token_bytes: int) -> str:
    """Which neurons stay in memory, and what a token reads, for people."""
    held = f"{neurons['quota']} of {neurons['count']} runs of neurons of a layer stay in memory, those that were active last"
    return f"{held}; {byte_size(token_bytes)} per token if all are as likely"


def _sum_of(memory: Mapping[str, int]) -> str:
    beside = {name: memory[name] for name in ("texts", "states", "adapters")}
    needs = MemoryNeeds(memory["weights"], memory["pages"], memory["work"], **beside)
    return f"{byte_size(needs.main)}: " + ", ".join(f"{words} {byte_size(count)}" for words, count in needs.parts)
