"""The metrics of a server under llama.cpp's names, which dashboards for it read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_llm.server.host import ModelHost
from edge_llm.server.metrics import labelled

PREFIX = "llamacpp:"


def llama_lines(hosts: Sequence[tuple[str, ModelHost]]) -> str:
    """The exposition's lines for ``hosts``, each with its label; rates are those since the server began."""
    lines: dict[str, list[str]] = {}
    for label, host in hosts:
        for kind, name, about, value in _values(host):
            heading = f"# HELP {PREFIX}{name} {about}\n# TYPE {PREFIX}{name} {kind}\n"
            lines.setdefault(heading, []).append(f"{PREFIX}{name}{labelled(label)} {value:.10g}\n")
    return "".join(heading + "".join(values) for heading, values in lines.items())


def _values(host: ModelHost) -> Iterator[tuple[str, str, str, float]]:
    """(kind, name, what it is, value) of each of the model's metrics."""
    metrics, batcher, counters = host.metrics, host.engine.batcher, host.engine.counters
    cached = metrics.value("cached_prompt_tokens_total")
    computed = metrics.value("prompt_tokens_total") - cached + metrics.value("embedded_tokens_total")
    predicted = metrics.value("tokens_predicted_total")
    reading, writing = metrics.value("prompt_seconds_total"), metrics.value("tokens_predicted_seconds_total")
    yield "counter", "prompt_tokens_total", "Prompt tokens computed.", computed
    yield "counter", "prompt_tokens_cached_total", "Prompt tokens that were there already.", cached
    yield "counter", "prompt_seconds_total", "Time spent on prompts.", reading
    yield "counter", "tokens_predicted_total", "Tokens generated.", predicted
    yield "counter", "tokens_predicted_seconds_total", "Time spent on generating.", writing
    yield "counter", "n_decode_total", "Steps of the engine.", batcher.steps
    yield "counter", "n_tokens_max", "Tokens of the longest sequence.", metrics.longest
    yield "counter", "spec_decode_num_draft_tokens_total", "Tokens guessed ahead.", counters.drafted_tokens
    yield "counter", "spec_decode_num_accepted_tokens_total", "Guesses that were right.", counters.accepted_tokens
    yield "counter", "spec_decode_num_drafts_total", "Steps with guesses.", counters.drafts
    yield "gauge", "prompt_tokens_seconds", "Prompt tokens per second.", computed / reading if reading else 0.0
    yield "gauge", "predicted_tokens_seconds", "Generated tokens per second.", predicted / writing if writing else 0.0
    yield "gauge", "requests_processing", "Answers under way.", host.service.running
    yield "gauge", "requests_deferred", "Requests that wait.", host.service.waiting
    busy = batcher.step_works / batcher.steps if batcher.steps else 0.0
    yield "gauge", "n_busy_slots_per_decode", "Answers and texts in a step, on average.", busy
