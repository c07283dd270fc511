"""Messages become a prompt: a model's chat template, found beside its tokenizer, rendered and encoded.

The template is a Jinja program that came with the model; `edge_llm.text.rendering` runs it.

    template = ChatTemplate.from_folder(folder, tokenizer)
    ids = encode_chat(template, tokenizer, [{"role": "user", "content": "Hi"}])
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_llm.errors import ContextOverflow, InvalidTokenizer, UsageError
from edge_llm.files import shown
from edge_llm.strict_json import is_unicode
from edge_llm.text.reasoning import CLOSE, OPEN, Thinking
from edge_llm.text.rendering import TemplateProcess
from edge_llm.text.shape import TemplateShape, shape_of
from edge_llm.text.template_files import DEFAULT_TEMPLATE, MAX_TEMPLATE_BYTES, Templates, read_templates
from edge_llm.text.tokenizer import Tokenizer

MAX_UNCOUNTED = 1 << 20
"""Characters of messages that are rendered before anyone knows whether they fit into the context."""
MAX_OUTPUT = 16 << 20
"""Characters of one prompt."""

_RESERVED = {
    "messages",
    "range", "raise_exception", "strftime_now", "dict", "namespace", "joiner", "cycler",
    "begun", "max_output", "most", "params", "self", "template", "tokenizer",
}  # fmt: skip
"""Variables that nobody sets: the conversation, what every template finds there, and words for the work around it."""


class ChatTemplate:
    """A model's template, compiled when it is first rendered.  Raises `InvalidTokenizer` when it is too large.

    ``specials`` are the variables that templates use for control tokens: bos_token, eos_token and the like.  ``tool_use`` is
    the template that is taken in its place where tools are given.
    """

    def __init__(
        self,
        source: str,
        *,
        specials: Mapping[str, str] | None = None,
        is_default: bool = False,
        tool_use: str | None = None,
        process: TemplateProcess | None = None,
        usual: Callable[[], Mapping[str, Any]] = dict,
        closes_thought: bool = False,
    ) -> None:
        self.source = source
        self.is_default = is_default
        """No template came with the model; faces say so once."""
        self._tool_use = tool_use
        self._usual = usual
        self._closes_thought = closes_thought
        self._specials = {"bos_token": "", "eos_token": ""} | dict(specials or {})
        for one in (source, tool_use or ""):
            if len(one.encode("utf-8", "replace")) > MAX_TEMPLATE_BYTES:
                raise InvalidTokenizer(f"the chat template has {len(one)} characters; at most {MAX_TEMPLATE_BYTES}")
        self._process = process or TemplateProcess(source)
        self._with_tools = self._process if tool_use is None else TemplateProcess(tool_use)
        self._probing = threading.Lock()
        self._shape: TemplateShape | None = None

    @classmethod
    def default(cls, bos: str = "", tool_use: str | None = None, process: TemplateProcess | None = None) -> ChatTemplate:
        """The template for a model that brings none: "role: content" lines."""
        return cls(DEFAULT_TEMPLATE, specials={"bos_token": bos}, is_default=True, tool_use=tool_use, process=process)

    @classmethod
    def from_folder(
        cls, folder: Path, tokenizer: Tokenizer | None = None
    ) -> ChatTemplate:
        """The template of the model in ``folder`` (a Hugging Face folder or a bundle), or the default one.

        Without its ``tokenizer`` control tokens that no config names are left out.
        """
        return cls.of(read_templates(folder), tokenizer)

    @classmethod
    def of(
        cls, found: Templates, tokenizer: Tokenizer | None = None, process: TemplateProcess | None = None
    ) -> ChatTemplate:
        """The template that was ``found`` beside ``tokenizer``, rendered by ``process`` if there is one already."""
        bos, eos = ("", "") if tokenizer is None else (tokenizer.bos_text, tokenizer.eos_text)
        if found.usual is None:
            return cls.default(bos if tokenizer is not None and tokenizer.add_bos else "", found.tool_use, process)
        specials = {"bos_token": bos, "eos_token": eos} | found.named_tokens
        return cls(found.usual, specials=specials, tool_use=found.tool_use, process=process)

    def changed(
        self, source: str | None, specials: Mapping[str, str], usual: Callable[[], Mapping[str, Any]], closes_thought: bool
    ) -> ChatTemplate:
        """The same with another ``source``, other ``specials``, and ``usual`` variables, told where a request says nothing.

        With ``closes_thought`` a thought that the prompt opens is closed there, so that the answer has none.
        """
        own = source is None
        return ChatTemplate(
            self.source if source is None else source,
            specials={**self._specials, **specials},
            is_default=own and self.is_default,
            tool_use=self._tool_use if own else None,
            process=self._process if own else None,
            usual=usual,
            closes_thought=closes_thought,
        )

    @property
    def shape(self) -> TemplateShape:
        """What it takes and shows; found out when it is first asked for, and known to all threads then."""
        with self._probing:
            if self._shape is None:
                self._shape = shape_of(self.render)
            return self._shape

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
        usual = {"tools": None, "documents": None, "add_generation_prompt": True} | dict(self._usual())
        process = self._with_tools if given.get("tools") else self._process
        text = process.render(usual | self._specials | given | {"messages": list(messages)}, max_output)
        if not text:
            raise InvalidTokenizer("the model's chat template made an empty prompt of these messages")
        if not is_unicode(text):
            raise UsageError("the prompt holds half of a surrogate pair; send valid Unicode", param="messages")
        return text + CLOSE if self._closes_thought and text.rstrip().endswith(OPEN) else text

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


def with_system(
    messages: Sequence[dict[str, Any]], *, before: str | None = None, after: str | None = None
) -> list[dict[str, Any]]:
    """``messages`` with one message of the system first, as templates take it: ``before``, what it says there, ``after``."""
    first, *others = messages
    if first["role"] != "system":
        first, others = {"role": "system", "content": None}, list(messages)
    texts = [text for text in (before, first["content"], after) if text is not None]
    return [first | {"content": "\n\n".join(texts)}, *others]


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the model reads it."""

    tokens: list[int]
    thinking: Thinking
    """Where its answer begins."""


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *,
    most: int | None = None,
) -> list[int]:
    """The token ids alone of `chat_prompt`."""
    return chat_prompt(template, tokenizer, messages, variables, most=most).tokens


