"""The fields of several APIs that say what an answer must look like."""

from __future__ import annotations

from typing import Any

from edge_llm.config import Grammar
from edge_llm.server.schemas import Body
from edge_llm.talk.formats import checked_grammar, kinds, response_format
from edge_llm.text.tokenizer import Tokenizer


class Guided(Body):
    """A request that may say what the answer must look like."""

    response_format: dict[str, Any] | None = None
    grammar: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    json_schema: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None

    def answer_grammar(self, tokenizer: Tokenizer) -> Grammar | None:
        """The grammar of the answer, checked; raises `UsageError` for one that cannot be followed, or for two of them."""
        forms = {"response_format": self.response_format} | self.forms()
        found = {name: response_format(form, name) for name, form in forms.items()}
        for name, value in kinds(self.structured_outputs or {}, "structured_outputs").items():
            found[f"structured_outputs.{name}"] = value
        own = {name: getattr(self, name) for name in ("grammar", "regex", "choice", "json_schema")}
        guided = {name: getattr(self, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
        found |= kinds(own, "") | {f"guided_{name}": value for name, value in kinds(guided, "guided").items()}
        return checked_grammar({name: value for name, value in found.items() if value is not None}, tokenizer)

    def forms(self) -> dict[str, dict[str, Any] | None]:
        """What else stands for `response_format` in this API, by the field that it comes in."""
        return {}
