"""Probes of captured graphs: what a replay gives when its inputs have changed, how many there can be, and what they save."""

from __future__ import annotations

import time
from threading import Thread
from typing import Any

from edge_llm.ascend.npu.runtime import GRAPH_ROWS, Graph, run
from edge_llm.ascend.selftest.ground import Figures, Ground, equal, together
from edge_llm.ascend.selftest.layers import EPS, Heads, angles, cached, caches, lengths_of
from edge_llm.ascend.selftest.products import scales
from edge_llm.errors import EdgeLLMError


def captured(ground: Ground, work: Any) -> tuple[Graph, float]:
    """The graph of ``work``, which was done once before, and the seconds that capturing took."""
    run(ground.runtime, work)
    start = time.perf_counter()
    graph = ground.runtime.capture(work)
    return graph, time.perf_counter() - start


def replay(ground: Ground) -> Figures:
    """A norm, a quantization and a product, captured once, replayed with other inputs."""
    rows, columns, outputs = 4, 896, ground.size(1152, 64)
    x, gain, reciprocal, weight, scale = ground.held(
        ground.float32(rows, columns), ground.float32(columns), ground.torch.full((columns,), 20.0),
        ground.int8(outputs, columns), scales(ground, outputs),
    )  # fmt: skip
    weight, packed = ground.made(lambda: (ground.calls.to_matmul(weight), ground.calls.pack_scale(scale)))
    made: list[Any] = []

    def chain() -> None:
        quantized = ground.calls.quantize(ground.calls.rms_norm(x, gain, EPS), reciprocal)
        made[:] = [ground.calls.quant_matmul(quantized, weight, packed, None)]

    graph, seconds = captured(ground, chain)
    product = made[0]
    cases = {}
    for turn in ("first", "second"):
        host = ground.runtime.pinned((rows, columns), ground.torch.float32)
        host.copy_(ground.float32(rows, columns))
        again = ground.result(lambda host=host: _copied_and_replayed(ground, x, host, graph, product))
        eager = ground.after(chain, lambda: made[0])
        cases[f"{turn} replay"] = equal(again, eager)
    return together(cases, capture_seconds=seconds, replay_seconds=ground.seconds(graph.replay))


def _copied_and_replayed(ground: Ground, card: Any, host: Any, graph: Graph, result: Any) -> Any:
    ground.runtime.copy_in(card, host)
    graph.replay()
    return result


def _told_and_replayed(ground: Ground, lengths: Any, host: Any, graph: Graph, result: Any) -> Any:
    if not ground.law.host_lengths:
        return _copied_and_replayed(ground, lengths, host, graph, result)
    lengths.copy_(host)
    graph.update(host)
    graph.replay()
    return result


def replayed(ground: Ground, graph: Graph, made: Any) -> Any:
    """What a replay puts into the result ``made`` of the capture, brought to the host."""

    def again() -> None:
        made.zero_()
        graph.replay()

    return ground.after(again, lambda: made)


def replay_lengths(ground: Ground) -> Figures:
    """Attention, captured once, replayed with other lengths: they are arrays of the card, or the graph is told."""
    shape = Heads(14, 2, 64)
    held = cached(ground, shape, lengths_of(ground))
    query, keys, values, table = ground.held(
        ground.float16(4, shape.heads, shape.size), held.keys, held.values, held.table
    )
    lengths = ground.lengths(ground.int32(1, 1, 1, 1))
    keys, values = ground.made(lambda: caches(ground, keys, values))
    made: list[Any] = []

    def attend() -> None:
        made[:] = [ground.calls.attend(query, keys, values, shape.kv_heads, table, lengths)]

    graph, _ = captured(ground, attend)
    out = made[0]
    cases = {}
    for new in (held.lengths, held.lengths[::-1]):
        host = ground.runtime.pinned((4,), ground.torch.int32)
        host.copy_(ground.int32(*new))
        again = ground.result(lambda host=host: _told_and_replayed(ground, lengths, host, graph, out))
        eager = ground.after(attend, lambda: made[0])
        cases[f"lengths {', '.join(map(str, new))}"] = equal(again, eager)
    return together(cases)


