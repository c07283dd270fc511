"""A chat template from a stranger, rendered with a conversation."""

import re

from mutate import changed_text

from edge_llm.errors import EdgeLLMError
from edge_llm.paths import builtin_bundle
from edge_llm.text.chat import ChatTemplate

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
MESSAGES = [
    {"role": "system", "content": "Answer in one line."},
    {"role": "user", "content": "What is 2 + 2? " * 40},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": "4"},
    {"role": "user", "content": [{"type": "text", "text": "Thanks.\r\n" * 20}]},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}]
CHATML = (
    "{%- for message in messages %}{%- if loop.first and message.role != 'system' %}{{- '<|im_start|>system\\n' }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content if message.content is string else message.content | tojson) "
    "+ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TOOL_USE = (
    "{%- macro show(value, depth=0) -%}{%- if value is mapping -%}{%- for key, inner in value | dictsort -%}{{ '  ' * depth }}"
    "{{ key }}: {{ show(inner, depth + 1) }}\n{%- endfor -%}{%- else -%}{{ value }}{%- endif -%}{%- endmacro -%}"
    "{%- set state = namespace(last=-1, text='') -%}{%- for message in messages -%}{%- if message.role == 'user' -%}"
    "{%- set state.last = loop.index0 -%}{%- endif -%}{%- endfor -%}{{ tools | tojson(indent=2) if tools else '' }}"
    "{{ show(messages[state.last]) }}{{ strftime_now('%Y-%m-%d') }}{% generation %}{{ messages | length }}{% endgeneration %}"
)
# letters of the grammar, which stand alone: a string, a list or a number, any of them (E), statements (B)
ATOMS = {
    "S": (
        "''", "'a'", "'x y z'", "'\\r' * 60000", "'ab ' * 20000", "'f' * 200000", "messages[1].content", "messages[0]['role']",
        "'{:300000000}'.format(1)", "'%300000000d' % 1", "'{:3000000000}'.format(1)", "'{:.5000}'.format(N)",
        "'{0.__class__}'.format(S)", "bos_token",
        "strftime_now(S)",
        "'<' ~ L ~ '>'", "N",
    ),
    "L": (
        "messages", "tools", "[1, 2]", "(1, 2)", "range(N)", "range(7)", "[S, S]", "[L, L]", "{'a': N}", "messages[1]",
        "dict(a=S)", "S", "[N] * N", "namespace(a=1)",
    ),
    "N": (
        "0", "1", "2", "7", "64", "5000", "1e9", "-1", "300000000", "3000000000", "10**8", "2**64", "3.5", "true", "S | length",
        "L | length", "S | int", "('9' * 4000) | int", "('f' * 200000) | int(0, 16)", "loop.index",
    ),
}  # fmt: skip
STEPS = {
    "S": (
        "S + S", "S ~ S", "S * N", "S[N:]", "S[::-1]", "S % N", "S | capitalize", "S | e", "S | indent(N)",
        "S | indent(N, true, true)",
        "S | indent(S)", "S | lower", "S | replace(S, S)", "S | replace('', S)", "S | safe", "S | title", "S | trim",
        "S | truncate(N)", "L | join(S)", "L | tojson", "L | tojson(indent=N)", "L | tojson(separators=(S, S))", "L | string",
        "S.replace('a', S)", "S.join(L)", "S.format(S, N)", "S.strip()", "S.upper()", "S | default(S)", "L | first", "L | last",
        "raise_exception(L)", "S.__class__", "S.zfill(N)", "S if N else S", "m(S)", "caller()",
    ),
    "L": (
        "L + L", "L * N", "L[N:]", "L | list", "L | sort", "L | reverse", "L | unique", "L | map('upper')",
        "L | select('in', L)",
        "L | map(attribute='content')", "L | map('tojson')", "L | select('==', S)", "L | reject('string')", "L | dictsort",
        "L | selectattr('role', 'equalto', 'user')", "L | rejectattr('role')", "L | items", "S | list", "S.split(S)",
        "S.splitlines()", "L.items()", "L.get(S)", "L.append(L)",
    ),
    "N": (
        "N + N", "N - N", "N * N", "N // N", "N / N", "N % N", "N ** N", "S in S", "S == S", "L == L", "S < S", "S in L",
        "L | sum",
        "L | sum(start=L)", "N | abs", "N | round(N)", "N | int", "S | int(0, 36)", "N | float", "L | max", "L | min",
        "S.count(S)",
        "S | wordcount", "S.find(S)", "S.startswith(S)", "N and N", "not L", "L is iterable", "S is string", "N is even",
    ),
}  # fmt: skip
SIMPLE = {"S": "'ab ' * 20000", "L": "[1, 2]", "N": "7"}
STATEMENTS = (
    "{% for x in L %}B{% endfor %}", "{% for x in L recursive %}{{ loop(L) if N else E }}{% endfor %}", "{% set x = E %}B",
    "{% if E %}B{% else %}B{% endif %}", "{% set x %}B{% endset %}B{{ x }}", "{% macro m(a, b=E) %}B{% endmacro %}{{ m(E) }}",
    "{{ E }}", "B{{ E }}B", "{% macro m(a) %}{{ m(a) }}B{% endmacro %}{{ m(1) }}", "{% with x = E %}B{% endwith %}",
    "{% set ns = namespace(a=E) %}{% for x in L %}{% set ns.a = ns.a ~ E %}{% endfor %}{{ ns.a }}",
    "{% macro m() %}{{ caller() }}B{% endmacro %}{% call m() %}B{% endcall %}", "{% for x in L if N %}B{% break %}{% endfor %}",
    "{% for x in L %}{% for x in L %}B{% endfor %}{% endfor %}", "{% filter indent(N) %}B{% endfilter %}",
)  # fmt: skip
COSTLY = (
    "{{ (S * N) | length }}", "{{ ((S | list) | tojson(indent=N)) | length }}", "{{ (('\\r' * 60000) | indent(N)) | length }}",
    "{{ ('f' * 60000) | int(0, 16) // N }}", "{{ ('9' * 4300) | int ** N }}", "{{ [L] * N == [L] * N }}",
    "{{ range(N) | list }}",
    "{% for x in range(90000) %}{% if S in ('ab' * 60000) %}{% endif %}{% endfor %}", "{{ raise_exception([L] * N) }}",
    "{% for x in range(N) %}{{ ('ab' * 60000) | select('==', 'b') | list | length }}{% endfor %}", "{{ [S] * N | join(S) }}",
    "{{ L | tojson(separators=(S, S)) | length }}", "{{ S.replace('', S) | length }}", "{{ (S ~ S).format(S, N) | length }}",
)  # fmt: skip
ELSEWHERE = ("{% include E %}", "{% import E as x %}", "{% raw %}{{{% endraw %}", "{% block b %}B{% endblock %}", "{% debug %}")


