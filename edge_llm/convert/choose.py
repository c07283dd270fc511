"""What every linear gets: which shadow beside INT8, or float16 where INT8 is not good enough."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from edge_llm.convert.survey import Survey
from edge_llm.convert.trial import Measure
from edge_llm.errors import UsageError
from edge_llm.models.layer import Decoder
from edge_llm.quant.shadow import DEFAULT_BUDGET, Treatment, Treatments, choice, fewest_steps, upgrades

OUTLIER_MODES = ("auto", "full", "none", "naive")


@dataclass(frozen=True)
class Outliers:
    """What is done about outliers."""

    mode: str = "auto"
    """auto: the shadows that the budget asks for, and float16 where all shadows do not reach it.  full, none: all or none
    of the shadows.  naive: none, and the scale reaches over all outliers, only to see what they do to INT8."""
    budget: float = DEFAULT_BUDGET
    """Percent of perplexity that INT8 may cost, for auto."""
    schemes: tuple[tuple[str, str], ...] = ()
    """Linears that are not to be INT8: a pattern of names, such as ``*.down`` or ``layers.0.*``, and a weight scheme."""

    def __post_init__(self) -> None:
        if self.mode not in OUTLIER_MODES:
            raise UsageError(f"no shadow mode `{self.mode}`; there are: {', '.join(OUTLIER_MODES)}", param="shadow")
        if not 0 < self.budget <= 1000:
            raise UsageError(f"the shadow budget must be above 0 percent, got `{self.budget:g}`", param="shadow_budget")

    def __str__(self) -> str:
        """As a manifest holds it; bundles from before there was a choice have all shadows and say `shadow`."""
        said = {"auto": f"auto {self.budget:g} %", "full": "shadow"}.get(self.mode, self.mode)
        return ", ".join([said, *(f"{scheme} {pattern}" for pattern, scheme in self.schemes)])

    def asked(self, decoder: Decoder) -> dict[str, str]:
        """The scheme of every linear that a pattern names.  Raises `UsageError` for a pattern that matches none."""
        names = [name for name in decoder.linears() if name != "output"]
        found: dict[str, str] = {}
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


def choose(
    outliers: Outliers, asked: Collection[str], survey: Survey, measure: Measure, tell: Callable[[str], None]
) -> tuple[dict[str, Treatment], dict[str, float]]:
    """The treatment that every linear gets, and what was measured to find it; ``tell`` is told it in words.

    Linears in ``asked`` get the scheme that was asked for.
    """
    options: Treatments = survey.treatments | {name: (survey.others[name],) for name in asked}
    if outliers.mode != "auto":
        last = -1 if outliers.mode == "full" else 0
        return {name: found[last] for name, found in options.items()}, {}
    steps = upgrades(options)
    kept, loss = _fewest(options, steps, measure, "shadows", outliers.budget)
    tell(
        f"kept {kept} of {len(steps)} steps of shadow: INT8 costs {loss['kept']:.2f} % of perplexity on the calibration text "
        f"({loss['none']:.2f} % without, {loss['full']:.2f} % with all)"
    )
    figures = {"budget": outliers.budget, **loss}
    if loss["full"] <= outliers.budget:
        return choice(options, steps[:kept]), figures
    return _with_float16(options, steps, kept, survey.others, measure, tell, figures)


def _fewest(
    options: Treatments, steps: Sequence[tuple[str, Treatment]], measure: Measure, stage: str, budget: float
) -> tuple[int, dict[str, float]]:
    """How many of ``steps`` are taken, and the loss of none, these and all of them."""
    stages = iter((f"{stage} 1", f"{stage} 2"))
    found = fewest_steps(
        len(steps), lambda numbers: measure(next(stages), [choice(options, steps[:number]) for number in numbers]), budget
    )
    return found.steps, {"none": found.losses[0], "kept": found.losses[found.steps], "full": found.losses[len(steps)]}


def _with_float16(
    options: Treatments,
    steps: Sequence[tuple[str, Treatment]],
    kept: int,
    others: Mapping[str, Treatment],
    measure: Measure,
    tell: Callable[[str], None],
    figures: dict[str, float],
) -> tuple[dict[str, Treatment], dict[str, float]]:
    """All shadows and as few linears in float16 as the budget asks for; the ``kept`` shadows if even that is not enough."""
    shadows, budget = choice(options, steps), figures["budget"]
    better = {name: (shadows[name], one) for name, one in others.items() if shadows[name].scheme != one.scheme}
    alone: Treatments = {name: (treatment,) for name, treatment in shadows.items()}
    widened = upgrades(better)
    if widened:
        taken, loss = _fewest(alone, widened, measure, "float16", budget)
        if loss["full"] <= budget:
            tell(f"kept {taken} linears in float16: all shadows cost {loss['none']:.2f} %, so it is {loss['kept']:.2f} %")
            return shadows | dict(widened[:taken]), figures | {"kept": loss["kept"]}
    tell(f"not even all shadows and float16 keep it within the budget of {budget:g} %")
    return choice(options, steps[:kept]), figures
