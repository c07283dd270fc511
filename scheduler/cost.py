"""The predicted duration of tasks, learned from real runs: one mean per (cost key, lane).

The first runs count equally; after `MEMORY` of them each new one weighs 1/MEMORY, so the model follows a machine that
drifts.  An unknown pair is predicted to take `default` seconds.

Source: llm.npu (ASPLOS 2025, arXiv 2407.05858), section 3.4, measures the subgraphs' durations beforehand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edge_llm.scheduler.trace import Trace

MEMORY = 64  # observations
MAX_SECONDS = 1e6  # a duration beyond eleven days is a mistake
MAX_FILE_BYTES = 16 * 2**20
FORMAT, VERSION = "scheduler-costs", 1


class Estimate(NamedTuple):
    """The mean duration of one kind of task on one lane, and how much it counts."""

    seconds: float
    weight: int  # 1..MEMORY, the runs behind it


class CostModel:
    """Predicts the duration of a task from its cost key and its lane."""

    def __init__(self, default: float = 1e-3) -> None:
        self.default = _duration(default, "default")
        self._estimates: dict[tuple[str, str], Estimate] = {}

    def predict(self, key: str, lane: str) -> float:
        """The seconds that a task of this key takes on this lane."""
        estimate = self._estimates.get((key, lane))
        return self.default if estimate is None else estimate.seconds

    def observe(self, key: str, lane: str, seconds: float) -> None:
        """Learn from one run of one task; ValueError if `seconds` is negative or not a number."""
        self._blend(key, lane, Estimate(_duration(seconds, f"`{key}` on `{lane}`"), 1))

    def learn(self, trace: Trace) -> None:
        """Observe every task of a run."""
        for span in trace.spans:
            self.observe(span.cost_key, span.lane, span.seconds)

    def merge(self, other: CostModel) -> CostModel:
        """A new model with the estimates of both, weighted means where both have one; it keeps this model's default."""
        merged = CostModel(self.default)
        merged._estimates = dict(self._estimates)
        for (key, lane), estimate in other._estimates.items():
            merged._blend(key, lane, estimate)
        return merged

    def _blend(self, key: str, lane: str, new: Estimate) -> None:
        old = self._estimates.get((key, lane), Estimate(0.0, 0))
        weight = old.weight + new.weight
        mean = old.seconds + (new.seconds - old.seconds) * (new.weight / weight)
        self._estimates[key, lane] = Estimate(mean, min(weight, MEMORY))

    def __len__(self) -> int:
        return len(self._estimates)

    def __iter__(self) -> Iterator[tuple[str, str, Estimate]]:
        """All estimates as (key, lane, estimate), sorted."""
        return ((key, lane, self._estimates[key, lane]) for key, lane in sorted(self._estimates))

    # -- as JSON ------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as JSON, all or nothing: the file is complete or untouched."""
        costs = [{"key": key, "lane": lane, **estimate._asdict()} for key, lane, estimate in self]
        document = {"format": FORMAT, "version": VERSION, "default": self.default, "costs": costs}
        path = Path(path)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with unfinished.open("w", encoding="utf-8") as file:
                file.write(json.dumps(document, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostModel:
        """Read a saved model; for any other file, ValueError that names the file and the fault."""
        path = Path(path)
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"`{path}` is an invalid cost table: larger than {MAX_FILE_BYTES} bytes")
        try:
            return cls._from_document(json.loads(path.read_bytes(), object_pairs_hook=_object))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`{path}` is an invalid cost table: {error}") from None

    @classmethod
    def _from_document(cls, document: Any) -> CostModel:
        form, version, default, costs = _fields(document, "the file", "format", "version", "default", "costs")
        if (form, version) != (FORMAT, VERSION) or type(version) is not int:
            raise ValueError(f"format is `{form}` version `{version}`, not `{FORMAT}` version `{VERSION}`")
        if type(costs) is not list:
            raise ValueError("`costs` is not a list")
        model = cls(_duration(default, "default"))
        for i, entry in enumerate(costs):
            key, lane, seconds, weight = _fields(entry, f"entry {i}", "key", "lane", "seconds", "weight")
            if type(key) is not str or type(lane) is not str:
                raise ValueError(f"entry {i}: key `{key}` and lane `{lane}` must be text")
            if type(weight) is not int or not 1 <= weight <= MEMORY:
                raise ValueError(f"entry {i}: weight `{weight}` is not a whole number from 1 to {MEMORY}")
            if (key, lane) in model._estimates:
                raise ValueError(f"entry {i}: key `{key}` on lane `{lane}` appears twice")
            model._estimates[key, lane] = Estimate(_duration(seconds, f"entry {i}"), weight)
        return model


def _duration(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"{what}: `{value}` is not a duration in seconds")
    return float(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"a name appears twice among {[name for name, _ in pairs]}")
    return fields


def _fields(value: Any, what: str, *names: str) -> list[Any]:
    if type(value) is not dict or set(value) != set(names):
        raise ValueError(f"{what} is not an object with exactly the fields {', '.join(names)}")
    return [value[name] for name in names]
