"""`sensitive_layers.json`: the linears of the layers that are not to have 4 bits, in a file that a person can edit.

    {"layers.0.o": "int8", "layers.3.down": "float16", "layers.4.qkv": "w4,w4,int8"}

Of a linear that is made of several matrices, each may be in 4 or in 8 bits.

`edge-llm show MODEL --sensitive` writes what a model has; `edge-llm import SOURCE --weights w4 --sensitive FILE` gives a model
the same.  Linears that the file does not name get 4 bits, or what ``--weights auto`` finds for them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edge_llm.config import INT8, NEURONS, W4
from edge_llm.errors import StorageError, UsageError
from edge_llm.files import shown
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH
from edge_llm.models.layer import Decoder
from edge_llm.operations.linear import Linear
from edge_llm.schemes import is_in_blocks, scheme_of, schemes
from edge_llm.schemes.joint import is_multiplied_as_int8, sources_may_differ
from edge_llm.strict_json import read_object

FILE = "sensitive_layers.json"
MAX_BYTES = 4 << 20


def sensitive(decoder: Decoder) -> dict[str, str]:
    """The scheme of every linear of the layers that is not in 4 bits, by its name.

    Raises `UsageError` for a model in the blocks of a file, of whose bits nobody here chose any.
    """
    if any(is_in_blocks(one.scheme) for one in decoder.linears().values()):
        message = "the model is kept in the blocks of a GGUF file; --sensitive is for one that import gave 4 bits and 8"
        raise UsageError(message, param="sensitive")
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
    known = [name for name in schemes() if name not in (W4, NEURONS)]
    for name, scheme in found.items():
        if not isinstance(scheme, str) or (scheme not in known and (scheme == W4 or not is_multiplied_as_int8(scheme))):
            raise UsageError(
                f"`{shown(path)}`: `{shown(name)}` cannot be `{shown(scheme)}`; a linear there is one of {', '.join(known)}, "
                f"or has {W4} or {INT8} for each of its matrices, such as `{W4},{W4},{INT8}`; one not there gets 4 bits",
                param="sensitive",
            )
    return found


def check_names(found: Mapping[str, str], decoder: Decoder) -> None:
    """Raise `UsageError` for a name that no linear of the layers of ``decoder`` has."""
    linears = decoder.linears()
    known = linears.keys() - {"output"}
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        of_layer = ", ".join(linear.name for linear in decoder.layers[0].linears)
        raise UsageError(
            f"--sensitive: the model has no linear `{shown(unknown)}`; they are called layers.N.NAME with N from 0 to "
            f"{len(decoder.layers) - 1} and NAME one of {of_layer}; --head is for the output matrix",
            param="sensitive",
        )
    for name, scheme in found.items():
        try:
            scheme_of(replace(linears[name], scheme=scheme))
        except ValueError:
            message = f"--sensitive: `{shown(name)}` cannot be `{shown(scheme)}`: it {_matrices_of(linears[name])}"
            raise UsageError(message, param="sensitive") from None


def _matrices_of(linear: Linear) -> str:
    if len(linear.sources) == 1:
        return "has 1 matrix"
    if not sources_may_differ(linear):
        return (
            "has matrices that must have one scheme: to differ, all but the last need a multiple of "
            f"{TILE_CHANNELS} rows, and all one of {TILE_DEPTH} columns"
        )
    sources = ", ".join(f"{one.source} of {one.count} rows" for one in linear.sources)
    return f"has {len(linear.sources)} matrices, {sources}; where all are alike, one name says so"
