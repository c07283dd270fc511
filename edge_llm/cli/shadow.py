"""What import found out about a model: its folds and its outliers, for `edge-llm show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from edge_llm.formats.bundle import Bundle
from edge_llm.quant.profile import OutlierProfile
from edge_llm.quant.quality import Closeness, Quality
from edge_llm.quant.report import LinearShadow, by_kind, fold_totals, totals


def shadow_report(bundle: Bundle) -> dict[str, Any]:
    """What stands out, what is kept of it and what that costs: in all, by kind of linear, and of every linear.

    Empty where no linear has a static scale that could cut anything off.
    """
    if not any("input_scale" in facts for facts in bundle.facts.values()):
        return {}
    profile = outlier_profile(bundle)
    linears = _linears(bundle, profile)
    return {
        **totals(linears),
        "choice": {} if profile is None else dict(profile.choice),
        "by_kind": {kind: totals(group) for kind, group in by_kind(linears).items()},
        "by_linear": {linear.name: linear.to_fields() for linear in linears},
    }


def outlier_profile(bundle: Bundle) -> OutlierProfile | None:
    """What calibration found; None where there was none (random weights)."""
    fields = bundle.manifest["profile"]
    try:
        return OutlierProfile.from_fields(fields)
    except (KeyError, TypeError):
        return None


def _linears(bundle: Bundle, profile: OutlierProfile | None) -> list[LinearShadow]:
    tied = bundle.config.tied_embeddings
    found = []
    for name, shape in bundle.decoder.linears().items():
        place = "embedding" if tied and name == "output" else name
        index = bundle.tensors.get(f"{place}.hot_index")
        hot = 0 if index is None else index.shape[0]
        seen = None if profile is None else profile.linears.get(name)
        found.append(LinearShadow(name, shape.rows, shape.columns, bundle.shadows[name], hot, seen, shape.scheme))
    return found


def shadow_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A table with a row per kind of linear, and what was measured when the shadows were chosen."""
    yield "linears  full cold none float16 outliers     hot overflow    memory   cost"
    for kind, row in [*report["by_kind"].items(), ("all", report)]:
        yield (
            f"{kind:8} {row['full']:4} {row['cold']:4} {row['none']:4} {row['float16']:7} {row['outlier_channels']:8} "
            f"{row['hot_share']:7.2%} {row['overflow']:8.3%} {row['bytes'] / 2**10:5.0f} KiB {row['cost_share']:6.1%}"
        )
    measured = report["choice"]
    if "kept" in measured:
        yield (
            f"INT8 costs {measured['kept']:.2f} % of perplexity on the calibration text "
            f"({measured['none']:.2f} % without shadows, {measured['full']:.2f} % with all; budget {measured['budget']:g} %)"
        )
    if "coded" in measured:
        cost = f"{measured['coded']:.2f} % of perplexity on the calibration text"
        yield f"The bundle, whose weights are in 4 bits or fitted, costs {cost}"


def quality_report(bundle: Bundle) -> dict[str, Any]:
    """How near the bundle is to the float model on text that it was not fitted to; empty where import did not measure it."""
    profile = outlier_profile(bundle)
    known = [{field.name for field in fields(kind)} for kind in (Quality, Closeness)]
    return dict(profile.held_out) if profile is not None and profile.held_out.keys() in known else {}


def quality_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """One line: KL, top-1 agreement and perplexity on held-out text, or how near an encoder's vectors are."""
    kind: Any = Closeness if "texts" in report else Quality
    yield f"{kind(**report)}, on held-out text"


def fold_report(bundle: Bundle) -> dict[str, Any]:
    """What was folded and what it was worth, by kind of place and for every place; empty where nothing was."""
    profile = outlier_profile(bundle)
    if profile is None or not profile.folds:
        return {}
    return {
        "by_kind": fold_totals(profile.folds),
        "by_place": {name: asdict(fold) for name, fold in profile.folds.items()},
    }


def fold_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A table with a row per kind of place."""
    searched = any(row["error"] is not None for row in report["by_kind"].values())
    yield "channels  folded  unevenness" + ("   INT8 error before -> after" if searched else "")
    for kind, row in report["by_kind"].items():
        errors = f"   {row['error_unfolded']:.1e} -> {row['error']:.1e}" if row["error"] is not None else ""
        yield f"{kind:8} {row['folded']:3} of {row['places']:<3} {row['spread']:8.2f}x{errors}"
