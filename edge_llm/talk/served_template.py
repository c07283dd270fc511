"""The chat template that a server was started with: another one than the model's own, and how the model thinks by it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from edge_llm.errors import InvalidTokenizer, UsageError
from edge_llm.files import read_file, shown
from edge_llm.talk.wish import Wish, template_names
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.known_templates import KNOWN_TEMPLATES
from edge_llm.text.template_files import MAX_TEMPLATE_BYTES
from edge_llm.text.tokenizer import Tokenizer

REASONING = ("on", "off", "auto")
"""Whether a model thinks where a request says nothing; auto leaves it to the template."""
_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y %H:%M:%S"}
"""Variables that llama.cpp tells its templates, and how they say what day it is: transformers leaves them to each template,
which has a day of its past."""


def template_source(given: str) -> str:
    """The template that ``given`` names: one of `KNOWN_TEMPLATES`, or a file.  Raises `UsageError`."""
    if given in KNOWN_TEMPLATES:
        return KNOWN_TEMPLATES[given]
    path = Path(given)
    if not path.is_file():
        names = ", ".join(KNOWN_TEMPLATES)
        raise UsageError(f"--chat-template `{shown(given)}` is no file, and none of {names}", param="chat_template")
    try:
        return read_file(path, MAX_TEMPLATE_BYTES, error=InvalidTokenizer).decode("utf-8-sig")
    except (UnicodeDecodeError, InvalidTokenizer) as failure:
        raise UsageError(f"--chat-template `{shown(given)}` cannot be read: {shown(failure)}", param="chat_template") from None


def served_template(template: ChatTemplate, tokenizer: Tokenizer, source: str | None, reasoning: str) -> ChatTemplate:
    """``template``, or one of ``source`` in its place, told whether to think as ``reasoning`` says.

    A ``source`` is told the date, too.  A template that has no switch and opens a thought has it closed where the model is not
    to think.  A request that says how to think has the last word where the template has a switch.  Raises `InvalidTokenizer`
    for a template that fails.
    """
    if source is None and reasoning == "auto":
        return template
    wish = None if reasoning == "auto" else Wish(reasoning == "on")
    text = template.source if source is None else source
    told = {} if wish is None else wish.variables(text)
    dated = template_names(text) if source is not None else frozenset()
    closes = wish is not None and not wish.on and not told

    def usual() -> Mapping[str, Any]:
        now = datetime.now()
        dates = {name: now.strftime(form) for name, form in _DATES.items() if name in dated}
        tools = {"functions": "[]"} if "functions" in dated else {}  # firefunction's: tools are told in words of ours
        return told | dates | tools

    bos = {} if source not in KNOWN_TEMPLATES.values() or tokenizer.add_bos else {"bos_token": ""}
    found = template.changed(source, bos, usual, closes)
    found.check()
    return found
