"""What a conversation may contain, over templates of every kind: roles, calls, thoughts, marks that are control tokens."""

import itertools
import json
import re
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_model import Scripted
from test_text_chat import published_templates

from edge_llm.config import GenerationParams, Grammar
from edge_llm.errors import ContextOverflow
from edge_llm.talk.conversation import conversation_length, conversation_request, conversation_text, plain_messages
from edge_llm.talk.tools import ToolUse
from edge_llm.text import shape as shape_module
from edge_llm.text.chat import ChatTemplate, prompt_text
from edge_llm.text.reasoning import CLOSE, OPEN, Thinking
from edge_llm.text.shape import TemplateShape

pytestmark = pytest.mark.thorough(file=4)

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}
ASK = [{"role": "user", "content": "Hi"}]
REFUSE = "{{ raise_exception('no') }}"
ROLES = {"shown": "<{{ m.role }}>{{ m.content or '' }}", "dropped": "", "refused": REFUSE}
ARGUMENTS = {
    "objects": "{{ c.function.arguments | tojson }}",
    "text": "{{ 'x' + c.function.arguments }}",
    "either": "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
    "items": "{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v }}]{% endfor %}",
    "Python": "{{ c.function.arguments }}",
}
SHOWN = "{% for c in m.tool_calls or [] %}GUARD(CALL {{ c.function.name }} ARGS){% endfor %}"
CALLS = {
    "shown": SHOWN.replace("GUARD", ""),
    "by null": "{% if m.content is none %}{% for c in m.tool_calls %}(CALL {{ c.function.name }} ARGS){% endfor %}{% endif %}",
    "one": SHOWN.replace("GUARD", "{% if not loop.first %}" + REFUSE + "{% endif %}"),
    "short ids": SHOWN.replace("GUARD", "{% if c.id | length != 9 %}" + REFUSE + "{% endif %}"),
    "with tools": "{% if tools %}" + SHOWN.replace("GUARD", "") + "{% endif %}",
    "none": "",
}
RESULTS = {
    "shown": "<tool>{{ m.content }}",
    "named": "<tool>{{ m.name + m.content }}",
    "refused": REFUSE,
    "dropped": "",
}
THOUGHTS = {"none": "", "opened": "<think>\n", "closed": "<think>\n\n</think>\n\n", "mentioned": "{# <think> #}"}
TURNS = {
    "any": "",
    "alternating": "{% set turns = messages | rejectattr('role', 'in', ['system', 'tool']) "
    "| rejectattr('tool_calls', 'defined') | list %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" + REFUSE + "{% endif %}{% endfor %}",
}
PARTS = {
    "system": ROLES,
    "late": ROLES,
    "arguments": ARGUMENTS,
    "calls": CALLS,
    "results": RESULTS,
    "thoughts": THOUGHTS,
    "turns": TURNS,
    "tools": ("shown", "none", "mentioned"),
    "prompt": ("asked for", "always"),
    "history": ("whole", "without thoughts"),
}
USUAL = {name: next(iter(values)) for name, values in PARTS.items()}


def made(**parts):
    """The source of a template that is made of ``parts``; the usual ones where none are named."""
    chosen = USUAL | parts
    tools = {"shown": "{% if tools %}TOOLS {{ tools | tojson }}{% endif %}", "none": "", "mentioned": "{# no tools #}"}
    content = "m.content.split('</think>')[-1]" if chosen["history"] == "without thoughts" else "m.content or ''"
    calls = CALLS[chosen["calls"]].replace("ARGS", ARGUMENTS[chosen["arguments"]])
    go = "<assistant>" + THOUGHTS[chosen["thoughts"]]
    return "".join(
        [
            TURNS[chosen["turns"]],
            tools[chosen["tools"]],
            "{% for m in messages %}{% if m.role == 'system' and loop.first %}",
            ROLES[chosen["system"]],
            "{% elif m.role == 'system' %}",
            ROLES[chosen["late"]],
            "{% elif m.role == 'tool' %}",
            RESULTS[chosen["results"]],
            "{% elif m.role == 'assistant' %}",
            f"{{% if m.content is not none %}}<assistant>{{{{ {content} }}}}{{% endif %}}",
            calls,
            "{% else %}<user>{{ m.content }}{% endif %}<|end|>{% endfor %}",
            go if chosen["prompt"] == "always" else "{% if add_generation_prompt %}" + go + "{% endif %}",
        ]
    )


templates = st.fixed_dictionaries({name: st.sampled_from(sorted(values)) for name, values in PARTS.items()})


