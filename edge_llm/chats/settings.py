"""What one chat has otherwise than the command line: its model, system message, sampling, thoughts, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.errors import UsageError

Part = Literal["chat", "sampling", "runtime"]


@dataclass(frozen=True)
class Setting:
    """One thing that can be set, and how a person's words become its value."""

    name: str
    part: Part
    read: Callable[[str], Any]
    help: str


def _whole(text: str) -> int:
    if not text.lstrip("+-").isdecimal() or not text.isascii():
        raise ValueError(text)
    return int(text)


def _real(text: str) -> float:
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    return float(text)


_SWITCH: Mapping[str, bool] = {"on": True, "yes": True, "off": False, "no": False}


def _switch(text: str) -> bool:
    if text not in _SWITCH:
        raise ValueError(text)
    return _SWITCH[text]


_THINKING: Mapping[str, bool | str] = {
    **_SWITCH, "low": "low", "medium": "medium", "high": "high",
}  # fmt: skip


def _thinking(text: str) -> bool | str:
    if text not in _THINKING:
        raise ValueError(text)
    return _THINKING[text]


def _on_or_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(text)
    return text == "on"


SETTINGS: tuple[Setting, ...] = (
    Setting("system", "chat", str, "what the model is told before the first message"),
    Setting("thinking", "chat", _thinking, "whether the model thinks before it answers: on, off, low, medium, high"),
    Setting("tools", "chat", _on_or_off, "whether the model is offered the tools of MCP servers: on, off"),
    Setting("temperature", "sampling", _real, "0 is greedy"),
    Setting("top_p", "sampling", _real, "keep the most likely tokens up to this mass"),
    Setting("top_k", "sampling", _whole, "keep the K most likely tokens; 0 keeps all"),
    Setting("min_p", "sampling", _real, "keep tokens at least this fraction as likely as the best"),
    Setting("repetition_penalty", "sampling", _real, "above 1 makes seen tokens less likely"),
    Setting("frequency_penalty", "sampling", _real, "taken from a token's logit for every time it was said"),
    Setting("presence_penalty", "sampling", _real, "taken once from the logit of a token that was said"),
    Setting("dry_multiplier", "sampling", _real, "what a token costs that would lengthen a repeat; 0 is off"),
    Setting("seed", "sampling", _whole, "same seed, same text"),
    Setting("max_tokens", "sampling", _whole, "stop an answer after this many tokens"),
    Setting("think_tokens", "sampling", _whole, "end a thought after this many tokens; the answer follows"),
    Setting("stop", "sampling", str, "stop an answer before this text"),
    Setting("loop_guard", "sampling", _switch, "on or off: end an answer that says the same over and over"),
    Setting("context", "runtime", _whole, "context in tokens (loads the model again)"),
    Setting("device", "runtime", str, "host, ascend, emulated:CHIP, onnx, auto (loads the model again)"),
    Setting("memory", "runtime", str, "most memory for weights: 300MiB, 50% (loads the model again)"),
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class ChatSettings:
    """What is set; all that is not stays as the command line and the model have it."""

    model: str | None = None
    system: str = ""
    thinking: bool | str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `GenerationParams`."""
    runtime: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `RuntimeConfig`."""
    tools: bool | None = None
    """Whether the model is offered tools; None: where there are any."""
    server: str = ""
    """Address of the API of the server whose model it is; empty: of this machine."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ChatSettings:
        """What `as_json` gave; what another version stored and this one does not know is left out."""
        model = stored.get("model")
        server = stored.get("server", "")
        settings = cls(
            model=model if isinstance(model, str) and model else None, server=server if isinstance(server, str) else ""
        )
        for setting in SETTINGS:
            where = stored if setting.part == "chat" else stored.get(setting.part)
            if isinstance(where, Mapping) and (value := where.get(setting.name)) is not None:
                try:
                    settings = settings._with(setting, setting.read(shown_value(value)) if setting.part == "chat" else value)
                except (UsageError, TypeError, ValueError):
                    continue
        return settings

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return asdict(self)

    def value(self, name: str) -> Any:
        """What ``name`` is set to; None when it is not set."""
        setting = BY_NAME[name]
        if setting.part == "chat":
            value = getattr(self, name)
            return None if value == "" else value
        return getattr(self, setting.part).get(name)

    def changed(self, name: str, text: str) -> ChatSettings:
        """These settings with ``name`` as ``text`` says; no text takes it back.  Raises `UsageError`."""
        setting = BY_NAME.get(name.replace("-", "_"))
        if setting is None:
            raise UsageError(f"there is no setting `{name}`; there are: {', '.join(BY_NAME)}", param=name)
        if not text.strip():
            return self._without(setting)
        try:
            return self._with(setting, setting.read(text.strip()))
        except ValueError:
            raise UsageError(f"{name} cannot be `{text.strip()[:80]}`: {setting.help}", param=name) from None

    def _with(self, setting: Setting, value: Any) -> ChatSettings:
        if setting.part == "chat":
            return self._replaced(setting.name, value)
        inside = {**getattr(self, setting.part), setting.name: value}
        (GenerationParams if setting.part == "sampling" else RuntimeConfig)(**inside)  # raises what is wrong with it
        return self._replaced(setting.part, inside)

    def _without(self, setting: Setting) -> ChatSettings:
        if setting.part == "chat":
            return self._replaced(setting.name, "" if setting.name == "system" else None)
        inside = {name: value for name, value in getattr(self, setting.part).items() if name != setting.name}
        return self._replaced(setting.part, inside)

    def _replaced(self, name: str, value: Any) -> ChatSettings:
        return replace(self, **{name: value})


def shown_value(value: Any) -> str:
    """A setting's value as a person would type it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(value) if isinstance(value, list | tuple) else str(value)
