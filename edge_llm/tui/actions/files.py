"""Files that a person asks for."""

from __future__ import annotations

from pathlib import Path

from edge_llm.errors import StorageError
from edge_llm.paths import expanded


def new_file(folder: Path, name: str, text: str) -> Path:
    """The new file ``name``, below ``folder`` unless it says otherwise, with ``text``.  Raises `StorageError`."""
    path = folder / expanded(name)
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise StorageError(f"`{path}` is there already; give another name") from None
    except OSError as failure:
        raise StorageError(f"cannot write `{path}`: {failure.strerror}") from None
    return path
