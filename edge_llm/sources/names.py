"""What a model is called here when nobody says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.formats.gguf import is_gguf, without_part
from edge_llm.paths import expanded, safe_name
from edge_llm.sources.hub_gguf import model_name
from edge_llm.sources.place import is_there, named_place, stands_for_folder


def default_name(source: str | Path, adapters: Sequence[str] = ()) -> str:
    """The name for ``source`` when none is given: its last part, then those of its ``adapters``, as a legal bundle name."""
    names = [_last_part(one) for one in (source, *adapters)]
    return safe_name("-".join(names)[:96].strip("-._"))


def _last_part(source: str | Path) -> str:
    path = expanded(source)
    named = named_place(source) if isinstance(source, str) and not is_there(path) else None
    is_file = is_gguf(path) and is_there(path)
    cached = next((part for part in path.parts if part.startswith("models--")), None)  # a Hugging Face cache
    if named is not None:
        last = model_name(named.repository, named.gguf) if named.gguf else named.repository.rpartition("/")[2]
    elif is_file:
        last = without_part(path.name)
    elif cached:
        last = cached.split("--")[-1]
    else:
        last = (path.absolute().parent if stands_for_folder(path) else path.absolute()).name
    legal = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:96]
    if not legal:
        raise UsageError(f"`{shown(source)}` gives no usable model name; choose one with `--name`", param="name")
    return legal
