"""The chat templates in a model's folder, and the control tokens that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_llm.errors import InvalidTokenizer
from edge_llm.files import read_file
from edge_llm.text.tokenizer import read_config

MAX_TEMPLATE_BYTES = 1 << 20

DEFAULT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Plain "role: content" lines, for a model that brings no template."""
TURNS = ("\nuser:", "\nassistant:")
"""What begins a turn behind an answer by `DEFAULT_TEMPLATE`."""
USUAL = "chat_template.jinja"
TOOL_USE = "additional_chat_templates/tool_use.jinja"
"""The template beside the usual one that is for conversations with tools."""


@dataclass(frozen=True)
class Templates:
    """What a folder says of chats."""

    usual: str | None
    """The template; None where the model brings none."""
    tool_use: str | None
    """The one for conversations with tools; None where the usual one is for them too."""
    named_tokens: dict[str, str]
    """Control tokens by the variables that templates use for them, such as `bos_token`."""


def read_templates(folder: Path) -> Templates:
    """What ``folder`` (a Hugging Face folder or a bundle) has: files of their own, or parts of ``tokenizer_config.json``.

    Raises `InvalidTokenizer`.
    """
    path = folder / "tokenizer_config.json"
    config = read_config(path) if path.exists() else {}
    usual, tool_use = _template(folder / USUAL, config, "default"), _template(folder / TOOL_USE, config, "tool_use")
    return Templates(usual, tool_use, _named_tokens(config))


def _template(path: Path, config: Mapping[str, Any], name: str) -> str | None:
    """The template at ``path``, or the one called ``name`` in ``config``; a single one there is the default."""
    if path.exists():
        return _read(path)
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get(name)
    elif name != "default":
        return None
    if template is not None and not isinstance(template, str):
        raise InvalidTokenizer("tokenizer_config.json: chat_template must be a string")
    return template


def _read(path: Path) -> str:
    try:
        return read_file(path, MAX_TEMPLATE_BYTES, error=InvalidTokenizer).decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        raise InvalidTokenizer(f"`{path.name}`: byte {failure.start} is not UTF-8") from None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens
