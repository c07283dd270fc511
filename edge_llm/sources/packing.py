"""What the packings of quantized checkpoints share: settings and tensors that are checked before anything is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.limits import MAX_WEIGHT
from edge_llm.formats.model_folder import SourceFolder

FLOATS = ("F32", "F16", "BF16")
_GROUP_SIZES = range(-1, 1 << 20)
_FEW = 3
"""Sizes or shapes that a line names."""
MOST_SETTINGS = 4096
"""Groups of modules, or patterns of names, that a quantization_config may have."""
_MOST = 1 << 31
"""Columns and rows of a matrix stay below this."""


class Packing:
    """How the matrices of a checkpoint are packed, and the floats that they stand for.

    A module has its weight in `matrix`, a tensor of the checkpoint, and in others beside it.
    Methods raise `InvalidModel` for tensors that are missing or do not fit, `UnsupportedModel` for what is not read.
    """

    name = ""
    """As people call the method."""

    def __init__(self, settings: Mapping[str, Any], weights: SourceFolder) -> None:
        self.settings = settings
        self.weights = weights
        self.present = frozenset(weights.names())

    @property
    def quantization(self) -> str:
        """The method with its bits and groups, for people."""
        raise NotImplementedError

    def matrix(self, name: str) -> str | None:
        """The module whose integers the tensor ``name`` holds; None for any other tensor."""
        raise NotImplementedError

    def beside(self, module: str) -> tuple[str, ...]:
        """What the tensors of a module may be called that have no counterpart in the float model."""
        raise NotImplementedError

    def shape(self, module: str) -> tuple[int, int]:
        """Rows and columns of the module's matrix, its tensors held against each other; only headers are read."""
        raise NotImplementedError

    def read(self, module: str) -> np.ndarray:
        """The module's matrix as float32 [N, K]."""
        raise NotImplementedError

    def tensor(self, name: str, dtypes: Collection[str], shapes: Collection[tuple[int, ...]] = ()) -> tuple[int, ...]:
        """The shape of a tensor that must be there, of one of ``dtypes`` and, where they are given, ``shapes``."""
        if name not in self.present:
            raise InvalidModel(f"the model lacks the tensor `{shown(name)}`, which {self.name} needs; make it again")
        dtype, shape = self.weights.dtype(name), tuple(self.weights.shape(name))
        if dtype not in dtypes:
            raise InvalidModel(f"tensor `{shown(name)}` is {dtype}; of {self.name} {' or '.join(sorted(dtypes))} is read")
        if shapes and shape not in shapes:
            wanted = " or ".join(str(list(one)) for one in list(shapes)[:_FEW])
            raise InvalidModel(
                f"tensor `{shown(name)}` has the shape `{list(shape)}`, but quantization_config and the tensors beside it "
                f"make it {wanted}"
            )
        return shape

    def two_dimensions(self, name: str, dtypes: Collection[str]) -> tuple[int, int]:
        """The rows and columns of a matrix that must be there; none is 0."""
        shape = self.tensor(name, dtypes)
        if len(shape) != 2 or not all(0 < size < _MOST for size in shape):
            raise InvalidModel(f"tensor `{shown(name)}` has the shape `{list(shape)}`; rows and columns are needed")
        return shape[0], shape[1]

    def groups(self, name: str, count: int) -> np.ndarray | None:
        """The group of every column, of ``count``, as the tensor ``name`` [K] has it; None where they follow one another."""
        found = self.weights.read_integers(name)
        odd = (found < 0) | (found >= count)
        if odd.any():
            at = int(np.argmax(odd))
            raise InvalidModel(f"`{shown(name)}` holds `{found[at]}` at element {at}; there are the groups 0 to {count - 1}")
        columns = len(found)
        plain = columns % count == 0 and np.array_equal(found, np.arange(columns) // (columns // count))
        return None if plain else found

    def checked(self, module: str, values: np.ndarray) -> np.ndarray:
        """``values``, the module's, which must be finite and no larger than weights are."""
        if not np.maximum(-values.min(initial=0), values.max(initial=0)) <= MAX_WEIGHT:
            at = int(np.argmin(np.abs(values.reshape(-1)) <= MAX_WEIGHT))
            raise InvalidModel(
                f"`{shown(module)}.weight` comes to `{values.reshape(-1)[at]}` at element {at}; weights lie between "
                f"-{MAX_WEIGHT:g} and {MAX_WEIGHT:g}, download the model again"
            )
        return values

    def whole(self, settings: Mapping[str, Any], key: str, default: int | None, allowed: Collection[int], what: str) -> int:
        """A whole number of ``settings``; UnsupportedModel for one that is not ``allowed``."""
        value = settings.get(key, default)
        value = default if value is None else value
        if type(value) is not int:
            raise InvalidModel(f"quantization_config: `{key}` must be a whole number, not `{shown(value)}`")
        if value not in allowed:
            raise UnsupportedModel(f"quantization_config: `{key}` is `{shown(value)}`; of {self.name} {what}")
        return value

    def group_size(self, settings: Mapping[str, Any], key: str, default: int) -> int:
        """The columns of a group as ``settings`` has them; 0: a whole row."""
        return max(0, self.whole(settings, key, default, _GROUP_SIZES, "groups of 1 to 1048575 are read, -1: whole rows"))


def in_words(sizes: Collection[int]) -> str:
    """Groups of these sizes, as a person says it; 0 is a whole row."""
    grouped = sorted(size for size in sizes if size)
    several = f"{len(grouped)} sizes" if len(grouped) > _FEW else " and ".join(map(str, grouped))
    return " and ".join([*([f"groups of {several}"] if grouped else []), *(["a scale for each row"] if 0 in sizes else [])])
