"""Facts that travel: what a model is, how its weights are stored, how it is run, how text is sampled.

All are frozen; a change makes a new value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_llm.errors import UsageError

INT8, W4, FLOAT16 = "int8", "w4", "float16"
"""Weight schemes that import chooses between."""
NEURONS = "neurons"
"""INT8 whose columns lie together, for linears behind ReLU: those that meet zeros are neither read nor multiplied."""
BLOCKS = "blocks"
"""The blocks of a GGUF file as they are; each of their kinds is a scheme."""
DEFAULT_SCHEME = INT8
"""The weight scheme of every linear for which nothing else is said."""
TABLE_SCHEMES = (INT8, W4)
"""Weight schemes of the output matrix, which may be the embedding too: its rows can be read one by one."""
ROW, STATIC = "row", "static"
ACTIVATIONS = (ROW, STATIC)
"""How activations become INT8: every row by a scale of its own, or all by one scale that import chose, beside which what
overflows is kept exact."""
AUTO = "auto"
"""A choice that is left to the model and the machine."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3 frequency scaling of rotary embeddings (Hugging Face `rope_scaling`, `rope_type: llama3`)."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is said of every model; its family says more, for its layers."""

    family: str
    """Hugging Face `model_type`."""
    vocab_size: int
    hidden_size: int
    context: int
    """Longest sequence in tokens that the model was made for."""
    tied_embeddings: bool = False


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """A decoder like Llama's: shapes and constants, in Hugging Face's meaning of the words."""

    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias on the attention output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of every query and key head before the rotary embedding (Qwen3)."""

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


MOST_PARALLEL = 1024
"""Most answers at a time that may be asked for."""
DEFAULT_CHUNK = 256
"""Tokens of the longest chunk of a prompt on the host."""
MOST_CHUNK = 4096
"""Tokens of a chunk at most."""
DEFAULT_CONTEXT = 32768
"""Context when none is asked for and the model has more; pages get memory only when tokens are written."""
DEFAULT_ENCODED = 2048
"""The same for an encoder, which computes a text in one piece."""
MOST_ENCODED = 4096
"""Tokens of a text that an encoder computes at most."""
NOT_RECORDED = "its steps are not recorded: "
"""In the reason of a placement: what follows is why each step of a card takes longer than it might."""
ASKED_FOR = "asked for"
"""Why something was chosen that was named."""


KV_ALIASES = {"f32": "float32", "f16": "float16", "fp16": "float16", "q8_0": "int8", "q4_0": "int4"}
"""Ways to keep keys and values as other engines call them, and our names."""


