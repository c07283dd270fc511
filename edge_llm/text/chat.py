"""Messages become a prompt: a model's chat template, found beside its tokenizer, rendered and encoded.

The template is a Jinja program that came with the model; `edge_llm.text.rendering` runs it.

    template = ChatTemplate.from_folder(folder, tokenizer)
    ids = encode_chat(template, tokenizer, [{"role": "user", "content": "Hi"}])
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_llm.errors import ContextOverflow, InvalidTokenizer, UsageError
from edge_llm.files import read_file, shown
from edge_llm.strict_json import is_unicode
from edge_llm.text.rendering import TemplateProcess
from edge_llm.text.tokenizer import Tokenizer, read_config

MAX_TEMPLATE_BYTES = 1 << 20
MAX_UNCOUNTED = 1 << 20
"""Characters of messages that are rendered before anyone knows whether they fit into the context."""
MAX_OUTPUT = 16 << 20
"""Characters of one prompt."""

DEFAULT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Plain "role: content" lines, for a model that brings no template."""

_RESERVED = {
    "messages",
    "range", "raise_exception", "strftime_now", "dict", "namespace", "joiner", "cycler",
    "begun", "max_output", "most", "params", "self", "template", "tokenizer",
}  # fmt: skip
"""Variables that nobody sets: the conversation, what every template finds there, and words for the work around it."""


class ChatTemplate:
    """A model's template, compiled when it is first rendered.  Raises `InvalidTokenizer` when it is too large.

    ``specials`` are the variables that templates use for control tokens: bos_token, eos_token and the like.
    """

    def __init__(self, source: str, *, specials: Mapping[str, str] | None = None, is_default: bool = False) -> None:
        self.source = source
        self.is_default = is_default
        """No template came with the model; faces say so once."""
        self._specials = {"bos_token": "", "eos_token": ""} | dict(specials or {})
        if len(source.encode("utf-8", "replace")) > MAX_TEMPLATE_BYTES:
            raise InvalidTokenizer(f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_BYTES}")
        self._process = TemplateProcess(source)

    @classmethod
    def default(cls, bos: str = "") -> ChatTemplate:
        """The template for a model that brings none: "role: content" lines."""
        return cls(DEFAULT_TEMPLATE, specials={"bos_token": bos}, is_default=True)

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of the model in ``folder`` (a Hugging Face folder or a bundle), or the default one."""
        source = find_template(folder)
        if source is None:
            return cls.default(tokenizer.bos_text if tokenizer.add_bos else "")
        specials = {"bos_token": tokenizer.bos_text, "eos_token": tokenizer.eos_text}
        return cls(source, specials=specials | _named_tokens(folder))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        max_output: int = MAX_OUTPUT,
    ) -> str:
        """The prompt for ``messages``, at most ``max_output`` characters.

        ``variables`` (tools, documents, add_generation_prompt, ...) are plain data for the template.  Raises `UsageError`
        for messages that the template refuses or a reserved variable, `InvalidTokenizer` when the template is malformed,
        reaches outside or fails.
        """
        given = dict(variables or {})
        for name in given:
            if name in _RESERVED or name in self._specials:
                raise UsageError(f"the template variable `{shown(name)}` cannot be set", param="chat_template_kwargs")
        usual = {"tools": None, "documents": None, "add_generation_prompt": True}
        text = self._process.render(usual | self._specials | given | {"messages": list(messages)}, max_output)
        if not text:
            raise InvalidTokenizer("the model's chat template made an empty prompt of these messages")
        if not is_unicode(text):
            raise UsageError("the prompt holds half of a surrogate pair; send valid Unicode", param="messages")
        return text

    def check(self) -> None:
        """Try a template of the model's own on one message.

        Raises `InvalidTokenizer` when the message does not reach the prompt.
        """
        if self.is_default:
            return
        probe = "Does this sentence arrive?"
        try:
            text = self.render([{"role": "user", "content": probe}])
        except UsageError:  # a template that wants other messages is not wrong
            return
        if probe not in text:
            raise InvalidTokenizer("the model's chat template leaves out what the user says")


def find_template(folder: Path) -> str | None:
    """The chat template in ``folder``: ``chat_template.jinja``, or the one inside ``tokenizer_config.json``."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_file(path, MAX_TEMPLATE_BYTES, error=InvalidTokenizer).decode("utf-8-sig")
        except UnicodeDecodeError as failure:
            raise InvalidTokenizer(f"`{path.name}`: byte {failure.start} is not UTF-8") from None
    template = _tokenizer_config(folder).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise InvalidTokenizer("tokenizer_config.json: chat_template must be a string")
    return template


def with_system(
    messages: Sequence[dict[str, Any]], *, before: str | None = None, after: str | None = None
) -> list[dict[str, Any]]:
    """``messages`` with one message of the system first, as templates take it: ``before``, what it says there, ``after``."""
    first, *others = messages
    if first["role"] != "system":
        first, others = {"role": "system", "content": None}, list(messages)
    texts = [text for text in (before, first["content"], after) if text is not None]
    return [first | {"content": "\n\n".join(texts)}, *others]


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *,
    most: int | None = None,
) -> list[int]:
    """Token ids of the rendered prompt, where only the template's own control tokens become control tokens.

    Text inside ``messages`` or ``variables`` that spells one stays text: each such spelling travels through the
    template as a random word, and is put back when the template's control tokens have been marked.  Raises
    `ContextOverflow` as soon as there are more than ``most`` ids, for very long messages before they are rendered.
    """
    if most is not None:
        _check_length(messages, tokenizer, most)
    word = os.urandom(12).hex()
    found: list[str] = []

    def hide(match: re.Match[str]) -> str:
        found.append(match[0])
        return f"{word}x{len(found) - 1}x"

    try:
        messages, variables = _replaced([list(messages), variables or {}], lambda text: tokenizer.spelled.sub(hide, text))
    except RecursionError:
        raise UsageError("the messages are nested too deeply", param="messages") from None
    text = template.render(messages, variables)
    if not found:
        return tokenizer.encode(text, parse_special=True, most=most)
    shown_again = re.sub(rf"{word}x(\d+)x", lambda match: found[int(match[1])], tokenizer.marked(text))
    return tokenizer.encode(shown_again, most=most)


def _check_length(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, most: int) -> None:
    contents = [message.get("content") for message in messages]
    texts = [content for content in contents if isinstance(content, str)]
    if sum(map(len, texts)) <= MAX_UNCOUNTED:
        return
    found = 0
    for text in texts:
        found += tokenizer.count(text, most - found)
        if found > most:
            raise ContextOverflow(found, most, at_least=True)


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` (plain JSON data) with ``change`` applied to every string in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_replaced(key, change): _replaced(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(item, change) for item in value]
    return value


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_config(path) if path.exists() else {}


def _named_tokens(folder: Path) -> dict[str, str]:
    tokens = {}
    for name, value in _tokenizer_config(folder).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens
