"""All that a model's folder says of texts: its tokenizer and its chat template."""

from __future__ import annotations

from pathlib import Path

from edge_llm.text.chat import ChatTemplate
from edge_llm.text.rendering import TemplateProcess
from edge_llm.text.template_files import DEFAULT_TEMPLATE, read_templates
from edge_llm.text.tokenizer import Tokenizer


def load_texts(folder: Path, vocab_size: int) -> tuple[Tokenizer, ChatTemplate]:
    """Those of the model in ``folder``; the process that renders the template starts while the tokenizer is read.

    Raises `InvalidTokenizer`.
    """
    found = read_templates(folder)
    process = TemplateProcess(found.usual or DEFAULT_TEMPLATE)
    process.begin()
    tokenizer = Tokenizer.from_folder(folder, vocab_size)
    return tokenizer, ChatTemplate.of(found, tokenizer, process)