def engine_of(template):
    """As much of an engine as a template needs."""
    return types.SimpleNamespace(template=template if isinstance(template, ChatTemplate) else ChatTemplate(template))


# ---- what a template takes


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({}, {"system": True, "late_system": True, "tools": True, "alternates": False, "thinks": False}),
        ({"system": "refused", "late": "refused"}, {"system": False, "late_system": False}),
        ({"system": "dropped", "late": "dropped"}, {"system": False, "late_system": False}),
        ({"late": "refused"}, {"system": True, "late_system": False}),
        ({"late": "dropped"}, {"system": True, "late_system": False}),
        ({"tools": "none"}, {"tools": False}),
        ({"tools": "mentioned"}, {"tools": False}),
        ({"turns": "alternating"}, {"alternates": True}),
        ({"thoughts": "opened"}, {"thinks": True}),
        ({"thoughts": "closed"}, {"thinks": True}),
        ({"thoughts": "mentioned"}, {"thinks": False}),
        ({"history": "without thoughts"}, {"thinks": True}),
        ({"calls": "none"}, {"calls": None, "calls_alone": None}),
        ({"results": "refused"}, {"calls": None, "calls_alone": None}),
        ({"results": "dropped"}, {"calls": None, "calls_alone": None}),
        ({"calls": "with tools"}, {"calls_alone": None}),
    ],
)
def test_a_probe_finds_what_a_template_takes(parts, wanted):
    shape = ChatTemplate(made(**parts)).shape
    assert {name: getattr(shape, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (
            {},
            {
                "as_text": False,
                "takes_text": True,
                "null_content": False,
                "text_beside": True,
                "many": True,
                "short_ids": False,
            },
        ),
        ({"arguments": "text"}, {"as_text": True}),
        ({"arguments": "either"}, {"as_text": False, "takes_text": True}),
        ({"arguments": "items"}, {"as_text": False, "takes_text": False}),
        ({"arguments": "Python"}, {"as_text": True}),
        ({"calls": "by null"}, {"null_content": True, "text_beside": False}),
        ({"calls": "one"}, {"many": False}),
        ({"calls": "short ids"}, {"short_ids": True}),
        ({"results": "named"}, {"named_results": True}),
    ],
)
def test_a_probe_finds_how_calls_stand_in_a_history(parts, wanted):
    shape = ChatTemplate(made(**parts)).shape
    for calls in (shape.calls, shape.calls_alone):
        assert {name: getattr(calls, name) for name in wanted} == wanted


def test_a_template_is_probed_once_and_one_that_refuses_all_gets_all_as_it_is():
    template = ChatTemplate("{{ raise_exception('no') }}")
    assert template.shape is template.shape == TemplateShape()


def test_a_template_that_takes_long_is_not_asked_for_ever(monkeypatch):
    """What was not asked in time is as if it was refused."""
    asked = []
    template = ChatTemplate(made())
    render = template.render
    monkeypatch.setattr(template, "render", lambda *given, **more: asked.append(1) or render(*given, **more))
    monkeypatch.setattr(shape_module, "MAX_SECONDS", -1.0)
    assert (template.shape, asked) == (TemplateShape(), [])


