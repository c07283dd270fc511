"""Probes of speed: what each kind of operator of a step takes to launch, and how fast a chain of layers reads a prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from edge_llm.ascend.selftest.graphs import Layer
from edge_llm.ascend.selftest.ground import SPOILED, Figures, Ground, near, together, tried
from edge_llm.ascend.selftest.layers import ATTENTION_BOUND, EPS, Cached, Heads, angles, cached, caches, mask_of
from edge_llm.ascend.selftest.products import scales

COLUMNS, OUTPUTS, HOT = 896, 64, 32
LAYERS = 24
"""Of Qwen2.5-0.5B."""
PROMPTS = (256, 1024)


def launch_kinds(ground: Ground) -> Figures:
    """Seconds of each kind of operator for one row, of the card and of the host that gives it."""
    found, lost = tried({name: partial(_launched, ground, work) for name, work in _kinds(ground).items()})
    said = {f"{name}_seconds": one["seconds"] for name, one in found.items() if "seconds" in one}
    failed = [name for name, one in found.items() if "error" in one]
    figures: Figures = {**said, "cases": found} | ({SPOILED: True} if lost else {})
    return figures | ({"error": f"{', '.join(failed)} failed"} if failed else {})


def _launched(ground: Ground, work: Callable[[], Any]) -> Figures:
    return dict(zip(("seconds_to_give", "seconds"), ground.both_seconds(work, 200), strict=True))


def _kinds(ground: Ground) -> dict[str, Callable[[], Any]]:
    torch, calls, shape = ground.torch, ground.calls, Heads(14, 2, 64)
    keys = cached(ground, shape, (37,))
    cos, sin = angles(ground, shape.size, torch.tensor([36]))
    x, half, gain, int8, index, hot, wide, query, key, cos, sin, table, slots = ground.held(
        ground.float32(1, COLUMNS), ground.float16(1, COLUMNS), ground.float32(COLUMNS), ground.int8(1, COLUMNS),
        torch.arange(HOT, dtype=torch.int32), ground.float16(HOT, OUTPUTS), ground.float16(1, 2 * COLUMNS),
        ground.float16(1, shape.heads, shape.size), ground.float16(1, shape.kv_heads, shape.size), cos, sin,
        keys.table, ground.int32(36),
    )  # fmt: skip
    lengths = ground.lengths(ground.int32(37))
    weight, scale, blocks = ground.held(ground.int8(OUTPUTS, COLUMNS), scales(ground, OUTPUTS), keys.keys)
    weight, packed = ground.made(lambda: (calls.to_matmul(weight), calls.pack_scale(scale)))
    cache, values = ground.made(lambda: caches(ground, blocks, blocks.clone()))
    thin, sums = ground.held(ground.float16(1, HOT), ground.float16(1, OUTPUTS))
    return {
        "add": lambda: x + x,
        "mul": lambda: x * gain,
        "cast": lambda: x.to(torch.float16),
        "copy": lambda: half[:, :OUTPUTS].contiguous(),
        "index_select": lambda: half.index_select(1, index),
        "addmm": lambda: torch.addmm(sums, thin, hot),
        "quantize": lambda: calls.quantize(x, gain),
        "quant_matmul": lambda: calls.quant_matmul(int8, weight, packed, None),
        "rms_norm": lambda: calls.rms_norm(x, gain, EPS),
        "swiglu": lambda: calls.swiglu(wide),
        "rotate": lambda: calls.rotate(query, key, cos, sin),
        "write_keys": lambda: calls.write_keys(key, key, cache, values, slots),
        "attend": lambda: calls.attend(query, cache, values, shape.kv_heads, table, lengths),
    }


class _Prompt(Layer):
    """The chain over rows of one prompt, which see each other."""

    def __init__(self, ground: Ground, rows: int) -> None:
        super().__init__(ground, rows)
        blocks = -(-rows // ground.law.page_tokens)
        table = ground.torch.arange(blocks, dtype=ground.torch.int32)[None]
        keys = ground.float16(*self.shape.cache_shape(ground, blocks))
        self._counts = ground.int32(rows)
        mask = mask_of(ground, Cached(self.shape, (rows,), keys, keys, table), self._counts)
        self._table, self._mask, card = ground.held(table, mask, keys)
        self._lengths = ground.lengths(self._counts)
        self._keys, self._values = ground.made(lambda: caches(ground, card, card.clone()))

    def _attended(self, query: Any) -> Any:
        return self._ground.calls.attend_chunk(
            query, self._keys, self._values, self.shape.kv_heads, self._table, self._lengths, self._mask, self._counts
        )


def prefill(ground: Ground) -> Figures:
    """Tokens of a prompt per second: a layer of Qwen2.5-0.5B as often as it has layers, without hot channels and head."""
    cases, rates = {}, []
    for full in PROMPTS:
        rows = ground.size(full, full // 64)
        prompt, half = _Prompt(ground, rows), _Prompt(ground, rows // 2)
        half.share(prompt)
        found, first = (ground.after(one.run, one.result) for one in (prompt, half))
        seconds = ground.seconds(prompt.run, 10)
        rates.append(rows / (LAYERS * seconds))
        cases[f"{rows} rows"] = near(found[: rows // 2], first, ATTENTION_BOUND) | {
            "layer_seconds": seconds, "tokens_per_second": rates[-1],
        }  # fmt: skip
    return together(cases, tokens_per_second=max(rates), layers=LAYERS)
