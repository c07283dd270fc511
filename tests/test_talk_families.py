"""How families write: templates as transformers renders them, calls of tools, ends of turns."""

from __future__ import annotations

import json

import pytest
from scripted_model import Scripted
from test_talk_templates import ASK, TOOL
from test_talk_tools import CALL_NOW, CALL_ROME, NOW, ROME, parse
from test_text_chat import published_templates
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from edge_llm.config import GenerationParams
from edge_llm.errors import EdgeLLMError
from edge_llm.talk.conversation import conversation_request
from edge_llm.talk.tool_formats import COHERE, HERMES, LIST, MISTRAL_NAMED, PLAIN, format_of
from edge_llm.talk.tools import ToolUse
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.ends import turn_end
from edge_llm.text.tokenizer import Tokenizer

# ---- templates

PUBLISHED = {
    "gemma2": ("google-gemma-2-2b-it", HERMES),
    "smollm3": ("HuggingFaceTB-SmolLM3-3B", HERMES),
    "granite": ("ibm-granite-granite-3.3-2B-Instruct", LIST),
    "granite, 4": ("ibm-granite-granite-4.0", HERMES),
    "phi3": ("microsoft-Phi-3.5-mini-instruct", HERMES),
    "cohere2": ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", COHERE),
    "ministral3": ("mistralai-Ministral-3-14B-Reasoning-2512", MISTRAL_NAMED),
}
"""The templates of families that the sources of llama.cpp have, and how their calls are written or asked for."""
USER, SAID, SYSTEM = (
    {"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Yes"), ("system", "Be brief."))
)
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {"a": "b"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "look", "tool_call_id": "abcdefghi", "content": "seen"}
CONVERSATIONS = {
    "plain": ([USER], {}),
    "system": ([SYSTEM, USER], {}),
    "turns": ([USER, SAID, USER], {}),
    "tools": ([USER], {"tools": [TOOL]}),
    "results": ([USER, CALLED, RESULT], {"tools": [TOOL]}),
    "a turn behind them": ([USER, CALLED, RESULT, SAID, USER], {"tools": [TOOL]}),
    "thinking": ([USER], {"enable_thinking": True, "thinking": True}),
    "no thinking": ([SYSTEM, USER], {"enable_thinking": False, "thinking": False}),
}


def source_of(family: str) -> str:
    folder = published_templates()
    path = None if folder is None else folder / f"{PUBLISHED[family][0]}.jinja"
    if path is None or not path.is_file():
        pytest.skip("no published chat templates: EDGE_LLM_CHAT_TEMPLATES names no folder of .jinja files")
    return path.read_text()


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_familys_template_is_rendered_as_transformers_does(family):
    theirs = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    source, specials = source_of(family), {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(source, specials=specials)
    for name, (messages, more) in CONVERSATIONS.items():
        try:
            found = template.render(messages, dict(more))
        except EdgeLLMError:
            found = None
        others = specials | {key: value for key, value in more.items() if key != "tools"}
        try:
            texts, _ = theirs([messages], more.get("tools"), chat_template=source, add_generation_prompt=True, **others)
        except Exception:  # whatever a template raises
            texts = [None]
        assert found == texts[0], (family, name)


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_way_that_a_template_asks_for_calls_in_is_found(family):
    assert format_of(ChatTemplate(source_of(family)).shape) == PUBLISHED[family][1]


# ---- calls

GRANITE = "{% if tools %}Respond only with <|tool_call|> followed by a JSON list of tools. {{ tools | tojson }}{% endif %}"
PHI4 = "{% if tools %}<|tool|>{{ tools | tojson }}<|/tool|>{% endif %}"
MESSAGES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
COHERES = (
    '{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}'
    '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ c.function.name }}", "parameters": '
    "{{ c.function.arguments | tojson }}}]<|END_ACTION|>{% endfor %}{% endfor %}"
)
ACTION_ROME = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome {\\"}"}}'
ACTION_NOW = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}'
WRITTEN = [
    (LIST, f"<|tool_call|>[{ROME}]", "", [CALL_ROME]),
    (LIST, f"<|tool_call|>[{ROME}, {NOW}]<|/tool_call|>", "", [CALL_ROME, CALL_NOW]),
    (LIST, f"I look.\n<|tool_call|> [\n  {NOW}\n]", "I look.", [CALL_NOW]),
    (COHERE, f"<|START_ACTION|>[\n    {ACTION_ROME}\n]<|END_ACTION|>", "", [CALL_ROME]),
    (COHERE, f"<|START_ACTION|>[{ACTION_ROME},\n{ACTION_NOW}]<|END_ACTION|>", "", [CALL_ROME, CALL_NOW]),
    (COHERE, '<|START_ACTION|>[{"parameters": {}, "tool_name": "now"}]<|END_ACTION|>', "", [CALL_NOW]),
    (COHERE, f"I plan.<|START_ACTION|>[{ACTION_NOW}]<|END_ACTION|>", "I plan.", [CALL_NOW]),
    (MISTRAL_NAMED, '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Rome {\\"}"}', "", [CALL_NOW, CALL_ROME]),
    (HERMES, f"<tool_call>\n{ROME}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>", "", [CALL_ROME, CALL_NOW]),
]
"""Of Granite 3 and Phi-4-mini, Cohere 2, Ministral 3; SmolLM3, Granite 4 and EXAONE 4."""