def chat_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *,
    begun: bool = False,
    most: int | None = None,
) -> ChatPrompt:
    """The rendered prompt, where only the template's own control tokens become control tokens.

    With ``begun`` the last message is the beginning of the answer, and the prompt ends with its text.  Text inside
    ``messages`` or ``variables`` that spells a control token stays text: each such spelling travels through the
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
    if begun:
        messages = [*messages[:-1], _with_thought(messages[-1], word, found)]
    text, thinking = prompt_text(template, messages, variables, begun=begun)
    if not found:
        return ChatPrompt(tokenizer.encode(text, parse_special=True, most=most), thinking)
    shown_again = re.sub(rf"{word}x(\d+)x", lambda match: found[int(match[1])], tokenizer.marked(text))
    return ChatPrompt(tokenizer.encode(shown_again, most=most), thinking)


def _with_thought(message: Mapping[str, Any], word: str, found: Sequence[str]) -> Mapping[str, Any]:
    """``message``, the beginning of an answer, with the tags of the thought that it begins with."""

    def tag(match: re.Match[str]) -> str:
        return found[int(match[1])] if found[int(match[1])] in (OPEN, CLOSE) else match[0]

    content = re.sub(rf"{word}x(\d+)x", tag, str(message.get("content") or ""))
    return {**message, "content": content} if content.lstrip().startswith(OPEN) else message


def prompt_text(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *,
    begun: bool = False,
) -> tuple[str, Thinking]:
    """The prompt's text, and where the answer behind it begins.  With ``begun`` it ends with that of the last message.

    Raises what `ChatTemplate.render` raises.
    """
    given = dict(variables or {})
    if begun and (beginning := str(messages[-1].get("content") or "")):
        return _going_on(template, messages, given, beginning)
    messages = messages[:-1] if begun else messages
    text = template.render(messages, given)
    return text, Thinking.behind(_behind_last(template, messages, given, text))


def _going_on(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], given: dict[str, Any], begun: str
) -> tuple[str, Thinking]:
    """The prompt up to the end of the text ``begun`` of its last message, as transformers cuts it.

    Where the template does not show it there, and where it is a thought, it stands behind what opens an answer.
    """
    word = os.urandom(12).hex()
    if not begun.lstrip().startswith(OPEN):
        whole = [*messages[:-1], {**messages[-1], "content": begun + word}]
        try:
            before, found, _ = template.render(whole, given | {"add_generation_prompt": False}).rpartition(word)
        except (UsageError, InvalidTokenizer):
            before, found = "", ""
        if found and before.endswith(begun.lstrip()):
            return before, Thinking.FREE.after(begun)
    text = template.render(messages[:-1], given)
    thinking = Thinking.behind(_behind_last(template, messages[:-1], given, text))
    if thinking is not Thinking.OPEN:
        return text + begun, thinking.after(begun)
    if begun.lstrip().startswith(OPEN):
        return text[: text.rfind(OPEN)] + begun.lstrip(), Thinking.FREE.after(begun)
    begun = begun if CLOSE in begun else f"\n{CLOSE}\n\n{begun}"
    return text + begun, thinking.after(begun)


def _behind_last(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], given: dict[str, Any], text: str
) -> str:
    """What the template puts behind the last of ``messages`` in the prompt ``text``: it alone opens a thought.

    Found by rendering again with a word in the last message; empty where no thought can be there.
    """
    if OPEN not in text and CLOSE not in text:
        return ""
    word = os.urandom(12).hex()
    said = str((messages[-1].get("content") if messages else "") or "")
    for content in (said + word, word, word + said):
        try:
            again = template.render([*messages[:-1], {**messages[-1], "content": content}] if messages else [], given)
        except (UsageError, InvalidTokenizer):
            continue
        _, found, behind = again.rpartition(word)
        if content is not word and content.startswith(word):
            behind = behind.removeprefix(said) if behind.startswith(said) else behind.removeprefix(said.strip())
        if found and text.endswith(behind):
            return behind
    try:
        without = template.render(messages, given | {"add_generation_prompt": False})
    except (UsageError, InvalidTokenizer):
        return ""
    return text.removeprefix(without) if text.startswith(without) else ""


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
