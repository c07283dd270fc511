"""What the subgraphs of a prompt's chunks take, as a file: the prefill of a machine that is not here, to be simulated.

A cost table is JSON, as those in `edge_llm/bench/tables`:

    {"format": "edge-llm-cost-table", "version": 1, "source": "...", "assumptions": ["..."],
     "accelerator": "npu", "chunk": 256, "layers": 24,
     "subgraphs": [{"name": "qkv", "lane": "npu", "ms": 78.3, "ms_per_earlier_chunk": 0, "after_earlier": null}, ...]}

Subgraphs stand in the order in which a chunk runs them in every layer.  `ms` is the time of one chunk over all layers,
`ms_per_earlier_chunk` what each chunk before it adds, and `after_earlier` names the subgraph of the same layer that
all earlier chunks must have ended (attention waits for their keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.scheduler import CostModel, TaskGraph
from edge_llm.strict_json import read_object

FORMAT, VERSION = "edge-llm-cost-table", 1
MAX_BYTES = 1 << 20
MAX_CHUNK, MAX_LAYERS, MAX_SUBGRAPHS, MAX_MS = 1 << 16, 1024, 64, 1e7
MAX_TASKS = 20_000
FOLDER = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Step:
    """One subgraph of every layer."""

    name: str
    lane: str
    ms: float
    ms_per_earlier_chunk: float
    after_earlier: str | None


@dataclass(frozen=True)
class CostTable:
    """The subgraphs of a model on a machine, and what is known and assumed about their times."""

    name: str
    source: str
    assumptions: tuple[str, ...]
    accelerator: str
    """The lane that is to be kept busy."""
    chunk: int
    """Tokens."""
    layers: int
    steps: tuple[Step, ...]

    def chunks(self, n_prompt: int) -> int:
        """Chunks of a prompt; the last is padded."""
        return -(-n_prompt // self.chunk)

    def program(self, chunks: int) -> tuple[TaskGraph, CostModel]:
        """The prefill of so many chunks, one chunk after the other, and what its tasks take; UsageError if too large."""
        if chunks * self.layers * len(self.steps) > MAX_TASKS:
            most = MAX_TASKS // (self.layers * len(self.steps)) * self.chunk
            raise UsageError(f"`{chunks}` chunks are too many to simulate; give -p at most {most}", param="n_prompt")
        graph, cost = TaskGraph(), CostModel()
        for chunk in range(chunks):
            for step in self.steps:
                ms = step.ms + step.ms_per_earlier_chunk * chunk
                cost.observe(_cost_key(step, chunk), step.lane, ms / self.layers / 1e3)
            before: tuple[str, ...] = ()
            for layer in range(self.layers):
                for step in self.steps:
                    earlier = range(chunk) if step.after_earlier else ()
                    after = (*before, *(f"chunk{i}.layer{layer}.{step.after_earlier}" for i in earlier))
                    name = f"chunk{chunk}.layer{layer}.{step.name}"
                    graph.add(name, step.lane, after=after, cost_key=_cost_key(step, chunk))
                    before = (name,)
        return graph, cost


def _cost_key(step: Step, chunk: int) -> str:
    return f"{step.name}/{chunk}" if step.ms_per_earlier_chunk else step.name


def names() -> list[str]:
    """The tables that come with edge-llm."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> CostTable:
    """The table of this name, or in the file of this path; `UsageError` for what is neither, or is no table."""
    if name in names():
        return _parse(name, read_object(FOLDER / f"{name}.json", error=UsageError, max_bytes=MAX_BYTES))
    path = Path(name)
    if not _is_file(path):
        raise UsageError(
            f"no cost table `{shown(name)}`; give the path of one, or one of {', '.join(names())}", param="simulate"
        )
    try:
        return _parse(path.stem, read_object(path, error=UsageError, max_bytes=MAX_BYTES))
    except UsageError as error:
        raise UsageError(f"`{shown(name)}` is no cost table: {error}", param="simulate") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def _parse(name: str, document: dict[str, Any]) -> CostTable:
    fields = ("format", "version", "source", "assumptions", "accelerator", "chunk", "layers", "subgraphs")
    form, version, source, assumptions, accelerator, chunk, layers, subgraphs = _fields(document, "the file", fields)
    if form != FORMAT or type(version) is not int or version != VERSION:
        raise UsageError(f"its format is `{shown(form)}` version `{shown(version)}`, not `{FORMAT}` version `{VERSION}`")
    if not isinstance(assumptions, list):
        raise UsageError("`assumptions` is not a list")
    if not isinstance(subgraphs, list) or not 1 <= len(subgraphs) <= MAX_SUBGRAPHS:
        raise UsageError(f"`subgraphs` is not a list of 1 to {MAX_SUBGRAPHS}")
    table = CostTable(
        name=name,
        source=_text(source, "source"),
        assumptions=tuple(_text(sentence, "assumptions") for sentence in assumptions),
        accelerator=_text(accelerator, "accelerator"),
        chunk=_count(chunk, "chunk", MAX_CHUNK),
        layers=_count(layers, "layers", MAX_LAYERS),
        steps=tuple(_step(value, f"subgraph {i}") for i, value in enumerate(subgraphs)),
    )
    _check(table)
    return table


def _step(value: Any, where: str) -> Step:
    name, lane, ms, growth, after_earlier = _fields(
        value, where, ("name", "lane", "ms", "ms_per_earlier_chunk", "after_earlier")
    )
    return Step(
        name=_text(name, f"{where}: name"),
        lane=_text(lane, f"{where}: lane"),
        ms=_ms(ms, f"{where}: ms"),
        ms_per_earlier_chunk=_ms(growth, f"{where}: ms_per_earlier_chunk"),
        after_earlier=None if after_earlier is None else _text(after_earlier, f"{where}: after_earlier"),
    )


def _check(table: CostTable) -> None:
    """What holds between the subgraphs."""
    seen: set[str] = set()
    for step in table.steps:
        if step.name in seen:
            raise UsageError(f"the subgraph `{shown(step.name)}` comes twice; give every one a name of its own")
        seen.add(step.name)
        if step.after_earlier is not None and step.after_earlier not in seen:
            raise UsageError(f"`{shown(step.name)}` waits for `{shown(step.after_earlier)}`, which does not come before it")
    if table.accelerator not in {step.lane for step in table.steps}:
        raise UsageError(f"no subgraph is on the accelerator's lane `{shown(table.accelerator)}`")
    if not any(step.ms for step in table.steps):
        raise UsageError("no subgraph takes any time")


def _fields(value: Any, where: str, names: tuple[str, ...]) -> list[Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise UsageError(f"{where} is not an object with exactly the fields {', '.join(names)}")
    return [value[name] for name in names]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise UsageError(f"{where}: `{shown(value)}` is not printable text")
    return value


def _count(value: Any, where: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise UsageError(f"{where}: `{shown(value)}` is not a whole number from 1 to {most}")
    return value


def _ms(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_MS:
        raise UsageError(f"{where}: `{shown(value)}` is not a time from 0 to {MAX_MS:g} milliseconds")
    return float(value)