@pytest.mark.parametrize(("style", "text", "said", "calls"), WRITTEN)
def test_calls_of_every_family_are_found_however_the_text_is_cut(style, text, said, calls):
    for pieces in ([text], list(text), [text[:9], text[9:20], text[20:]]):
        found = parse(style, pieces)
        assert (found[0].strip(), found[1]) == (said, calls)


@pytest.mark.parametrize(
    ("source", "style"),
    [(GRANITE + MESSAGES, LIST), (PHI4 + MESSAGES, LIST), (COHERES, COHERE), ("{{ tools }}" + MESSAGES, PLAIN)],
)
@pytest.mark.parametrize("controls", [False, True], ids=["as text", "as control tokens"])
def test_a_forced_call_is_written_as_the_family_does(source, style, controls):
    marks = ("<|tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>") if controls else ()
    scripted = Scripted(source, marks)
    assert format_of(scripted.engine.template.shape) == style
    scripted.says("}" * 200)
    tool = {**TOOL, "function": {**TOOL["function"], "parameters": {"type": "object", "properties": {}}}}
    tools = ToolUse.of([tool], "required", None, scripted.engine)
    request, syntax = conversation_request(scripted.engine, ASK, GenerationParams(max_tokens=200), tools=tools)
    outcome = syntax.outcome(scripted.engine.answer(request))
    assert [(call.name, json.loads(call.arguments)) for call in outcome.calls][:1] == [("look", {})], outcome
    assert outcome.said == ""


# ---- ends of turns

ENDS = {
    "gemma2": (["<eos>", "<end_of_turn>"], ["<eos>"], "<end_of_turn>\n"),
    "gemma3_text": (["<eos>", "<end_of_turn>"], ["<eos>", "<end_of_turn>"], "<end_of_turn>\n"),
    "olmo2": (["<|endoftext|>"], ["<|endoftext|>"], "<|endoftext|>"),
    "exaone4": (["[|endofturn|]", "[BOS]"], ["[|endofturn|]"], "[|endofturn|]\n"),
    "smollm3": (["<|end_of_text|>", "<|im_end|>"], ["<|im_end|>"], "<|im_end|>\n"),
    "granite": (["<|end_of_text|>"], ["<|end_of_text|>"], "<|end_of_text|>\n"),
    "phi3": (["<|endoftext|>", "<|end|>", "<|user|>"], ["<|endoftext|>", "<|end|>", "<|user|>"], "<|end|>\n"),
    "glm4": (
        ["<|endoftext|>", "<|user|>", "<|observation|>"], ["<|endoftext|>", "<|user|>", "<|observation|>"], "<|user|>",
    ),
    "cohere2": (["<|END_OF_TURN_TOKEN|>"], ["<|END_OF_TURN_TOKEN|>"], "<|END_OF_TURN_TOKEN|>"),
    "ministral3": (["</s>"], ["</s>"], "</s>"),
}  # fmt: skip
"""By family: its control tokens, those that generation_config.json names as eos, and what its template ends a turn with."""


@pytest.mark.parametrize("by", ["ids", "one id", "text", "nothing but the template"])
@pytest.mark.parametrize("family", ENDS)
def test_what_ends_a_turn_ends_an_answer(family, by):
    """Whether it stands in a list of generation_config.json, alone, in tokenizer_config.json, or in the template alone."""
    tokens, named, behind = ENDS[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(tokens)
    ids = [backend.token_to_id(token) for token in named]
    configs = {
        "ids": [{"eos_token_id": ids}, {}],
        "one id": [{"eos_token_id": ids[0]}, {}],
        "text": [{}, {"eos_token": {"content": named[0]}}],
        "nothing but the template": [{}, {}],
    }[by]
    tokenizer = Tokenizer.from_bytes(backend.to_str().encode(), configs, 400, family)
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}BEHIND{% endfor %}".replace("BEHIND", behind))
    ends = {*tokenizer.eos_ids, turn_end(template, tokenizer)}
    last = next(token for token in sorted(tokens, key=len, reverse=True) if behind.startswith(token))
    assert backend.token_to_id(last) in ends
    if by == "ids":
        assert set(ids) <= ends
