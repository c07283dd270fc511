"""What adapter_config.json says of a LoRA, as PEFT writes it: checked, with the scale and the modules that it names.

Patterns of an adapter are regular expressions of strangers: those that could take long are not run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown

MAX_RANK = 4096
_MAX_ALPHA = 1e6
_MAX_PATTERNS = 65_536
_MAX_PATTERN = 200
_MAX_CHOICES = 3
"""Repeats and groups of a pattern that is run: the time grows by the length of a name to this power."""
_MAX_LAYERS = 4096

_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin that change the model's own weights too, which an adapter as it was trained does not hold."""
_PLAIN_STARTS = ("gaussian", "eva", "orthogonal")
_REFUSED = {
    "layer_replication": "has layers more than once",
    "target_parameters": "changes parameters that are no modules (fused experts)",
    "trainable_token_indices": "trains single rows of the embedding",
    "alora_invocation_tokens": "begins to work at certain tokens only (aLoRA)",
    "lora_bias": "has biases in its own matrices",
    "arrow_config": "chooses among several adapters",
    "kasa_config": "is a KaSA",
    "monteclora_config": "is a MonteCLoRA",
    "velora_config": "is a VeLoRA",
}
"""Settings that change what the matrices mean."""
_KNOWN_USES = ("use_rslora", "use_dora")
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_CHOICE = re.compile(r"[*+{(]|(?<!\()\?")
_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")


@dataclass(frozen=True)
class PeftSettings:
    """An adapter_config.json that can be merged."""

    rank: int
    alpha: float
    rslora: bool
    dora: bool
    ties: bool
    """Whether a tied output matrix was trained as the embedding."""
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    """By patterns of modules, beside those of all others."""
    targets: str | tuple[str, ...]
    """Ends of modules' names, or a pattern, or all-linear."""
    excluded: str | tuple[str, ...]
    saved: tuple[str, ...]
    """Modules of which the adapter has whole copies."""
    layers: tuple[int, ...]
    """The only layers that it changes; () for all."""
    base: str
    """The model that it was made for, as its maker called it."""

    def rank_of(self, module: str) -> int:
        found: int = _by_pattern(self.ranks, module, self.rank)
        return found

    def scale_of(self, module: str) -> float:
        """What the product of the matrices is multiplied by."""
        rank, alpha = self.rank_of(module), _by_pattern(self.alphas, module, self.alpha)
        return float(alpha) / (math.sqrt(rank) if self.rslora else rank)

    def names(self, module: str, *, output: str) -> bool | None:
        """Whether the ``module`` is to have matrices; None where only a pattern says so that is not run."""
        if _in(self.excluded, module) or any(module == one or f".{module}.".find(f".{one}.") >= 0 for one in self.saved):
            return False
        if self.targets == "all-linear":
            return module != output
        if isinstance(self.targets, str):
            return None if (run := _matcher(self.targets)) is None else run(module)
        return _in(self.targets, module) and self._has_layer(module)

    def _has_layer(self, module: str) -> bool:
        if not self.layers:
            return True
        found = _LAYER.match(module)
        return found is not None and int(found[1]) in self.layers


def peft_settings(raw: Mapping[str, Any], where: str) -> PeftSettings:
    """The settings in ``raw``; messages call the adapter ``where``.

    Raises `InvalidModel` for what makes no sense, `UnsupportedModel` for what is no plain LoRA or DoRA.
    """
    _refuse(raw, where)
    rank = _whole(raw.get("r"), "r", 1, MAX_RANK, where)
    return PeftSettings(
        rank,
        _alpha(raw.get("lora_alpha"), "lora_alpha", where),
        _flag(raw, "use_rslora", where),
        _flag(raw, "use_dora", where),
        _flag(raw, "ensure_weight_tying", where),
        {key: _whole(value, "rank_pattern", 1, MAX_RANK, where) for key, value in _patterns(raw, "rank_pattern", where)},
        {key: _alpha(value, "alpha_pattern", where) for key, value in _patterns(raw, "alpha_pattern", where)},
        _modules(raw, "target_modules", where),
        _modules(raw, "exclude_modules", where),
        _listed(raw, "modules_to_save", where),
        _layers(raw.get("layers_to_transform"), where),
        base if isinstance(base := raw.get("base_model_name_or_path"), str) else "",
    )


