"""Who computes: a runner, and after its device was lost another one in its place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from edge_llm.errors import DeviceError, DeviceLost, EdgeLLMError
from edge_llm.progress import StageProgress, ignore
from edge_llm.runner.base import Runner, Site
from edge_llm.runner.inside import RunnerInside

log = logging.getLogger("edge_llm.engine")

Replace = Callable[[DeviceLost], Runner[Any]]
"""Gives another runner of the same model, after the device of the first was lost."""


def no_other(lost: DeviceLost) -> Runner[Any]:
    """A `Replace` that has none."""
    raise DeviceError("nobody said what would")


class RunnerPlace:
    """The place of ``runner``, which what ``replace`` gives takes when the device is lost."""

    def __init__(self, runner: Runner[Any], replace: Replace) -> None:
        self.runner: Runner[Any] = runner
        self.lost: DeviceLost | None = None
        """The device is lost, and nothing has taken the place yet."""
        self._replace = replace

    def lose(self, error: DeviceLost) -> DeviceLost:
        """The device is lost; what to tell those whose work was."""
        self.lost = self.lost or error.again()
        return error.again()

    def fill(self, lost: DeviceLost) -> None:
        """Have another runner, or a `Vacancy` that refuses; interrupted, the device is still `lost`."""
        self.runner = vacancy = Vacancy(self.runner)  # what the lost one held is free before another one is loaded
        try:
            self.runner = self._replace(lost)
        except Exception as error:
            failed = f"the device `{lost.device}` failed: {lost.failure}"
            vacancy.refusal = DeviceError(f"{failed}; nothing takes its place: {error or type(error).__name__}")
            log.error("%s", vacancy.refusal)
        self.lost = None


class Vacancy:
    """A runner, and its memory, that computes nothing: it lets requests queue until there is a ``refusal``."""

    clipped = 0
    pool = None

    def __init__(self, before: Runner[Any]) -> None:
        self.context: int = before.context
        self.site: Site = before.site
        self.refusal: EdgeLLMError | None = None

    @property
    def memory(self) -> Vacancy:
        return self

    def check_fits(self, tokens: int) -> None:
        if self.refusal is not None:
            raise self.refusal

    def has_room(self, tokens: int) -> bool:
        return True

    def state(self) -> Mapping[str, int]:
        return {}

    def prepare(self, progress: StageProgress = ignore) -> None:
        return

    def look(self) -> RunnerInside:
        return RunnerInside()

    def open(self, tokens: Sequence[int] = (), adapter: int = 0) -> NoReturn:
        self._refuse()

    def reserve(self, sequence: Any, tokens: int) -> NoReturn:
        self._refuse()

    def remember(self, sequence: Any, tokens: Sequence[int]) -> NoReturn:
        self._refuse()

    def run(self, segments: Any, *, cancel: Any = None) -> NoReturn:
        self._refuse()

    def forward(self, sequence: Any, tokens: Sequence[int], *, wanted: int = 1, cancel: Any = None) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        assert self.refusal is not None, "nothing is asked of a vacancy that will be filled"
        raise self.refusal
