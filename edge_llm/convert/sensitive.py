"""`sensitive_layers.json`: the linears of the layers that are not to have 4 bits, in a file that a person can edit.

    {"layers.0.o": "int8", "layers.3.down": "float16"}

`edge-llm show MODEL --sensitive` writes what a model has; `edge-llm import SOURCE --weights w4 --sensitive FILE` gives a model
the same.  Linears that the file does not name get 4 bits, or what ``--weights auto`` finds for them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from edge_llm.config import W4
from edge_llm.errors import StorageError, UsageError
from edge_llm.files import shown
from edge_llm.models.layer import Decoder
from edge_llm.schemes import schemes
from edge_llm.strict_json import read_object

FILE = "sensitive_layers.json"
MAX_BYTES = 4 << 20


def sensitive(decoder: Decoder) -> dict[str, str]:
    """The scheme of every linear of the layers that is not in 4 bits, by its name."""
    return {name: one.scheme for name, one in decoder.linears().items() if name != "output" and one.scheme != W4}


def write_sensitive(path: Path, found: Mapping[str, str]) -> None:
    """Write the file, which must not be there yet: somebody may have edited it."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(found, indent=2) + "\n")
    except FileExistsError:
        message = f"`{shown(path)}` is there already; remove it, or name another file: --sensitive FILE"
        raise UsageError(message, param="sensitive") from None
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            path.unlink(missing_ok=True)
        raise StorageError(f"cannot write `{shown(path)}`: {getattr(error, 'strerror', None) or error}") from None


def read_sensitive(path: Path) -> dict[str, str]:
    """The schemes that the file asks for, by the linears' names.  Raises `UsageError` for an unknown scheme."""
    found = read_object(path, error=UsageError, max_bytes=MAX_BYTES)
    known = [name for name in schemes() if name != W4]
    for name, scheme in found.items():
        if scheme not in known:
            raise UsageError(
                f"`{shown(path)}`: `{shown(name)}` cannot be `{shown(scheme)}`; a linear there is one of {', '.join(known)}, "
                "and one that is not there gets 4 bits",
                param="sensitive",
            )
    return found


def check_names(found: Mapping[str, str], decoder: Decoder) -> None:
    """Raise `UsageError` for a name that no linear of the layers of ``decoder`` has."""
    known = decoder.linears().keys() - {"output"}
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        of_layer = ", ".join(linear.name for linear in decoder.layers[0].linears)
        raise UsageError(
            f"--sensitive: the model has no linear `{shown(unknown)}`; they are called layers.N.NAME with N from 0 to "
            f"{len(decoder.layers) - 1} and NAME one of {of_layer}; --head is for the output matrix",
            param="sensitive",
        )
