"""The inside of a process that is measured: it answers each line of JSON on its stdin with one line of JSON on its stdout.

Imports nearly nothing, because starting is part of what is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

VERBS = ("describe", "begin", "run", "first_token", "logits")
"""What a model can be asked for."""
FIRST_PROMPT = 32
"""Tokens of the prompt that `first_token` is timed with."""


def seconds_of(forward: Callable[[Any, int], Any], tokens: Any, prompt: int, depth: int) -> float:
    """Seconds for the first ``prompt`` of ``tokens`` at once and the others one by one, behind ``depth`` tokens.

    ``forward`` is told tokens and how many stand before them.
    """
    started = time.perf_counter()
    if prompt:
        forward(tokens[:prompt], depth)
    for index in range(prompt, len(tokens)):
        forward(tokens[index : index + 1], depth + index)
    return time.perf_counter() - started


def serve(make: Callable[..., Any], setting: str) -> None:
    """The worker's side: make a model of the ``setting`` (JSON), then call its methods as asked until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        started = time.perf_counter()
        model = make(**json.loads(setting))
        answer({"ready": time.perf_counter() - started})
        for line in sys.stdin:
            request = json.loads(line)
            do = request.pop("do")
            if do not in VERBS:
                raise ValueError(f"no verb {do}")
            answer({do: getattr(model, do)(**request)})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
