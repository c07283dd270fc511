"""Fields of OpenAI's, Anthropic's and vLLM's requests that no body declares: those that are refused, and those without effect.

One table for the code and the documents: a body refuses what its rules refuse, the answer's header names the rest where it is
sent, and docs/api.md and /openapi.json list both beside the fields that are honoured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """One field."""

    name: str
    is_refused: bool
    """Whether it would change the answer; else it is a hint, which is taken and named."""
    note: str = ""
    idle: tuple[Any, ...] = ()
    """Values that ask for nothing (null always does): they are taken although the field is refused."""


def refused(name: str, *idle: Any, note: str = "") -> Rule:
    """A field that this server cannot honour, which would change the answer."""
    return Rule(name, True, note, idle)


def hint(name: str, note: str = "") -> Rule:
    """A field without effect, which changes nothing that a client could see."""
    return Rule(name, False, note)


def refusals(rules: Sequence[Rule]) -> Mapping[str, tuple[Any, ...]]:
    """The refused fields, each with the values that ask for nothing."""
    return {rule.name: rule.idle for rule in rules if rule.is_refused}


_LOCAL = "a service's matter; nothing is billed or shared here"
_CACHED = "prompts that begin alike are found without it"

SAMPLING = (
    refused("bad_words", []),
    refused("dynatemp_range", 0),
    refused("grammar"), refused("guided_choice"), refused("guided_grammar"), refused("guided_json"), refused("guided_regex"),
    refused("json_schema"), refused("regex"), refused("structured_outputs"),
    refused("kv_transfer_params", note="it may carry another prompt"),
    refused("length_penalty", 1),
    refused("lora", []),
    refused("mirostat", 0),
    refused("n_probs", 0, note="`logprobs` says the same"),
    refused("options", {}),
    refused("prompt_logprobs"),
    refused("samplers"),
    refused("truncate_prompt_tokens"),
    refused("typical_p", 1),
    refused("use_beam_search", False),
    refused("xtc_probability", 0),
    hint("cache_prompt", _CACHED), hint("cache_salt", _CACHED), hint("id_slot", "any free place is taken"),
    hint("include_stop_str_in_output", "the stop string is left out; `stopped_by` and `stop_sequence` tell of it"),
    hint("priority"), hint("request_id"), hint("spaces_between_special_tokens"),
    hint("user", _LOCAL),
)  # fmt: skip
"""Of every request that is answered by tokens; a field that a body declares is honoured there."""

_OPENAI = (
    hint("metadata", "told back by responses, which honour it"),
    hint("prompt_cache_key", _CACHED), hint("prompt_cache_retention", _CACHED), hint("prompt_cache_options", _CACHED),
    hint("safety_identifier", _LOCAL), hint("service_tier", _LOCAL),
    hint("verbosity"),
)  # fmt: skip

COMPLETIONS = (*SAMPLING, *_OPENAI)

CHAT = (
    *SAMPLING, *_OPENAI,
    refused("audio"), refused("chat_template"), refused("documents", []),
    refused("function_call", "none", note="the older form of `tool_choice`"),
    refused("functions", [], note="the older form of `tools`"),
    refused("modalities", ["text"]), refused("moderation"), refused("prediction"),
    refused("store", False, note="responses are kept, chat completions are not"),
    refused("web_search_options"),
    hint("include_reasoning", "thoughts come apart from the answer, always"),
    hint("reasoning_format", "as `include_reasoning`"),
)  # fmt: skip

RESPONSES = (
    *SAMPLING, *_OPENAI,
    refused("background", False), refused("conversation", note="`previous_response_id` goes on with a response"),
    refused("max_tool_calls"), refused("moderation"), refused("prompt"),
    hint("client_metadata", _LOCAL), hint("context_management", "`truncation: auto` makes a conversation fit"),
    hint("stream_options"),
)  # fmt: skip

MESSAGES = (
    *SAMPLING,
    refused("container"), refused("mcp_servers", []),
    hint("cache_control", _CACHED), hint("context_management"), hint("inference_geo", _LOCAL), hint("metadata", _LOCAL),
    hint("service_tier", _LOCAL), hint("speed", _LOCAL),
)  # fmt: skip

LLAMA_CPP = (
    *SAMPLING, refused("n_indent", 0), refused("t_max_predict_ms", 0, -1), refused("t_max_prompt_ms", 0, -1),
    hint("n_keep", "the context does not shift"), hint("n_cache_reuse", _CACHED),
)  # fmt: skip

EMBEDDINGS = (hint("user", _LOCAL),)

NOTES: Mapping[str, str] = {
    "add_generation_prompt": "whether the prompt ends where the assistant begins",
    "add_special_tokens": "whether a prompt begins with a bos token where the model's author wants one",
    "allowed_token_ids": "vLLM's: the only tokens that the answer may have",
    "best_of": "no other than `n`",
    "chat_template_kwargs": "variables of the chat template",
    "choice": "the answer is one of these",
    "continue_final_message": "the last message is the beginning of the answer",
    "dimensions": "an embedding model's vectors are cut to so many numbers; of any other model all of them",
    "echo": "completions: the prompt before its answer, with its log-probabilities where `logprobs` are wanted; chat: the "
    "message that is continued before its end",
    "frequency_penalty": "-2 to 2",
    "grammar": "Lark's or GBNF's syntax",
    "guided_choice": "as `choice`", "guided_grammar": "as `grammar`", "guided_json": "as `json_schema`",
    "guided_regex": "as `regex`",
    "ignore_eos": "goes on behind the end token",
    "include": "`message.output_text.logprobs`; what else it names is of tools that are not here, and is named in the header",
    "input": "a text, or items; references stand for items that are kept",
    "json_schema": "the answer is JSON of this schema",
    "keep_alive": "how long the model stays loaded",
    "logit_bias": "at most 1,024 tokens, -100 to 100 each",
    "logprobs": "at most 20 likely tokens beside each",
    "logprob_token_ids": "vLLM's: these in place of the likeliest tokens, where log-probabilities are wanted",
    "loop_guard": "false lets an answer say the same over and over",
    "max_completion_tokens": "-1 is as many as fit; the first that is given of this and the next counts",
    "max_output_tokens": "as `max_completion_tokens`", "max_new_tokens": "as `max_completion_tokens`",
    "max_tokens": "as `max_completion_tokens`; 0 where an echo or `prompt_logprobs` are wanted",
    "metadata": "told back",
    "min_tokens": "tokens before which no end token ends the answer",
    "n": "at most 16 answers",
    "n_predict": "as `max_completion_tokens`", "num_predict": "as `max_completion_tokens`",
    "parallel_tool_calls": "false ends the answer behind its first call",
    "parse_special": "whether a prompt's text spells control tokens",
    "previous_response_id": "a response that is kept",
    "prompt_logprobs": "vLLM's; not in streams",
    "instruction": "what documents are ranked for, to a model that is asked in words; of any other a 400",
    "prompt_name": "one of the model's prompts, such as `query`, stands before every text",
    "reasoning": "`effort`, `enabled`, `max_tokens`",
    "reasoning_budget": "as `thinking_token_budget`",
    "reasoning_effort": "told to templates that know levels; else low and medium are budgets of 1,024 and 4,096 tokens",
    "repeat_penalty": "as `repetition_penalty`",
    "response_format": "`text`, `json_object` or `json_schema`",
    "return_token_ids": "tokens of the prompt and of the answer",
    "return_tokens_as_token_ids": "log-probabilities name tokens by their ids",
    "seed": "-1 is any",
    "skip_special_tokens": "false shows control tokens",
    "stop": "at most 16 strings of 1 to 256 characters",
    "store": "whether the response is kept; yes where nothing is said",
    "structured_outputs": "vLLM's: `json`, `regex`, `choice`, `grammar` or `json_object`",
    "system": "a message before the others",
    "thinking": "`type`, `budget_tokens`; the thought is closed at its budget",
    "thinking_budget": "as `thinking_token_budget`",
    "thinking_token_budget": "most tokens of a thought, which is closed then; -1 is no limit",
    "tool_choice": "auto, none, required, a name, or `allowed_tools`",
    "tools": "functions, and custom tools as functions of one text; others are left out and named",
    "top_k": "0 or -1 keeps all",
    "suffix": "what stands behind the gap; needs a model whose tokenizer has tokens for gaps",
    "raw_scores": "true: as a reranker's head gives them; false: all from 0 to 1; else as the model's author has it",
    "truncate": "whether what is too long is cut; where nothing is said, Ollama's routes and reranking do, and /v1/embeddings "
    "refuses it",
    "truncate_prompt_tokens": "most tokens of the prompt; -1 is as many as fit",
    "truncation": "auto: a conversation that is too long loses its beginning",
    "truncation_side": "`left` (the beginning is cut) or `right`",
}
"""What is to be said of fields that are honoured."""
