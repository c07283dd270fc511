"""PyTorch in a process of its own: a plain decoder with dynamic INT8 linears and its fused attention, random weights.

Every linear is `torch.ao.quantization.quantize_dynamic` (one scale per weight tensor, one per activation tensor), run by
one of PyTorch's own libraries; attention is `scaled_dot_product_attention` over float32 keys and values.  What it gives
is what a careful script gets, without an engine around it.  Started by `edge_llm.bench.peer`.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any

from edge_llm.bench.serve import FIRST_PROMPT, seconds_of, serve


class TorchDecoder:
    """A decoder of the shape ``config`` (the fields of `LlamaConfig`)."""

    def __init__(self, config: dict[str, Any], context: int, threads: int, library: str) -> None:
        # By name, because a type checker would read all of it: nothing but this process may load PyTorch.
        self._torch: Any = import_module("torch")
        torch = self._torch
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        torch.backends.quantized.engine = library
        self._config = config
        hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        self._heads, self._kv_heads = config["num_heads"], config["num_kv_heads"]
        self._q_size, self._kv_size = self._heads * head, self._kv_heads * head
        self._gain = torch.ones(hidden)
        self._head_gain = torch.ones(head)
        self._embedding = torch.randn(config["vocab_size"], hidden)
        self._layers = [
            (
                self._linear(hidden, self._q_size + 2 * self._kv_size, config["qkv_bias"]),
                self._linear(self._q_size, hidden),
                self._linear(hidden, 2 * inner),
                self._linear(inner, hidden),
            )
            for _ in range(config["num_layers"])
        ]
        self._output = self._linear(hidden, config["vocab_size"])
        angles = torch.outer(torch.arange(context), config["rope_theta"] ** -(torch.arange(0, head, 2) / head))
        self._cos, self._sin = angles.cos(), angles.sin()
        # Random from the start: a context of any depth is there, for values do not change speed.
        self._kv = torch.randn(config["num_layers"], 2, self._kv_heads, context, head)
        self._depth = 0

    def describe(self) -> str:
        """The instruction set that it uses."""
        return str(self._torch.backends.cpu.get_cpu_capability())

    def begin(self, depth: int, threads: int, state: str | None = None) -> None:
        """Have ``depth`` tokens of context."""
        self._torch.set_num_threads(threads)
        self._depth = depth

    def run(self, prompt: int, generate: int) -> float:
        """Seconds for a prompt and then single tokens; the context is as before afterwards."""
        return seconds_of(self._forward, self._tokens(prompt + generate), prompt, self._depth)

    def first_token(self) -> int:
        """The most likely token after a prompt of `FIRST_PROMPT` tokens."""
        return int(self._forward(self._tokens(FIRST_PROMPT), 0).argmax())

    def _tokens(self, count: int) -> Any:
        return self._torch.randint(0, self._config["vocab_size"], (count,))

    def _linear(self, columns: int, rows: int, bias: bool = False) -> Any:
        torch = self._torch
        linear = torch.nn.Linear(columns, rows, bias=bias, device="meta").to_empty(device="cpu")
        linear.weight.uniform_(-((3 / columns) ** 0.5), (3 / columns) ** 0.5)
        if bias:
            linear.bias.zero_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(linear), {torch.nn.Linear}, torch.qint8)[0]

    def _forward(self, tokens: Any, start: int) -> Any:
        """Logits of the last of ``tokens``, which come after ``start`` tokens: [vocab]."""
        torch, functional = self._torch, self._torch.nn.functional
        hidden = self._embedding[tokens]
        count, end = len(tokens), start + len(tokens)
        cos, sin = self._cos[start:end], self._sin[start:end]
        mask = None
        if count > 1 and start:
            mask = torch.ones(count, end, dtype=torch.bool).tril(start)
        for (qkv, o, gate_up, down), (keys, values) in zip(self._layers, self._kv, strict=True):
            projected = qkv(self._norm(hidden, self._gain)).view(count, -1, self._config["head_dim"]).transpose(0, 1)
            q, k, v = projected.split((self._heads, self._kv_heads, self._kv_heads))
            if self._config["qk_norm"]:
                q, k = self._norm(q, self._head_gain), self._norm(k, self._head_gain)
            keys[:, start:end] = _rotate(torch, k, cos, sin)
            values[:, start:end] = v
            attended = functional.scaled_dot_product_attention(
                _rotate(torch, q, cos, sin)[None],
                keys[None, :, :end],
                values[None, :, :end],
                attn_mask=mask,
                is_causal=count > 1 and not start,
                enable_gqa=self._heads != self._kv_heads,
            )
            hidden = hidden + o(attended[0].transpose(0, 1).reshape(count, -1))
            gate, up = gate_up(self._norm(hidden, self._gain)).chunk(2, -1)
            hidden = hidden + down(functional.silu(gate) * up)
        return self._output(self._norm(hidden[-1:], self._gain))[0]

    def _norm(self, x: Any, gain: Any) -> Any:
        return self._torch.nn.functional.rms_norm(x, gain.shape, gain, self._config["norm_eps"])


def _rotate(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


if __name__ == "__main__":
    serve(TorchDecoder, sys.argv[1])
