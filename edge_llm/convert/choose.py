"""What is asked for about outliers: shadows beside INT8, and linears that are not to be INT8."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from edge_llm.config import INT8, NEURONS
from edge_llm.errors import UsageError
from edge_llm.kernels.pointwise import MAX_TURN, is_turn
from edge_llm.models.layer import Decoder

OUTLIER_MODES = ("auto", "full", "none", "naive")


@dataclass(frozen=True)
class Outliers:
    """What is done about outliers."""

    mode: str = "auto"
    """What happens to values that a static scale cuts off.  auto: they are kept exact beside INT8; where nothing is turned, hot
    channels are kept in float16 as well.  full: the same, and nothing is turned.  none: they are lost.  naive: nothing is
    turned, and the scale covers the largest value, which shows what outliers do to INT8."""
    schemes: tuple[tuple[str, str], ...] = ()
    """Linears that are not to be INT8: a pattern of names, such as ``*.down`` or ``layers.0.*``, and a weight scheme."""
    neurons: bool = False
    """Whether linears behind ReLU have the scheme `NEURONS`."""

    def __post_init__(self) -> None:
        if self.mode not in OUTLIER_MODES:
            raise UsageError(f"no shadow mode `{self.mode}`; there are: {', '.join(OUTLIER_MODES)}", param="shadow")

    def __str__(self) -> str:
        """As a manifest holds it; bundles from before there was a choice have all shadows and say `shadow`."""
        said = "shadow" if self.mode == "full" else self.mode
        neurons = [NEURONS] if self.neurons else []
        return ", ".join([said, *neurons, *(f"{scheme} {pattern}" for pattern, scheme in self.schemes)])

    def asked(self, decoder: Decoder) -> dict[str, str]:
        """The scheme of every linear that a pattern names.  Raises `UsageError` for a pattern that matches none."""
        names = [name for name in decoder.linears() if name != "output"]
        found = dict.fromkeys(_behind_relu(decoder), NEURONS) if self.neurons else {}
        for pattern, scheme in self.schemes:
            matching = {name for name in names if fnmatchcase(name, pattern)}
            if not matching:
                of_layer = ", ".join(linear.name for linear in decoder.layers[0].linears)
                raise UsageError(
                    f"`{pattern}` names no linear; they are called layers.N.NAME with N from 0 to {len(decoder.layers) - 1} "
                    f"and NAME one of {of_layer}; the output matrix is never {scheme}",
                    param=scheme,
                )
            found |= dict.fromkeys(matching, scheme)
        return found


def _behind_relu(decoder: Decoder) -> list[str]:
    """The linears that read what ReLU made zero.  Raises `UsageError` where there are none."""
    found = [
        f"layers.{index}.{linear.name}"
        for index, layer in enumerate(decoder.layers)
        for one in layer.operations
        if one.zeroes
        for linear in layer.multipliers(one)
    ]
    if not found:
        raise UsageError("--neurons is for models with ReLU in their MLPs, which this one lacks; leave it out", param="neurons")
    return found


def largest_turn(asked: int | None, outliers: Outliers) -> int:
    """The largest block of channels that is turned; 0: none.  Raises `UsageError` for a block that there cannot be."""
    unturned = outliers.mode in ("full", "naive")
    turn = (0 if unturned else MAX_TURN) if asked is None else asked
    if not is_turn(turn):
        raise UsageError(f"a turn has blocks of 2 to {MAX_TURN} channels, a power of two, or 0; got `{turn}`", param="turn")
    if turn and unturned:
        raise UsageError(f"--shadow {outliers.mode} has no meaning where channels are turned; add --turn 0", param="shadow")
    return turn


def refuse_beside(keep_float: bool, outliers: Outliers, weights: str) -> None:
    """Raise `UsageError` for what cannot be asked of a source whose weights are INT8 already."""
    if keep_float:
        raise UsageError("the source is quantized already, without float weights; leave --keep-float out", param="keep-float")
    if weights != INT8:
        raise UsageError(f"the source is quantized already, not to `{weights}`; leave --weights out", param="weights")
    if outliers.schemes:
        raise UsageError("the source is quantized already and says what is float; leave --float16 out", param="float16")