def test_a_template_that_wants_a_list_of_no_tools_gets_one():
    template = ChatTemplate(
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert conversation_text(engine_of(template), [{"role": "user", "content": "Hi"}]) == "Hi"


# ---- nothing is refused, nothing is left out


@st.composite
def histories(draw):
    """Messages as agents send them: each content has a word of its own."""
    numbers, calls = itertools.count(100), itertools.count()
    word = lambda: f"word{next(numbers)}"  # noqa: E731
    found = [{"role": "system", "content": word()}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        found.append({"role": "user", "content": word()})
        for _ in range(draw(st.integers(0, 2))):
            ids = [f"call_{next(calls):024}" for _ in range(draw(st.integers(1, 2)))]
            shapes = ['{"a": "%s"}', '{"a": "%s', '{"a": "%s",}', '["%s"]', '"%s"', '{"a":\n"%s"}', '{"a": "\\ud800%s"}']
            made = [draw(st.sampled_from(shapes)) % word() for _ in ids]
            content = word() if draw(st.booleans()) else draw(st.sampled_from([None, ""]))
            names = [{"name": "look", "arguments": one} for one in made]
            said = {
                "role": "assistant",
                "content": content,
                "tool_calls": [
                    {"id": call, "type": "function", "function": function} for call, function in zip(ids, names, strict=True)
                ],
            }
            found += [said, *({"role": "tool", "tool_call_id": call, "content": word()} for call in ids)]
        if draw(st.booleans()):
            found.append({"role": "assistant", "content": word()})
        if draw(st.integers(0, 4)) == 0:
            found.append({"role": "system", "content": word()})
    return found if found[-1]["role"] in ("user", "tool") else [*found, {"role": "user", "content": word()}]


def words_of(messages):
    return sorted(set(re.findall(r"word\d+", json.dumps(messages))))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(parts=templates, messages=histories(), choice=st.sampled_from([None, "auto", "none"]))
def test_every_template_is_told_all_of_every_history(parts, messages, choice):
    engine = engine_of(made(**parts))
    tools = None if choice is None else ToolUse.of([TOOL], choice, None, engine)
    text = conversation_text(engine, plain_messages(messages), tools=tools)
    assert [word for word in words_of(messages) if word not in text] == []
    assert ("look" in text.partition("word")[0] or "Looks." in text) or tools is None


@pytest.mark.parametrize("calls", [name for name in CALLS if name != "none"])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_template_shows_calls_in_its_own_way(calls, arguments):
    """Whole calls go through the template; a plain history is told as it stands."""
    engine = engine_of(made(calls=calls, arguments=arguments))
    tools = ToolUse.of([TOOL], None, None, engine)
    call = {"id": "c" * 20, "type": "function", "function": {"name": "look", "arguments": '{"a": "b"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    history = [{"role": "user", "content": "x"}, said, {"role": "tool", "tool_call_id": "c" * 20, "content": "r"}]
    text = conversation_text(engine, plain_messages(history), tools=tools)
    assert "(CALL look " in text and "<tool>r" in text and "'a'" not in text
    plain = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    assert conversation_text(engine, plain) == "<user>x<|end|><assistant>y<|end|><user>z<|end|><assistant>"


def test_several_calls_are_told_one_by_one_where_the_template_has_one():
    engine = engine_of(made(calls="one"))
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    results = [{"role": "tool", "tool_call_id": name, "content": name.upper()} for name in ("g", "f")]
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": calls}, *results]
    text = conversation_text(engine, plain_messages(history))
    shown = "<assistant>y(CALL f {})<|end|><tool>F<|end|><assistant>(CALL g {})<|end|><tool>G<|end|>"
    assert shown in text


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("calls", ["shown", "by null", "one", "none"])
@pytest.mark.parametrize("said", ["", "I look."])
def test_thoughts_before_calls_reach_the_template_once(key, calls, said):
    """In the field where it looks for them, whether it shows calls or has them told in words."""
    thought = f"{{% if m.{key} %}}(THOUGHT {{{{ m.{key} }}}}){{% endif %}}"
    source = made(calls=calls).replace(
        "{% if m.content is not none %}<assistant>", thought + "{% if m.content is not none %}<assistant>"
    )
    made_calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    turn = {"role": "assistant", "content": said, "reasoning_content": "hm", "tool_calls": made_calls}
    history = [*ASK, turn, *({"role": "tool", "tool_call_id": name, "content": name} for name in ("f", "g"))]
    assert conversation_text(engine_of(source), plain_messages(history)).count("(THOUGHT hm)") == 1


def test_short_ids_stay_with_their_calls():
    ids = "{% for m in messages %}<{{ m.content }}{{ m.tool_call_id }}{% for c in m.tool_calls or [] %}"
    ids += "{% if c.id | length != 9 %}"
    engine = engine_of(
        ids + REFUSE + "{% endif %}{{ c.id }}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}>{% endfor %}"
    )
    calls = [{"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    results = [{"role": "tool", "tool_call_id": f"call_{name}", "content": name.upper()} for name in ("f", "g")]
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    found = re.findall(
        r"([0-9a-f]{9})f\{\}([0-9a-f]{9})g\{\}>.*<F(.{9})>.*<G(.{9})>", conversation_text(engine, plain_messages(history))
    )
    (first, second, of_first, of_second) = found[0]
    assert (first, second) == (of_first, of_second) and first != second


def test_what_the_system_says_goes_before_the_first_user_message():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Now."},
    ]
    shown = {
        "shown": "<system>Be brief.<|end|><user>Hi<|end|><system>Now.<|end|><assistant>",
        "late": "<system>Be brief.\n\nNow.<|end|><user>Hi<|end|><assistant>",
        "none": "<user>Be brief.\n\nNow.\n\nHi<|end|><assistant>",
    }
    for how in ("refused", "dropped"):
        templates = {"shown": made(), "late": made(late=how), "none": made(system=how, late=how)}
        for name, template in templates.items():
            assert conversation_text(engine_of(template), messages) == shown[name], (name, how)
    assert (
        conversation_text(engine_of(made(system="refused", late="refused")), messages[:1])
        == "<user>Be brief.<|end|><assistant>"
    )


ODD = ("firefunction", "command-r-plus", "gpt-oss")
"""They want variables or descriptions that nobody gives, or leave out what is said before a call."""


@pytest.fixture(scope="module")
def published():
    """Engines of published templates, by their names."""
    folder = published_templates()
    if folder is None:
        pytest.skip("no published chat templates: EDGE_LLM_CHAT_TEMPLATES names no folder of .jinja files")
    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    paths = [path for path in sorted(folder.glob("*.jinja")) if not any(name in path.name for name in ODD)]
    return {path.name: engine_of(ChatTemplate(path.read_text(), specials=specials)) for path in paths}


@pytest.mark.thorough(keep=1)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(messages=histories(), with_tools=st.booleans())
def test_published_templates_are_told_all_of_every_history(published, messages, with_tools):
    for name, engine in published.items():
        tools = ToolUse.of([TOOL], None, None, engine) if with_tools else None
        text = conversation_text(engine, plain_messages(messages), tools=tools)
        assert [word for word in words_of(messages) if word not in text] == [], name


@pytest.mark.parametrize("begun", ["Once upon ", " Once\n"])
def test_published_templates_go_on_behind_a_beginning(published, begun):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun}]
    for name, engine in published.items():
        none = {"tools": []} if engine.template.shape.needs_list else {}
        text, thinking = prompt_text(engine.template, messages, none, begun=True)
        assert text.endswith(begun.lstrip()) and thinking == Thinking.RAW, name


# ---- where an answer begins

TAGGED = ["What does <think> mean?", "<think>", "a </think> b", "Is <think> closed by </think>, or by <think>?", "</think>"]
BEHIND = {"none": Thinking.FREE, "mentioned": Thinking.FREE, "opened": Thinking.OPEN, "closed": Thinking.RAW}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=templates,
    messages=st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "system"]), st.sampled_from([*TAGGED, "Hi"])), max_size=4
    ),
    last=st.sampled_from([*TAGGED, "Hi"]),
    controls=st.booleans(),
)
def test_only_what_the_template_puts_behind_the_last_message_opens_a_thought(parts, messages, last, controls):
    parts |= {"turns": "any", "system": "shown", "late": "shown"}
    scripted = Scripted(made(**parts), (OPEN, CLOSE) if controls else ())
    found = [{"role": role, "content": text} for role, text in messages] + [{"role": "user", "content": last}]
    request, syntax = conversation_request(scripted.engine, found, GenerationParams())
    assert request.thinking == syntax.thinking == BEHIND[parts["thoughts"]]


