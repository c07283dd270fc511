"""Conversations of 40 turns as today's coding agents send them, made by hand from their public shapes."""

import json

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PICTURE = "iVBORw0KGgo="
TURNS = 40


def claude_code(turns=TURNS):
    """Path, body, and the names of what has no effect."""
    cached = {"cache_control": {"type": "ephemeral"}}
    messages = []
    for at in range(turns // 2):
        reminder = {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"}
        messages.append(
            {"role": "user", "content": [reminder, {"type": "text", "text": f"Task {at}", **(cached if at % 5 == 0 else {})}]}
        )
        if at % 4 == 1:
            messages.append({"role": "system", "content": [{"type": "text", "text": f"Available skills: {at}"}]})
        calls = [
            {"type": "tool_use", "id": f"toolu_{at}_{n}", "name": "Bash", "input": {"command": f"ls {n}"}}
            for n in range(1 + at % 2)
        ]
        thought = [{"type": "thinking", "thinking": f"I look ({at}).", "signature": "c2ln"}] if at % 3 else []
        messages.append({"role": "assistant", "content": [*thought, {"type": "text", "text": f"I look at {at}."}, *calls]})
        results = [_anthropic_result(call["id"], at + n) for n, call in enumerate(calls)]
        messages.append({"role": "user", "content": results})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": f"Done {at}."}]})
    messages.append({"role": "user", "content": "And now?"})
    tool = {"name": "Bash", "description": "Runs a command", "input_schema": {"$schema": "http://x", **SCHEMA}}
    body = {
        "model": "builtin", "max_tokens": 64, "messages": messages, "tools": [
            tool, {"name": "Read", "input_schema": SCHEMA, "eager_input_streaming": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}, {"type": "bash_20250124", "name": "bash"},
        ],
        "system": [{"type": "text", "text": "x-billing-header: cc"}, {"type": "text", "text": "You are an agent.", **cached}],
        "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }  # fmt: skip
    unheard = {
        "metadata", "context_management", "output_config.effort", "tools.eager_input_streaming", "tools.web_search_20250305",
        "messages.content.cache_control", "system.cache_control", "messages.content.image", "messages.content.is_error",
        "messages.content.tool_reference",
    }  # fmt: skip
    return "/v1/messages", body, unheard


def _anthropic_result(call_id, number):
    text = {"type": "text", "text": f"file{number}"}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    contents = ["a file", [text], [text, picture], [text, {"type": "tool_reference", "tool_name": "x"}], [], ""]
    failed = {"is_error": True} if number % 7 == 3 else {}
    return {"type": "tool_result", "tool_use_id": call_id, "content": contents[number % len(contents)], **failed}


def codex(turns=TURNS):
    def message(role, text, **more):
        return {
            "type": "message",
            "role": role,
            "content": [{"type": "output_text" if role == "assistant" else "input_text", "text": text}],
            **more,
        }

    items = [message("developer", "<permissions>read-only</permissions>"), message("user", "# AGENTS.md\nBe brief.")]
    for at in range(turns // 2):
        items += [
            message("user", f"Task {at}"),
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": f"I look ({at})."}],
                "content": None,
                "encrypted_content": None,
            },
        ]
        items += _codex_call(at)
        items.append(message("assistant", f"Done {at}.", id=f"msg_{at}", status="completed", phase="final_answer"))
    items.append(message("user", "And now?"))
    function = {"type": "function", "name": "exec_command", "description": "d", "strict": False, "parameters": SCHEMA}
    body = {
        "model": "builtin", "instructions": "You are an agent.", "input": items, "tool_choice": "auto", "store": False,
        "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "max_output_tokens": 64,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"},
        "client_metadata": {"x": "y"}, "tools": [
            function, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"},
            {"type": "custom", "name": "apply_patch", "description": "d",
             "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}},
            {"type": "namespace", "name": "multi_agent_v1", "description": "d", "tools": [function | {"name": "spawn"}]},
        ],
    }  # fmt: skip
    unheard = {
        "prompt_cache_key", "client_metadata", "reasoning.summary", "reasoning", "text.verbosity", "tools.web_search",
        "tools.local_shell", "tools.namespace", "tools.format", "input.web_search_call", "input.output.input_image",
    }  # fmt: skip
    return "/v1/responses", body, unheard


def _codex_call(at):
    call_id = f"call_{at}"
    kinds = [
        ({"type": "function_call", "name": "exec_command", "arguments": json.dumps({"command": "ls"}), "call_id": call_id},
         {"type": "function_call_output", "call_id": call_id, "output": "file"}),
        ({"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch\n\"x\"\n", "call_id": call_id},
         {"type": "custom_tool_call_output", "call_id": call_id, "output": "Success"}),
        ({"type": "function_call", "name": "view_image", "arguments": "{}", "call_id": call_id},
         {"type": "function_call_output", "call_id": call_id,
          "output": [{"type": "input_text", "text": "a.png"}, {"type": "input_image", "image_url": PICTURE}]}),
        ({"type": "local_shell_call", "call_id": call_id, "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
         {"type": "local_shell_call_output", "call_id": call_id, "output": '{"output": "file"}'}),
        ({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},),
    ]  # fmt: skip
    return list(kinds[at % len(kinds)])


def aider(turns=TURNS):
    messages = [{"role": "system", "content": "Act as an expert software developer."}]
    for at in range(turns):
        messages.append({"role": "user", "content": f"Change {at}\n```python\nprint({at})\n```"})
        messages.append({"role": "assistant", "content": f"file.py\n<<<<<<< SEARCH\n{at}\n=======\n{at + 1}\n>>>>>>> REPLACE"})
    messages.append({"role": "user", "content": [{"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}}]})
    messages.append({"role": "system", "content": "To suggest changes to a file, use *SEARCH/REPLACE* blocks."})
    return (
        "/v1/chat/completions",
        {"model": "builtin", "messages": messages, "temperature": 0},
        {"messages.content.cache_control"},
    )


def cline(turns=TURNS):
    messages = [{"role": "system", "content": "You are Cline."}]
    for at in range(turns // 2):
        parts = [
            {"type": "text", "text": f"<task>\n{at}\n</task>"},
            {"type": "text", "text": "<environment_details>\n</environment_details>"},
        ]
        call = {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": "execute_command", "arguments": '{"command":"ls"}'},
        }
        details = [{"type": "reasoning.text", "text": f"I look ({at}).", "format": "unknown", "index": 0}]
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PICTURE}}
        content = [{"type": "text", "text": "file"}, *([picture] if at % 2 else [])]
        messages += [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "I look.", "tool_calls": [call], "reasoning_details": details},
            {"role": "tool", "tool_call_id": call["id"], "content": content},
            {"role": "assistant", "content": [{"type": "text", "text": f"Done {at}."}]},
        ]
    messages.append({"role": "user", "content": [{"type": "text", "text": "And now?"}]})
    function = {
        "name": "execute_command",
        "description": "d",
        "strict": False,
        "parameters": SCHEMA | {"additionalProperties": False},
    }
    body = {
        "model": "builtin", "messages": messages, "temperature": 0, "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto", "parallel_tool_calls": False, "max_completion_tokens": 64,
    }  # fmt: skip
    return "/v1/chat/completions", body, {"messages.content.image_url"}


def opencode(turns=TURNS):
    messages = [{"role": "system", "content": "You are opencode."}, {"role": "system", "content": "<env>\n</env>"}]
    for at in range(turns // 2):
        calls = [
            {"id": f"call_{at}_{n}", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
            for n in (0, 1)
        ]
        messages += [
            {"role": "user", "content": f"Task {at}"},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": f"I look ({at})."},
            *({"role": "tool", "tool_call_id": call["id"], "content": "file"} for call in calls),
            {"role": "assistant", "content": f"Done {at}.", "reasoning": "So."},
        ]
    messages.append({"role": "user", "content": "And now?"})
    body = {
        "model": "builtin", "messages": messages, "max_tokens": 64, "tool_choice": "auto", "reasoning_effort": "low", "tools": [
            {"type": "function", "function": {"name": "bash", "description": "d", "parameters": SCHEMA}},
            {"type": "function", "function": {"name": "todowrite", "parameters": {"type": "object", "properties": {}}}},
        ],
    }  # fmt: skip
    return "/v1/chat/completions", body, {"reasoning_effort"}


AGENTS = {"Claude Code": claude_code, "Codex": codex, "aider": aider, "Cline": cline, "OpenCode": opencode}