class Layer:
    """A chain of a layer's operators at the shape of Qwen2.5-0.5B; smaller where operators are emulated."""

    def __init__(self, ground: Ground, rows: int) -> None:
        self._ground = ground
        self.shape = Heads(ground.size(14, 2), 2, ground.size(64, 32))
        self.hidden = self.shape.heads * self.shape.size
        self.inner = ground.size(4864, 128)
        torch = ground.torch
        kv = self.shape.kv_heads * self.shape.size
        self._parts = (self.hidden, kv, kv)
        held = cached(ground, self.shape, (1,))
        places = torch.arange(rows, dtype=torch.int32)
        self.x, self._gain, self._narrow, self._wide = ground.held(
            ground.float32(rows, self.hidden), torch.ones(self.hidden), torch.full((self.hidden,), 20.0),
            torch.full((self.inner,), 20.0),
        )  # fmt: skip
        self._lengths = ground.lengths(places + 1)
        self._positions, self._slots, self._table, self._cos, self._sin, keys, values = ground.held(
            places, places, held.table.expand(rows, 2).contiguous(),
            *angles(ground, self.shape.size, torch.arange(max(512, rows))), held.keys, held.values,
        )  # fmt: skip
        self._keys, self._values = ground.made(lambda: caches(ground, keys, values))
        sizes = {"qkv": (self.hidden, sum(self._parts)), "o": (self.hidden, self.hidden)}
        sizes |= {"gate_up": (self.hidden, 2 * self.inner), "down": (self.inner, self.hidden)}
        self._linears = {name: self._linear(*size) for name, size in sizes.items()}
        self.made: Any = None

    def _linear(self, columns: int, outputs: int) -> Any:
        weight, scale = self._ground.held(self._ground.int8(outputs, columns), scales(self._ground, outputs))
        return self._ground.made(lambda: (self._ground.calls.to_matmul(weight), self._ground.calls.pack_scale(scale)))

    def run(self) -> None:
        """The layer for `x`; `made` has the result."""
        calls, torch = self._ground.calls, self._ground.torch
        qkv = self._product("qkv", calls.rms_norm(self.x, self._gain, EPS), self._narrow)
        q, k, v = (part.contiguous() for part in qkv.split(self._parts, dim=1))
        q = q.view(len(q), self.shape.heads, self.shape.size)
        k, v = (part.view(len(q), self.shape.kv_heads, self.shape.size) for part in (k, v))
        of_rows = (table.index_select(0, self._positions) for table in (self._cos, self._sin))
        query, k = calls.rotate(q, k, *of_rows)
        calls.write_keys(k, v, self._keys, self._values, self._slots)
        out = self._attended(query)
        x = self.x + self._product("o", out.view(len(q), self.hidden).to(torch.float32), self._narrow).to(torch.float32)
        gate_up = self._product("gate_up", calls.rms_norm(x, self._gain, EPS), self._narrow)
        inner = calls.swiglu(gate_up).to(torch.float32)
        self.made = x + self._product("down", inner, self._wide).to(torch.float32)

    def _attended(self, query: Any) -> Any:
        """Of rows of sequences of their own."""
        return self._ground.calls.attend(
            query, self._keys, self._values, self.shape.kv_heads, self._table, self._lengths
        )

    def result(self) -> Any:
        """Of the last run."""
        return self.made

    def share(self, other: Layer) -> None:
        """Take the first rows and the weights of another."""
        self.x, self._linears = other.x[: len(self.x)], other._linears

    def _product(self, name: str, x: Any, reciprocal: Any) -> Any:
        calls = self._ground.calls
        weight, scale = self._linears[name]
        return calls.quant_matmul(calls.quantize(x, reciprocal), weight, scale, None)


def eager_and_replay(ground: Ground) -> Figures:
    """Seconds of a chain of a layer's operators for 1 and 32 rows: launched one by one, and replayed; and the same bits."""
    cases = {}
    for rows in (1, 32):
        layer = Layer(ground, rows)
        eager_seconds, given = ground.seconds(layer.run, 20), ground.seconds_to_give(layer.run, 20)
        eager = ground.after(layer.run, layer.result)
        graph, capture = captured(ground, layer.run)
        made = layer.made
        again = replayed(ground, graph, made)
        seconds = {"eager_seconds": eager_seconds, "eager_seconds_to_give": given, "capture_seconds": capture}
        seconds["replay_seconds"] = ground.seconds(graph.replay, 20)
        cases[f"{rows} rows"] = equal(again, eager) | seconds
    one = cases["1 rows"]
    said = ("eager_seconds", "eager_seconds_to_give", "replay_seconds", "capture_seconds")
    return together(cases, **{name: one[name] for name in said})


def many_graphs(ground: Ground) -> Figures:
    """As many graphs as a model captures, of several layers each, all kept; each replays what it is for."""
    layers = {rows: Layer(ground, rows) for rows in GRAPH_ROWS[: ground.size(len(GRAPH_ROWS), 2)]}
    repeated = ground.size(24, 2)
    graphs, cases, start = {}, {}, time.perf_counter()
    for rows, layer in layers.items():
        def many(layer: Layer = layer) -> None:
            for _ in range(repeated):
                layer.run()

        graphs[rows] = (captured(ground, many)[0], layer.made)
    seconds = time.perf_counter() - start
    for rows, (graph, made) in graphs.items():
        again = replayed(ground, graph, made)
        cases[f"{rows} rows"] = equal(again, ground.after(layers[rows].run, layers[rows].result))
    free, _ = ground.runtime.memory()
    return together(cases, graphs=len(graphs), layers=repeated, seconds=seconds, free_bytes=free)


def copies_while_capturing(ground: Ground) -> Figures:
    """Whether another thread may copy to the card while a graph is recorded, as it does when a second model is loaded."""
    before, host = ground.float32(64), ground.runtime.pinned((4096,), ground.torch.int8)
    host.copy_(ground.int8(4096))
    x, card = ground.held(before, ground.int8(4096))
    failed, made = list[str](), list[Any]()

    def copy() -> None:
        try:
            ground.runtime.load(lambda: ground.runtime.copy_in(card, host))()
        except (EdgeLLMError, RuntimeError) as error:
            failed.append(str(error.__cause__ or error)[:500])

    def work() -> None:
        first = x + 1.0
        thread = Thread(target=copy)
        thread.start()
        thread.join()
        made[:] = [first * 2.0]

    graph, _ = captured(ground, work)
    result = made[0]
    cases = {"replay": equal(replayed(ground, graph, result), (before + 1.0) * 2.0)}
    cases["copy"] = {"error": failed[0]} if failed else equal(ground.result(lambda: card), host)
    return together(cases)