SWITCH = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    "{% if '/no_think' in messages[-1].content or messages[0].content.endswith('/off') %}<think>\n\n</think>\n"
    "{% else %}<think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("said", "thinking"),
    [("Hi", Thinking.OPEN), ("Hi /no_think", Thinking.RAW), ("Hi /off", Thinking.RAW), ("/off <think>", Thinking.OPEN)],
)
def test_a_template_may_look_for_words_in_messages(said, thinking):
    assert prompt_text(ChatTemplate(SWITCH), [{"role": "user", "content": said}])[1] == thinking


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=templates,
    begun=st.sampled_from(["Once", "Once upon ", " Once\n", "It is `<think>`, or </think>", "a</think>b", "Hi"]),
    trims=st.booleans(),
)
def test_a_beginning_is_gone_on_with_behind_its_text(parts, begun, trims):
    """As transformers renders it: with the begun message last, cut behind its text; never inside of a thought."""
    parts |= {"system": "shown"}
    source = made(**parts)
    trimmed = trims and parts["history"] == "whole"
    source = source.replace("{{ m.content or '' }}{% endif %}", "{{ m.content | trim }}{% endif %}") if trimmed else source
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun}]
    text, thinking = prompt_text(ChatTemplate(source), messages, begun=True)
    assert text.endswith(begun.lstrip()) and thinking == Thinking.RAW
    if parts["history"] == "whole" or CLOSE not in begun:
        assert text.endswith(f"<user>Hi<|end|><assistant>{begun.lstrip() if trimmed else begun}")


