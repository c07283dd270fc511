"""Where the adapters of ``--lora`` are: a folder or a file here, or a repository of a hub; each with its strength."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_llm.errors import ModelNotFound, UsageError
from edge_llm.files import shown
from edge_llm.formats.gguf import is_gguf
from edge_llm.paths import expanded
from edge_llm.progress import StageProgress, ignore
from edge_llm.sources.base import AdapterBase, Source
from edge_llm.sources.hub_files import ADAPTER_CONFIG
from edge_llm.sources.hubs import pull
from edge_llm.sources.lora import AdaptedSource, Adapter, adapted, check_mergeable
from edge_llm.sources.lora_gguf import open_gguf_adapter
from edge_llm.sources.lora_peft import open_peft
from edge_llm.sources.place import is_there, named_place

MAX_STRENGTH = 100.0
_STRENGTH = re.compile(r"(.+):([+-]?(?:\d+(?:\.\d*)?|\.\d+))", re.DOTALL)


@dataclass(frozen=True)
class Wish:
    """An adapter as ``--lora`` names it, and what it is multiplied by."""

    source: str
    strength: float = 1.0

    def __str__(self) -> str:
        return self.source if self.strength == 1.0 else f"{self.source}:{self.strength:.9g}"


def wish(text: str) -> Wish:
    """``FOLDER``, ``FILE.gguf`` or a hub id, also with ``:STRENGTH``.  Raises `UsageError`."""
    if not text.strip():
        raise UsageError("--lora is empty; give the folder of an adapter", param="lora")
    found = _STRENGTH.fullmatch(text)
    if found is None or is_there(expanded(text)):
        return Wish(text)
    strength = float(found[2])
    if strength == 0 or not math.isfinite(strength) or abs(strength) > MAX_STRENGTH:
        raise UsageError(
            f"`{shown(text)}`: the strength of an adapter is a number up to {MAX_STRENGTH:g} that is not 0; 1 is its own",
            param="lora",
        )
    return Wish(found[1], strength)


def with_adapters(
    source: Source, wishes: Sequence[Wish], progress: StageProgress = ignore, notice: Callable[[str], None] = ignore
) -> AdaptedSource:
    """``source`` with the adapters of ``wishes`` merged; it is closed where that fails.

    Raises `ModelNotFound`, `UsageError`, `InvalidModel`, `UnsupportedModel`, `HubError` or `StorageError`.
    """
    opened: list[tuple[Adapter, float]] = []
    try:
        check_mergeable(source)
        for one in wishes:
            opened.append((open_adapter(one.source, source, progress, notice), one.strength))
            for line in opened[-1][0].told:
                notice(line)
        return adapted(source, opened)
    except BaseException:
        for adapter, _ in opened:
            adapter.close()
        source.close()
        raise


def made_with(source: Source, *, travels: bool) -> dict[str, str]:
    """What a bundle remembers of the adapters of ``source``; of one that ``travels`` no path of this machine."""
    if not isinstance(source, AdaptedSource):
        return {}
    named = [
        Wish(Path(one.named).name if travels and Path(one.named).is_absolute() else one.named, strength)
        for one, strength in source.adapters
    ]
    places = [str(Wish(one.place, strength)) for one, strength in source.adapters]
    return {"lora": ", ".join(map(str, named))} | ({} if travels else {"lora_places": json.dumps(places)})


def wishes_of(made_from: Mapping[str, Any]) -> tuple[Wish, ...]:
    """The adapters that go with the float weights to which a bundle's ``made_from`` points."""
    try:
        found = json.loads(made_from.get("lora_places") or "[]")
    except ValueError:
        return ()
    return tuple(wish(one) for one in found if isinstance(one, str) and one) if isinstance(found, list) else ()


def open_adapter(source: str, model: AdapterBase, progress: StageProgress, notice: Callable[[str], None]) -> Adapter:
    """The adapter at ``source``, a path or a hub id, checked against ``model``; see `with_adapters`."""
    path = expanded(source)
    if not is_there(path):
        return _open_from_hub(source, model, progress, notice)
    path = path.absolute()
    if path.suffix == ".safetensors" or path.name == ADAPTER_CONFIG:
        path = path.parent
    if path.is_dir():
        return open_peft(str(path), path, model)
    if is_gguf(path):
        return open_gguf_adapter(str(path), path, model)
    raise UsageError(f"`{shown(source)}` is no adapter; give the folder that holds {ADAPTER_CONFIG}", param="lora")


def _open_from_hub(source: str, model: AdapterBase, progress: StageProgress, notice: Callable[[str], None]) -> Adapter:
    place = None if is_gguf(expanded(source)) else named_place(source)
    if place is None:
        raise ModelNotFound(f"no adapter `{shown(source)}`; give the folder that PEFT saved, a GGUF adapter, or a hub id")
    notice(f"the adapter `{place}` comes from the hub")
    path = pull(place, None, progress, notice, adapter=True)
    commit = path.parts[path.parts.index("snapshots") + 1]
    named = f"{place}@{commit}"
    return open_gguf_adapter(named, path, model) if is_gguf(path) else open_peft(named, path, model)
