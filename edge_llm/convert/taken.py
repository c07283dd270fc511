"""Linears that a source has in INT8 already: their integers and scales go into the bundle as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from edge_llm.config import FLOAT16, STATIC
from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.layout import pack_tiles
from edge_llm.models.layer import Decoder
from edge_llm.models.weights import arranged
from edge_llm.operations.base import FloatLinear, HeadTurns
from edge_llm.operations.linear import SourceRows
from edge_llm.quant.channels import NO_CHANNELS, ChannelStatistics
from edge_llm.quant.profile import output_error, turned_treatments
from edge_llm.quant.scheme import LIMIT
from edge_llm.quant.shadow import NONE, Treatment
from edge_llm.schemes import int8
from edge_llm.sources.base import IntegerModule, QuantizedSource, Source, StaticModule


@dataclass(frozen=True)
class _Rows:
    """Rows of a linear that are a module of the source, or some of it."""

    weight: np.ndarray
    """int8 [N, K]."""
    weight_scale: np.ndarray
    bias: np.ndarray
    float_bias: np.ndarray
    """float32 [N], as of `StaticModule` and `IntegerModule`."""
    input_offset: int

    @classmethod
    def of(cls, module: StaticModule | IntegerModule, part: SourceRows) -> _Rows:
        """The rows of ``part`` in ``module``; a factor is of their scales."""
        factor = np.float32(part.factor)
        scale, bias, float_bias = (
            arranged(one, part) * factor for one in (module.weight_scale, module.bias, module.float_bias)
        )
        return cls(arranged(module.weight, part), scale, bias, float_bias, module.input_offset)


_ROWS_MAY_COST = 2.0
"""Scales of rows are used, which cost less time, up to so many times the error of a static one whose overflow is kept."""


class Taken:
    """What ``source`` has of the linears of ``decoder``, by their names in a bundle.

    Raises `UnsupportedModel` for a linear whose modules differ in kind, input scale or offset.
    """

    def __init__(self, source: QuantizedSource, decoder: Decoder) -> None:
        self._source = source
        prefixes = {f"layers.{index}": layer.prefix for index, layer in enumerate(decoder.layers)}
        self._modules = {
            name: [prefixes.get(_layer_of(name), "") + part.source for part in linear.sources]
            for name, linear in decoder.linears().items()
        }
        self._linears = decoder.linears()
        self._clamped: dict[str, int] = {}
        self._names = frozenset(name for name in self._modules if self._is_static(name))

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    @property
    def floats(self) -> dict[str, str]:
        """The scheme of the linears of layers that the source leaves in float."""
        return {name: FLOAT16 for name in self._modules if name not in self and name != "output"}

    def told(self) -> Iterator[str]:
        """What became of the source, a line at a time."""
        rows = all(self._input_scale(name) is None for name in self._names)
        what = "weights" if rows else "weights and static scales"
        yield f"{len(self)} linears are INT8 in the source: their {what} are taken over as they are"
        if self.floats:
            yield f"{len(self.floats)} linears that the source left in float are kept in float16"
        if "output" not in self:
            yield "the output matrix, which is float in the source, and the embedding are INT8 here"
        if self._clamped:
            yield f"{sum(self._clamped.values())} weights of -128 became -127, the least that products hold here"

    def turned(self, plain: Decoder, turned: Decoder) -> Decoder:
        """``plain`` with those turns of ``turned`` that are not in the weights of layers."""
        turns = {} if "output" in self else {"output": turned.output.turn}
        return plain.with_turns(turns, HeadTurns(turned.head_turns.keys))

    def treatments(self, seen: ChannelStatistics, weight: np.ndarray) -> tuple[Treatment, ...]:
        """How the source quantized the linear whose input is ``seen``, and its error beside ``weight``, the float form.

        Where no static scale is told, rows have scales of their own, or one is found that loses what overflows, and one that
        keeps it: channels that stand out spoil the scale of a row, and overflow a static one.
        """
        input_scale = self._input_scale(seen.name)
        if input_scale is None:
            found = turned_treatments(seen, weight)
            error = self._error(seen, weight, found[0])
            if error > _ROWS_MAY_COST * found[-1].error:
                return tuple(replace(one, activations=STATIC, error_of_rows=0.0) for one in found)
            return tuple(replace(one, error_of_rows=error) for one in found)
        static = Treatment(
            shadow=NONE,
            hot=NO_CHANNELS,
            input_scale=input_scale,
            input_offset=self._parts(seen.name)[0].input_offset,
            error=0.0,
            cost=0.0,
            largest_cold=float(seen.peaks().max(initial=0.0)),
        )
        return (replace(static, error=self._error(seen, weight, static)),)

    def _error(self, seen: ChannelStatistics, weight: np.ndarray, treatment: Treatment) -> float:
        """The error of the output of the linear as its bundle multiplies."""
        linear = replace(self._linears[seen.name], bias=False, turn=0)
        arrays = self.arrays(seen.name)
        at_zero = self.bias(seen.name) - self.float_bias(seen.name)  # takes the offset out again
        opened = int8.open(replace(linear, bias=True), {**arrays, "bias": at_zero}, int8.facts_of(treatment))
        return output_error(seen, weight, lambda rows: opened.apply(rows, ThreadPool(1)))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The tensors of the linear ``name`` in a bundle, but for its bias.

        Weights of -128 become -127, which is the least that products here hold.
        """
        parts = self._parts(name)
        weight = np.concatenate([part.weight for part in parts])
        if lowest := int((weight < -LIMIT).sum()):
            self._clamped[name] = lowest
            weight = np.maximum(weight, np.int8(-LIMIT))
        return {
            "tiles": pack_tiles(weight),
            "scale": np.concatenate([part.weight_scale for part in parts]),
            "row_sum": weight.sum(axis=1, dtype=np.int32),
            "hot_index": NO_CHANNELS,
            "hot_weight": np.empty((0, len(weight)), np.float16),
        }

    def ready(self, name: str, linear: FloatLinear) -> FloatLinear:
        """``linear`` with the bias that its bundle has."""
        return linear if name not in self or linear.bias is None else FloatLinear(linear.weight, self.bias(name))

    def bias(self, name: str) -> np.ndarray:
        """What is added to products of rows with the offset: float32 [N]."""
        return np.concatenate([part.bias for part in self._parts(name)])

    def float_bias(self, name: str) -> np.ndarray:
        """The bias of the float linear: float32 [N]."""
        return np.concatenate([part.float_bias for part in self._parts(name)])

    def _input_scale(self, name: str) -> float | None:
        found = self._source.static_scale(self._modules[name][0])
        return None if found is None else found[0]

    def _is_static(self, name: str) -> bool:
        found = [self._source.static_scale(module) for module in self._modules[name]]
        if all(one is None for one in found):
            return False
        for module, one in zip(self._modules[name], found, strict=True):
            if one is None:
                raise UnsupportedModel(f"`{shown(module)}` is in float, others of `{name}` in INT8; one product serves all")
            if one != found[0]:
                raise UnsupportedModel(
                    f"`{shown(module)}` has the input scale and offset `{one}`, `{shown(self._modules[name][0])}` has "
                    f"`{found[0]}`; one multiplication serves both here, so they must be alike"
                )
        return True

    def _parts(self, name: str) -> list[_Rows]:
        read = {module: self._source.static(module) for module in dict.fromkeys(self._modules[name])}
        found = [read[module] for module in self._modules[name]]
        parts = zip(found, self._linears[name].sources, strict=True)
        return [_Rows.of(module, part) for module, part in parts if module is not None]


def _layer_of(name: str) -> str:
    """The layer in which the linear ``name`` is, as a bundle calls it."""
    return ".".join(name.split(".")[:2])


def taken_from(source: Source, decoder: Decoder) -> Taken | None:
    """What ``source`` has quantized; None where it is all in float.  Raises as `Taken`."""
    found = Taken(source, decoder) if isinstance(source, QuantizedSource) else None
    return found or None