@pytest.mark.parametrize("controls", [(), (OPEN, CLOSE)])
@pytest.mark.parametrize("thoughts", ["none", "opened"])
@pytest.mark.parametrize(
    ("begun", "thinking"),
    [
        ("<think>\nhm", Thinking.OPEN),
        ("<think>hm</think>\n\nYes", Thinking.RAW),
        ("<think>", Thinking.OPEN),
        ("\n", Thinking.FREE),
    ],
)
def test_a_begun_thought_is_gone_on_with(controls, thoughts, begun, thinking):
    scripted = Scripted(made(thoughts=thoughts), controls)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun}]
    request, syntax = conversation_request(scripted.engine, messages, GenerationParams(), begun=True)
    text = scripted.tokenizer.decode(request.prompt, skip_special=False)
    assert text == "<user>Hi<|end|><assistant>" + begun and syntax.thinking == thinking
    if controls and begun.startswith(OPEN):
        assert scripted.tokenizer.token_id(OPEN) in request.prompt


def test_a_template_that_refuses_a_beginning_gets_it_behind_its_prompt():
    refuses = "{% if messages[-1].role != 'user' %}" + REFUSE + "{% endif %}" + made(thoughts="opened")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes, "}]
    text, thinking = prompt_text(ChatTemplate(refuses), messages, begun=True)
    assert (text, thinking) == ("<user>Hi<|end|><assistant><think>\n\n</think>\n\nYes, ", Thinking.RAW)


# ---- forms of answers, in the dialect that a template shows

WRITTEN = {
    "<tool_call>": "{{ c.function | tojson }}",
    "[TOOL_CALLS]": "[{{ c.function | tojson }}]",
    "[TOOL_CALLS]named": "{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}",
    "<｜tool▁call▁begin｜>": "function<｜tool▁sep｜>{{ c.function.name }}",
    "<|python_tag|>": "{{ c.function | tojson }}",
    "": "{{ c.function | tojson }}",
}
MARKS = (OPEN, CLOSE, "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<｜tool▁calls▁begin｜>",
         "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")  # fmt: skip


@pytest.mark.parametrize("controls", [(), MARKS], ids=["as text", "as control tokens"])
@pytest.mark.parametrize("mark", WRITTEN)
def test_a_forced_call_is_one_in_every_dialect(controls, mark):
    """A model that would say anything else calls the tool, behind a thought or without one."""
    shown = f"{{% for c in m.tool_calls or [] %}}{mark.removesuffix('named')}{WRITTEN[mark]}{{% endfor %}}"
    source = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}" + shown + "{% endfor %}"
    for thought in ("", "<think>\n"):
        scripted = Scripted(source + thought, controls)
        scripted.says("hm</think>\n\n" * bool(thought) + "}" * 200)
        tool = {**TOOL, "function": {**TOOL["function"], "parameters": {"type": "object", "properties": {}}}}
        for choice in ("required", {"type": "function", "function": {"name": "look"}}):
            tools = ToolUse.of([tool], choice, None, scripted.engine)
            request, syntax = conversation_request(scripted.engine, ASK, GenerationParams(max_tokens=200), tools=tools)
            outcome = syntax.outcome(scripted.engine.answer(request))
            assert [(call.name, json.loads(call.arguments)) for call in outcome.calls][:1] == [("look", {})], outcome
            assert (outcome.said, outcome.thought) == ("", "hm" if thought else "")


@pytest.mark.parametrize("controls", [(), MARKS], ids=["as text", "as control tokens"])
@pytest.mark.parametrize("thoughts", ["none", "opened", "mentioned"])
def test_a_form_of_the_answer_stands_behind_its_thought(controls, thoughts):
    scripted = Scripted(made(thoughts=thoughts, history="without thoughts"), controls)
    scripted.says(("" if thoughts == "opened" else "<think>") + "hm</think>\n\n123")
    params = GenerationParams(grammar=Grammar("regex", "[0-9]{3}"))
    request, syntax = conversation_request(scripted.engine, ASK, params)
    outcome = syntax.outcome(scripted.engine.answer(request))
    assert (outcome.thought, outcome.said, outcome.reason) == ("hm", "123", "stop")


def test_a_history_that_is_too_long_is_told_as_such_also_where_its_calls_are_told_in_words(engine):
    """Whoever asks may then shorten it."""
    refused = "{% for c in m.tool_calls or [] %}{% if c.function.name == 'odd' %}" + REFUSE + "{% endif %}{{ c }}{% endfor %}"
    here = types.SimpleNamespace(
        template=ChatTemplate("{% for m in messages %}" + refused + "{{ m.content }}{% endfor %}"), tokenizer=engine.tokenizer
    )
    call = {"id": "1", "type": "function", "function": {"name": "odd", "arguments": "{}"}}
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "word " * 500},
    ]
    assert conversation_length(here, plain_messages(history), most=10_000) > 500
    with pytest.raises(ContextOverflow):
        conversation_length(here, plain_messages(history), most=100)
