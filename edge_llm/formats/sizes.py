"""What the weights of a bundle take: their schemes, bytes and bits per weight, in all and by kind.

Bytes are those of tensors: codes or tiles, scales, row sums, hot channels, biases.  The file has some padding beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_llm.formats.bundle import Bundle
from edge_llm.models.layer import Decoder
from edge_llm.operations.linear import Linear
from edge_llm.schemes.joint import schemes_in

TABLE, VECTORS = "embedding", "norms"
"""Kinds beside those of linears: the embedding (where it is not the output matrix too), and norms with the keys' offset."""


@dataclass(frozen=True)
class Sizes:
    """Weights that are counted together."""

    weights: int
    """The model's parameters among them; biases are left out, as everywhere."""
    nbytes: int
    schemes: tuple[tuple[str, int], ...]
    """How many linears have each scheme, the one with most first."""

    @property
    def bits_per_weight(self) -> float | None:
        return bits_per_weight(self.nbytes, self.weights)

    @property
    def precision(self) -> str:
        """The schemes, such as `int8` or `w4+int8`."""
        return "+".join(dict.fromkeys(part for name, _ in self.schemes for part in schemes_in(name)))

    def to_fields(self) -> dict[str, Any]:
        """As `show --json` prints it."""
        return {
            "schemes": dict(self.schemes),
            "weights": self.weights,
            "bytes": self.nbytes,
            "bits_per_weight": self.bits_per_weight,
        }


def int8_bytes(decoder: Decoder) -> int:
    """About what a bundle of ``decoder`` in INT8 takes, before there is one."""
    return int(1.02 * decoder.parameters) + 2**20


def bits_per_weight(nbytes: int, weights: int) -> float | None:
    """Bits of memory for one of ``weights``; None for none."""
    return 8 * nbytes / weights if weights else None


def sizes(bundle: Bundle) -> Sizes:
    """Of all weights."""
    nbytes = sum(tensor.nbytes for tensor in bundle.tensors.values())
    return Sizes(bundle.decoder.parameters, nbytes, _schemes(bundle.decoder.linears().values()))


def float_sizes(bundle: Bundle) -> Sizes:
    """Of the float path, which keeps all weights in float32."""
    parameters = bundle.decoder.parameters
    return Sizes(parameters, 4 * parameters, (("float32", len(bundle.facts)),))


def sizes_by_kind(bundle: Bundle) -> dict[str, Sizes]:
    """By qkv, o, gate_up, down, output, and what else has weights; together they are `sizes`."""
    linears = bundle.decoder.linears()
    kinds: dict[str, list[Linear]] = {}
    for name, linear in linears.items():
        kinds.setdefault(name.rpartition(".")[2], []).append(linear)
    nbytes = dict.fromkeys([*kinds, TABLE, VECTORS], 0)
    for tensor in bundle.tensors.values():
        nbytes[_kind(tensor.name.rpartition(".")[0], linears, bundle.decoder.tied)] += tensor.nbytes
    weights = {kind: sum(linear.rows * linear.columns for linear in group) for kind, group in kinds.items()}
    weights[TABLE] = 0 if bundle.decoder.tied else weights["output"]
    weights[VECTORS] = bundle.decoder.parameters - sum(weights.values())
    kinds[TABLE] = [bundle.decoder.table]
    return {kind: Sizes(weights[kind], nbytes[kind], _schemes(kinds.get(kind, []))) for kind in nbytes if nbytes[kind]}


def _kind(owner: str, linears: Mapping[str, Linear], tied: bool) -> str:
    """Where a tensor of ``owner`` counts, a linear or none."""
    if owner == TABLE:
        return "output" if tied else TABLE
    return owner.rpartition(".")[2] if owner in linears else VECTORS


def _schemes(linears: Iterable[Linear]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(linear.scheme for linear in linears).most_common())