def _refuse(raw: Mapping[str, Any], where: str) -> None:
    """Raise `UnsupportedModel` for an adapter of another kind, and for what one of this kind may do beside."""
    kind = raw.get("peft_type")
    if kind != "LORA":
        said = "of no kind: its adapter_config.json has no `peft_type`" if kind is None else f"of the kind `{shown(kind)}`"
        raise UnsupportedModel(f"{where} is {said}; LORA can be merged here: merge it with peft, and import the result")
    uses = [key for key, value in raw.items() if key.startswith("use_") and value and key not in _KNOWN_USES]
    for key in (*_REFUSED, *uses):
        if raw.get(key):
            what = _REFUSED.get(key, f"has `{shown(key)}`")
            raise UnsupportedModel(f"{where} {what}, which is not merged here: merge it with peft, and import the result")
    start = raw.get("init_lora_weights", True)
    begins = start.lower() if isinstance(start, str) else ""
    if begins.startswith(_CHANGES_BASE):
        raise UnsupportedModel(
            f"{where} was begun as `{shown(start)}`, which changes the model's own weights: save it as a plain LoRA "
            "(peft's `path_initial_model_for_weight_conversion`), or merge it with peft and import the result"
        )
    if begins and begins not in _PLAIN_STARTS:
        raise UnsupportedModel(
            f"{where}: `init_lora_weights` is `{shown(start)}`, which is not known here: merge it with peft, and import the "
            "result"
        )


def _whole(value: Any, name: str, low: int, high: int, where: str) -> int:
    if type(value) is not int or not low <= value <= high:
        wanted = f"a whole number from {low} to {high}"
        raise InvalidModel(f"{where}: `{name}` must be {wanted}, not `{shown(value)}`; save it again")
    return value


def _flag(raw: Mapping[str, Any], name: str, where: str) -> bool:
    found = raw.get(name)
    if found is not None and not isinstance(found, bool):
        raise InvalidModel(f"{where}: `{name}` must be true or false, not `{shown(found)}`; save it again")
    return found is True


def _alpha(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_ALPHA:
        raise InvalidModel(
            f"{where}: `{name}` must be a number above 0, at most {_MAX_ALPHA:g}, not `{shown(value)}`; save it again"
        )
    return float(value)


def _patterns(raw: Mapping[str, Any], name: str, where: str) -> Iterable[tuple[str, Any]]:
    found = raw.get(name) or {}
    if not isinstance(found, dict) or len(found) > _MAX_PATTERNS:
        raise InvalidModel(f"{where}: `{name}` must map at most {_MAX_PATTERNS} modules to numbers; save it again")
    for key in found:
        if not _is_plain(key) and _matcher(key) is None:
            raise UnsupportedModel(
                f"{where}: the pattern `{shown(key)}` of `{name}` is not run here: write the modules' names in its place"
            )
    return found.items()


def _modules(raw: Mapping[str, Any], name: str, where: str) -> str | tuple[str, ...]:
    found = raw.get(name)
    if isinstance(found, str) and found:
        return found if found.lower() != "all-linear" else "all-linear"
    return _listed(raw, name, where)


def _listed(raw: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    found = raw.get(name) or []
    if not isinstance(found, list) or len(found) > _MAX_PATTERNS or not all(isinstance(one, str) and one for one in found):
        raise InvalidModel(f"{where}: `{name}` must be a list of modules' names, not `{shown(found)}`; save it again")
    return tuple(found)


def _layers(value: Any, where: str) -> tuple[int, ...]:
    found = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(_whole(one, "layers_to_transform", 0, _MAX_LAYERS, where) for one in found)


def _in(modules: str | tuple[str, ...], module: str) -> bool:
    """As PEFT finds modules: by the whole name or by its end; a pattern that is not run names none."""
    if isinstance(modules, str):
        run = _matcher(modules)
        return run is not None and run(module)
    return any(module == one or module.endswith(f".{one}") for one in modules)


def _by_pattern(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that is ``module`` or the end of it, behind a dot."""
    if not patterns:
        return default
    ends = {module, *(module[at + 1 :] for at, char in enumerate(module) if char == ".")}
    for key, value in patterns.items():
        if key in ends:
            return value
        run = None if _is_plain(key) else _matcher(key)
        if run is not None and any(run(module, len(module) - len(end)) for end in ends):
            return value
    return default


def _is_plain(key: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_.-]+", key) is not None


@cache
def _matcher(pattern: str) -> Callable[..., bool] | None:
    """Whether a name, from a position on, is all of ``pattern``; None for what may take long, and for what is no pattern."""
    if len(pattern) > _MAX_PATTERN or _REPEATED_GROUP.search(pattern) or len(_CHOICE.findall(pattern)) > _MAX_CHOICES:
        return None
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    return lambda name, start=0: compiled.fullmatch(name, start) is not None