@dataclass(frozen=True)
class RuntimeConfig:
    """How a model is run on this machine.  ``None`` means: chosen from the model and the machine at load."""

    device: str = "auto"
    device_reason: str = ASKED_FOR
    """Why `device` is this one, in a few words."""
    threads: int | None = None
    cpus: str | None = None
    """CPUs to run on, such as `0-3,8`.  None: those that the process may use."""
    numa: str | None = None
    """Or the CPUs of this NUMA node; `card` is the node of the Ascend card."""
    placement: str = "auto"
    """What runs where, a name of `edge_llm.subgraphs.placement`; auto: the first that the device lists."""
    activations: str = AUTO
    """Scales of the INT8 activations, one of `ACTIVATIONS`; auto: rows where the bundle and the device can."""
    keys: str = "auto"
    """How keys and values are kept: `int8`, `float16`, or auto, which the device chooses."""
    card_memory: str | None = None
    """Most of the card's memory to take, such as `4GiB`; layers that do not fit are streamed to it.  None: all."""
    context: int | None = None
    chunk: int | None = None
    """Longest static chunk of prefill, in tokens; shorter ones come from the ladder below it.  None: what suits the device."""
    window: int = 4
    """Chunks that one prefill task graph holds."""
    kv_tokens: int | None = None
    """Tokens whose keys and values fit into memory, over all requests and what is kept of earlier ones; None: one context."""
    kv_memory: str | None = None
    """The same as an amount of memory, such as `1GiB` or `10%` of the machine's; at least one context.

    Of a model whose layers keep states of a fixed shape, half of it at most is for these.
    """
    kv_states: int | None = None
    """States of a fixed shape that are held; None: as many as `parallel` answers use, within `kv_memory` or 512 MiB."""
    parallel: int = 64
    """Answers that are computed at a time, if their keys and values fit; others wait."""
    memory: str | None = None
    """Most memory for weights, such as `300MiB` or `50%` of them; the rest is streamed from the bundle.  None: all of it."""
    prefix_cache: str | None = None
    """Most disk space for keys and values that are kept for the next start, such as `1GiB`, over all models; None or 0: off."""
    lora: tuple[str, ...] = ()
    """Adapters that requests may name, each as ``NAME=FOLDER``; a single string may stand for itself."""
    draft: str = "lookup"
    """Who guesses tokens ahead: `lookup` (the text before), `none`, `self:6` (the model's own first 6 layers), or a model of
    the same tokenizer."""
    policy: str = "auto"
    """Order of prefill tasks: a name of `edge_llm.runner.order`, or auto for the best known for the lanes."""
    float_path: bool = False
    """Run every linear in float32 on the source's own weights (the oracle), not the INT8 path."""
    shadow: bool = True
    """Add the shadow outliers; off only to see what they are worth."""
    trace_experts: Path | None = None
    """Write to this file which experts rows go to; None: nowhere."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lora", _strings(self.lora))
        _whole("threads", self.threads, 1, 1024)
        _whole("context", self.context, 1, None, " token")
        _whole("chunk", self.chunk, 1, MOST_CHUNK, " tokens")
        _whole("window", self.window, 1, 64, " chunks")
        _whole("kv_tokens", self.kv_tokens, 1, None, " token")
        _whole("kv_states", self.kv_states, 0, None, " states")
        _whole("parallel", self.parallel, 1, MOST_PARALLEL, " answers")


@dataclass(frozen=True)
class Grammar:
    """What an answer must look like; `edge_llm.decoding.guided` checks it and holds answers to it."""

    kind: Literal["json_schema", "json_object", "regex", "lark", "choice"]
    text: str = ""
    """A JSON schema, a regular expression, a grammar in Lark's or GBNF's syntax, or a JSON list of strings to choose from."""
    parts: tuple[tuple[str, Grammar], ...] = ()
    """Grammars that a Lark text refers to as ``@name``."""
    free: bool = False
    """Any text keeps to it: it is for what may stand in the text, such as tool calls."""


REPETITION = "repetition"
"""Why an answer ended that the loop guard has ended."""


@dataclass(frozen=True)
class GenerationParams:
    """How tokens are chosen.  Defaults are a plain greedy answer; a model's own defaults come from its bundle."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    """Taken from a token's logit for every time the answer has it already."""
    presence_penalty: float = 0.0
    """Taken once from the logit of every token that the answer has already."""
    dry_multiplier: float = 0.0
    """Above 0: what a token costs that would lengthen a repeat in the answer (DRY, `edge_llm.decoding.edits.dry_penalty`)."""
    dry_base: float = 1.75
    """That cost times this for each token of the repeat beyond the allowed ones."""
    dry_allowed_length: int = 2
    """Tokens of a repeat that costs nothing yet."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """A repeat begins behind a token with one of these in it: llama.cpp's."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)."""
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = field(default=())
    """A single string may stand for itself, and any sequence for a tuple."""
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end the answer like the model's own end tokens do; any collection may stand for a set."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Tokens before which the answer cannot end by an end token."""
    logprobs: int | None = None
    """Report each token's log-probability and this many most likely alternatives; None reports nothing."""
    prompt_logprobs: int | None = None
    """Report the same of the prompt's tokens, all of which are computed then; None reports nothing."""
    logprob_tokens: tuple[int, ...] = ()
    """Tokens whose log-probabilities are reported beside each token's, in place of the most likely ones."""
    allowed_tokens: frozenset[int] | None = None
    """The only tokens that the answer may have; None allows all."""
    think_tokens: int | None = None
    """Most tokens of a thought, which is closed then; None leaves it to the model."""
    grammar: Grammar | None = None
    """What the answer must look like."""
    skip_special_tokens: bool = True
    """Control tokens are no part of the answer's text."""
    loop_guard: bool = False
    """End the answer when it says the same over and over (`edge_llm.decoding.loops`)."""

    @property
    def guarded(self) -> bool:
        """Whether a loop ends the answer: a grammar may want one, and who ignores end tokens wants so many tokens."""
        return self.loop_guard and (self.grammar is None or self.grammar.free) and not self.ignore_eos

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(self, "dry_sequence_breakers", _strings(self.dry_sequence_breakers))
        object.__setattr__(self, "stop_tokens", frozenset(self.stop_tokens))
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("dry_multiplier", self.dry_multiplier, 0.0, 100.0)
        _within("dry_base", self.dry_base, 1.0, 100.0)
        _within("dry_allowed_length", self.dry_allowed_length, 1, 1024)
        if self.allowed_tokens is not None and not self.allowed_tokens:
            raise UsageError("allowed_token_ids is empty; name at least one token", param="allowed_token_ids")
        if len(self.logit_bias) > 1024:
            raise UsageError(f"logit_bias takes at most 1024 tokens, got `{len(self.logit_bias)}`", param="logit_bias")
        for token, bias in self.logit_bias:
            _within(f"logit_bias of token {token}", bias, -100.0, 100.0, param="logit_bias")
        for name, top in (("top_logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if top is not None:
                _within(name, top, 0, 20)
        for name in ("loop_guard", "skip_special_tokens"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false, got `{value}`", param=name)
        for name, number in (("min_tokens", self.min_tokens), ("think_tokens", self.think_tokens or 0)):
            if number < 0:
                raise UsageError(f"{name} must be 0 or more, got `{number}`", param=name)
        if self.top_k < 0:
            raise UsageError(f"top_k must be 0 (off) or more, got `{self.top_k}`", param="top_k")
        least = 1 if self.prompt_logprobs is None else 0
        if self.max_tokens is not None and self.max_tokens < least:
            raise UsageError(f"max_tokens must be at least 1, got `{self.max_tokens}`", param="max_tokens")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UsageError(f"seed must be between 0 and 2^64-1, got `{self.seed}`", param="seed")
        if len(self.stop) > 16 or not all(isinstance(each, str) and 1 <= len(each) <= 256 for each in self.stop):
            raise UsageError("stop takes at most 16 strings of 1 to 256 characters", param="stop")
        breakers = self.dry_sequence_breakers
        if len(breakers) > 64 or not all(isinstance(each, str) and 1 <= len(each) <= 64 for each in breakers):
            message = "dry_sequence_breakers takes at most 64 strings of 1 to 64 characters"
            raise UsageError(message, param="dry_sequence_breakers")


def _strings(given: object) -> tuple[object, ...]:
    """One string for itself, a list or a tuple of them; what is neither is handed on to be refused."""
    return tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)


def _whole(name: str, value: int | None, low: int, high: int | None, unit: str = "") -> None:
    """Raise `UsageError` for a ``value`` that is given and is no whole number from ``low`` to ``high``."""
    if value is None:
        return
    if not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, got `{value}`", param=name)
    if low <= value and (high is None or value <= high):
        return
    wanted = f"at least {low}{unit}" if high is None else f"between {low} and {high}{unit}"
    raise UsageError(f"{name} must be {wanted}, got `{value}`", param=name)


def _within(name: str, value: float, low: float, high: float, *, param: str | None = None) -> None:
    if not low <= value <= high:  # nor is not-a-number
        raise UsageError(f"{name} must be between {low:g} and {high:g}, got `{value}`", param=param or name)
