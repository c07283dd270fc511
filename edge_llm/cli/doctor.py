"""`edge-llm doctor`: what this machine has, and what is missing; with `--selftest`, what its card does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edge_llm.ascend.npu.finding import Finding
from edge_llm.cli.here import known_here
from edge_llm.cli.terminal import note, progress_bar, say, say_json
from edge_llm.cli.values import MODEL, NewFile
from edge_llm.config import RuntimeConfig
from edge_llm.errors import EdgeLLMError, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.examine import examine
from edge_llm.opening.machine import this_machine
from edge_llm.opening.plan import plan_rows
from edge_llm.opening.resolve import resolve
from edge_llm.paths import find_bundle
from edge_llm.resources import free_memory


@click.command("doctor")
@click.argument("model", type=MODEL, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--selftest", is_flag=True, help="Try what an Ascend card does, beside the CPU, and how fast; takes minutes.")
@click.option("--share", type=NewFile(), metavar="FILE", help="With --selftest: write a report to post.")
def doctor_command(model: str | None, as_json: bool, selftest: bool, share: Path | None) -> None:
    """Say what this machine has for running models, what is missing for an Ascend card, and how MODEL would run here.

    The plan is that of `edge-llm plan MODEL`; a line that begins with "!" wants something done, and says what.

    --selftest calls every operator of the card that models use, and some that they do not. The report (--json) is what a bug
    report wants; it is kept, and `edge-llm plan` reckons with its times. --share writes it to a file that you can post: without
    names, paths, addresses and serial numbers.
    """
    if share is not None and not selftest:
        raise UsageError("--share writes the report of the self-test: give --selftest too", param="share")
    if selftest:
        if model is not None:
            raise UsageError("--selftest tries the card, not a model; leave MODEL out", param="model")
        _selftest(as_json, share)
        return
    findings, (planned, facts) = examine(), _planned(model)
    if as_json:
        plan = {**planned.as_dict(), "facts": facts}
        say_json({**{finding.name: finding.as_dict() for finding in findings}, planned.name: plan})
        return
    width = max(len(finding.name) for finding in findings)
    for finding in (*findings, planned):
        say(f"{_MARKS[finding.good]} {finding.name.ljust(width)}  {finding.value}")
        if finding.advice:
            say(f"  {' ' * width}  -> {finding.advice}")
    for name, value in plan_rows(facts) if facts else ():
        say(f"  {' ' * width}  {name:10} {value}")


def _planned(model: str | None) -> tuple[Finding, dict[str, Any]]:
    """How ``model``, or the default one, would run here, and the facts of that plan; none where it cannot be planned.

    Raises `ModelNotFound` for a ``model`` that is not here.
    """
    name = model if model is None else known_here(model)
    try:
        with open_bundle(find_bundle(name)) as bundle:
            plan = resolve(RuntimeConfig(), this_machine(), bundle)
    except EdgeLLMError as error:
        return Finding("plan", str(error), good=False), {}
    lacks = plan.lacks(free_memory())
    said = f"`{shown(plan.name)}` {lacks.partition('; ')[0] or 'has room here'}"
    return Finding("plan", said, good=not lacks, advice=lacks.partition("; ")[2]), plan.facts


_MARKS: dict[bool | None, str] = {True: "+", False: "!", None: "-"}


def _selftest(as_json: bool, share: Path | None) -> None:
    import edge_llm
    from edge_llm.ascend.selftest.report import save_report
    from edge_llm.ascend.selftest.runs import SelfTest
    from edge_llm.ascend.selftest.share import write_share
    from edge_llm.bench.environment import utc_now

    with progress_bar() as draw:
        found = SelfTest().run(lambda name, done, total: draw("self-test", done, total))
    machine = {finding.name: finding.as_dict() for finding in examine()}
    about = {"version": edge_llm.__version__, "when": utc_now(), "machine": machine, "versions": _versions(machine, found)}
    report = {**about, **found}
    if as_json:
        say_json(report)
    else:
        say(_table(report))
    if report["chip"]["emulated"]:
        note("PyTorch computed the card's operators on the CPU: the times mean nothing, and the report is not kept")
    else:
        note(f"the report is in {save_report(report)}; `--json` prints all of it")
    if share is not None:
        write_share(report, share)
        note(f"the report to post is in {shown(share)}: figures and versions, no names, paths, addresses or serial numbers")


_SOFTWARE = ("python", "ascend driver", "CANN", "NNAL", "torch", "torch_npu")


def _versions(machine: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What doctor found, and what the software says of itself."""
    said = {name: value for name, value in found["probes"].get("software", {}).items() if isinstance(value, str)}
    return {**{name: machine[name]["value"] for name in _SOFTWARE if name in machine}, **said}


def _table(report: Mapping[str, Any]) -> str:
    """A line for every probe: whether it was good, its name, its figures; below, what went wrong."""
    width = max(map(len, report["probes"]))
    emulated = ", operators emulated" if report["chip"]["emulated"] else ""
    lines = [f"{report['chip']['soc']}{emulated}; {', '.join(f'{name} {value}' for name, value in report['versions'].items())}"]
    for name, result in report["probes"].items():
        mark = _MARKS[True if result["ok"] else False if result["needed"] else None]
        lines.append(f"{mark} {name.ljust(width)}  {_figures(result)}".rstrip())
        lines += [f"  {' ' * width}  -> {line}" for line in result.get("error", "").splitlines()[:3]]
    bad = [name for name, result in report["probes"].items() if result["needed"] and not result["ok"]]
    lines.append(f"what models rely on fails: {', '.join(bad)}" if bad else "all that models rely on works")
    return "\n".join(lines)


_UNSAID = ("ok", "needed", "took_seconds", "values", "largest_expected", "bound", "soc_number", "bfloat16")


def _figures(result: Mapping[str, Any]) -> str:
    """The plain numbers of a probe that a person looks for."""
    plain = {name: value for name, value in result.items() if name not in _UNSAID and isinstance(value, int | float)}
    return ", ".join(f"{_label(name)} {_amount(name, value)}".strip() for name, value in plain.items())


_UNITS = {
    "bytes_per_second": (1e-9, "GB/s"),
    "operations_per_second": (1e-12, "T operations/s"),
    "bytes": (2**-20, "MiB"),
}


def _label(name: str) -> str:
    for unit in (*_UNITS, "seconds"):
        if unit in name:
            name = name.replace(unit, "")
            break
    return " ".join(filter(None, name.split("_")))


def _amount(name: str, value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    for ending, (factor, unit) in _UNITS.items():
        if ending in name:
            return f"{factor * value:.4g} {unit}"
    if "seconds" in name:
        return f"{1e6 * value:.1f} us" if value < 1e-3 else f"{1e3 * value:.1f} ms" if value < 1 else f"{value:.1f} s"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
