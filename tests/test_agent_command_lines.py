"""The command lines of coding agents, unmodified, for four turns with tools against a server of ours.

    npm install --prefix FOLDER @anthropic-ai/claude-code @openai/codex
    EDGE_LLM_AGENTS=FOLDER/node_modules/.bin EDGE_LLM_AGENTS_MODEL=smollm2 pytest tests/test_agent_command_lines.py

Without `EDGE_LLM_AGENTS` the commands of the PATH are taken; the tests skip where there are none.  Without
`EDGE_LLM_AGENTS_MODEL`, the name or folder of an imported model of 8,192 tokens or more, a model that says what the test has
written answers alone.
"""

import os
import shutil
import subprocess
from dataclasses import replace

import pytest
from scripted_engine import scripted
from serving import builtin_engine, hosted, serving

from edge_llm.config import RuntimeConfig
from edge_llm.opening.load import load_engine
from edge_llm.server.pool import ModelPool
from edge_llm.text.chat import ChatTemplate

FOLDER, MODEL = os.environ.get("EDGE_LLM_AGENTS"), os.environ.get("EDGE_LLM_AGENTS_MODEL")
SECONDS = 400
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}<|assistant|>"
)
CLAUDE, CODEX = "claude", "codex"
CALLS = {CLAUDE: '{"name": "Bash", "arguments": {"command": "echo from-the-%s", "description": "Say it"}}',
         CODEX: '{"name": "exec_command", "arguments": {"cmd": "echo from-the-%s"}}'}  # fmt: skip
CONFIG = """
model = "builtin"
model_provider = "ours"
model_context_window = %d
[model_providers.ours]
name = "ours"
base_url = "%s/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def command_of(name):
    """Path of the agent; skips where it is not here."""
    found = shutil.which(name, path=FOLDER)
    if found is None:
        pytest.skip(
            f"no `{name}` here: npm install @anthropic-ai/claude-code @openai/codex; EDGE_LLM_AGENTS names its .bin folder"
        )
    return found


class Agent:
    """One agent in a folder and a home of its own."""

    def __init__(self, name, url, folder, context):
        self.name, self._command, self._turn = name, command_of(name), 0
        self._folder = folder / "work"
        self._folder.mkdir()
        home = folder / "home"
        (home / ".codex").mkdir(parents=True)
        (home / ".codex" / "config.toml").write_text(CONFIG % (context, url))
        self._environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "IS_SANDBOX": "1",
            "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "x",
            "ANTHROPIC_SMALL_FAST_MODEL": "builtin", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1000", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    def say(self, prompt):
        """The next turn; what the agent prints."""
        arguments = getattr(self, f"_{self.name}")(prompt, going_on=self._turn > 0)
        self._turn += 1
        done = subprocess.run(
            [self._command, *arguments], cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _claude(self, prompt, *, going_on):
        tools = ["--tools", "Bash,Read", "--allowed-tools", "Bash(echo:*)", "--system-prompt", "Be brief."]
        return ["-p", prompt, *(["--continue"] if going_on else []), "--model", "builtin", *tools]

    def _codex(self, prompt, *, going_on):
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return ["exec", *(["resume", "--last"] if going_on else []), *free, prompt]


def four_turns(name, engine, folder):
    """What the agent prints in each of four turns, and the server's lines about its requests."""
    lines = []
    with serving(ModelPool(hosted(engine=engine), journal=lines.append)) as url:
        agent = Agent(name, url, folder, engine.runner.context)
        said = [agent.say(f"Turn number {turn}: say something.") for turn in range(4)]
    return said, lines


def answered(lines):
    """The requests that were to be answered by the model."""
    return [line for line in lines if "/v1/messages" in line or "/v1/responses" in line]


@pytest.mark.parametrize("name", [CLAUDE, CODEX])
def test_an_agent_calls_a_tool_in_each_of_four_turns(name, tmp_path):
    command_of(name)

    def answer(prompt):
        turn = prompt.rpartition("Turn number ")[2]
        result = turn.rpartition("<|tool|>")[2] if "<|tool|>" in turn else None
        if result is not None:
            return (
                f"The tool said: from-the-tool-{turn[0]}"
                if f"from-the-tool-{turn[0]}" in result
                else f"It failed: {result[:200]}"
            )
        return f"<tool_call>\n{CALLS[name] % f'tool-{turn[0]}'}\n</tool_call>"

    engine = scripted(builtin_engine(), answer, ChatTemplate(TEMPLATE), context=1 << 18)
    said, lines = four_turns(name, engine, tmp_path)
    for turn, text in enumerate(said):
        assert f"The tool said: from-the-tool-{turn}" in text, (text, lines)
    assert len(answered(lines)) >= 8 and all(" 200 " in line for line in answered(lines)), lines


@pytest.mark.parametrize("name", [CLAUDE, CODEX])
def test_a_real_model_holds_four_turns_with_tools_offered(name, tmp_path):
    command_of(name)
    if not MODEL:
        pytest.skip("EDGE_LLM_AGENTS_MODEL names no imported model of 8,192 tokens or more, such as SmolLM2-135M-Instruct")
    engine = load_engine(MODEL, RuntimeConfig())
    # so small a model rambles up to the end of its context, which the agents take for an error: one sentence is enough
    engine.served = replace(engine.served, temperature=0.0, stop=(".", "!", "?"))
    said, lines = four_turns(name, engine, tmp_path)
    assert all(text.strip() for text in said)
    assert len(answered(lines)) >= 4 and all(" 200 " in line for line in answered(lines)), lines
