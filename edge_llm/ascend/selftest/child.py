"""Opens a card and probes it, in a process of its own: what crashes or hangs there is one probe and not the self-test."""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.npu.opening import open_runtime
from edge_llm.child.inside import answer, questions
from edge_llm.errors import DeviceError, DeviceLost, EdgeLLMError

if TYPE_CHECKING:
    from edge_llm.ascend.selftest.ground import Ground

NO_FALLBACK = "TORCH_NPU_FALLBACK_CPU_DISABLE"
"""Environment variable: an operator that the card lacks raises, where it would be computed by the CPU without a word."""
LONGEST = 3000
"""Of an error's text."""


def serve(log: str) -> None:
    """Answer ``module:function`` with what that probe finds; what libraries print goes to the file ``log``."""
    replies = os.fdopen(os.dup(1), "w")
    _print_to(log)
    os.environ[NO_FALLBACK] = "1"
    grounds: list[Ground] = []
    for question in questions():
        reply = _reply(question.decode(), grounds)
        with redirect_stdout(replies):
            answer(json.dumps(reply, allow_nan=False).encode())


def _print_to(log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, 2)  # sys.stderr may be None


def _reply(question: str, grounds: list[Ground]) -> dict[str, Any]:
    """What a question gives; ``spoiled`` says that the card may answer wrongly from here on."""
    try:
        if not grounds:
            grounds.append(_opened())
        figures = _plain(_facts(grounds[0]) if not question else _probe(question)(grounds[0]))
        return {"spoiled": figures.pop("spoiled", False), "figures": figures}
    except EdgeLLMError as error:
        return {"error": _text(error), "spoiled": isinstance(error, DeviceLost) or not isinstance(error, DeviceError)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {_text(error)}", "spoiled": True}


def _opened() -> Ground:
    runtime = open_runtime(None)
    from edge_llm.ascend.selftest.ground import Ground

    return Ground(runtime)


def _facts(ground: Ground) -> dict[str, Any]:
    return {"name": ground.law.name, "soc": ground.law.soc, "emulated": ground.runtime.emulated}


def _probe(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def _text(error: BaseException) -> str:
    """What it says, and what the library said that failed."""
    said = str(error)
    cause = str(error.__cause__ or "")
    return (said if not cause or cause in said else f"{said}\n{cause}")[:LONGEST]


def _plain(value: Any) -> Any:
    """``value`` for JSON, which has no infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