class Target:
    def make(self, random):
        how = random.random()
        if how < 0.05:
            piece = random.choice(("(", "{{ x }}", "{% if x %}", "{{ [", "-", "not ", "x.", "{#", "a\r\n", "{{ 'a' ~ "))
            return {"template": piece * random.choice((100, 3000, 60_000, 400_000))}
        if how < 0.3:
            shipped = (builtin_bundle() / "chat_template.jinja").read_text()
            words = ["{{ " + expression(random, 2, "S") + " }}", filled(random.choice(ELSEWHERE), random, 1), *STATEMENTS[:4]]
            return {"template": changed_text(random.choice((shipped, CHATML, TOOL_USE)), random, words)}
        if how < 0.45:
            return {"template": filled(random.choice(COSTLY), random, random.choice((0, 1)))}
        return {"template": body(random, random.choice((0, 0, 1, 1, 2)))}

    def run(self, made):
        try:
            template = ChatTemplate(made["template"], specials={"bos_token": "<s>", "eos_token": "</s>"})
            template.render(MESSAGES, {"tools": TOOLS})
            template.check()
            return True
        except EdgeLLMError as error:
            assert len(str(error)) < 2000, "the reason is as long as a book"
            return False


def body(random, depth):
    """Statements inside each other."""
    statement = random.choice(STATEMENTS) if depth else "{{ E }}"
    return filled(statement, random, random.choice((0, 1, 1, 2)), depth)


def expression(random, depth, kind):
    """What is, in all likelihood, a string (S), a list (L) or a number (N)."""
    choices = STEPS[kind] if depth > 0 else ATOMS[kind]
    return filled(random.choice(choices), random, depth - 1)


def filled(text, random, depth, inner=0):
    """``text`` with its letters filled in."""
    made = []
    for part in re.split(r"\b([SLNEB])\b", text):
        if part == "B":
            part = body(random, inner - 1) if inner > 0 else "b"
        elif part in ("S", "L", "N", "E"):
            kind = random.choice("SSLN") if part == "E" or random.random() < 0.03 else part
            part = f"({expression(random, depth, kind)})" if depth > -2 else SIMPLE[kind]
        made.append(part)
    return "".join(made)
