"""OpenVINO models with random weights at a real shape, in the form that its exporter gives Hugging Face's models.

INT4 in groups of 128 with a float16 scale in the layers and INT8 with a scale per row in the embedding and the output, as its
compression chooses; or INT8 everywhere.  Keys and values are the model's state (needs the `openvino` package).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.peer_model import PeerModel, WeightBytes, require_blocks, written_once
from edge_llm.bench.random_weights import random_blocks, random_vector
from edge_llm.config import LlamaConfig
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import rope_tables
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import Gain, Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import Linear
from edge_llm.operations.norm import Norm

VARIANTS = ("int4", "int8", "int4-f32", "int8-f32")
"""With the ending, the plugin computes in float32; else it chooses (bfloat16, where the processor has instructions for it, even
where float32 is faster)."""
GROUP = 128


def synthetic_openvino(config: LlamaConfig, variant: str) -> PeerModel:
    """The model at the shape of ``config``; made once and kept."""
    numbers, _, precision = variant.partition("-")
    if numbers == "int4":
        require_blocks(config, GROUP, "openvino:int4")
    folder = written_once(config, numbers, "openvino", write_openvino)
    size = sum((folder / name).stat().st_size for name in ("model.xml", "model.bin"))
    setting: dict[str, Any] = {"folder": str(folder), "vocab": config.vocab_size}
    if precision:
        setting["properties"] = {"INFERENCE_PRECISION_HINT": precision}
    return PeerModel(setting, folder.name, variant.upper(), size, partial(WeightBytes.noted, folder), "u8", 1)


def write_openvino(folder: Path, config: LlamaConfig, numbers: str) -> None:
    """Fill the empty ``folder``."""
    graph = _Graph(bits=int(numbers.removeprefix("int")))
    model = graph.decoder(describe(config))
    import_module("openvino").save_model(model, folder / "model.xml", compress_to_fp16=False)
    WeightBytes(graph.weight_bytes, graph.weight_bytes - graph.unread_bytes).write(folder)


class _Graph:
    """Nodes of the model, after its description."""

    def __init__(self, bits: int) -> None:
        self._api: Any = import_module("openvino")
        self._ops: Any = import_module("openvino.opset15")
        self._bits = bits
        self._inputs: dict[str, Any] = {}
        self._assigned: list[Any] = []
        self._buffers: dict[str, list[Any]] = {}
        self.weight_bytes = self.unread_bytes = 0

    def decoder(self, decoder: Decoder) -> Any:
        """The whole model."""
        ops, table = self._ops, (decoder.vocab_size, decoder.hidden_size)
        self._parameters()
        embedding = self._matrix(decoder.embedding.source, *table, 8)
        if not decoder.tied:
            self.unread_bytes = self.weight_bytes
        self._buffers[decoder.embedding.writes] = [ops.gather(embedding, self._inputs["input_ids"], self._integer(0))]
        self._rope(decoder.attentions[0])
        self._causal()
        for index, layer in enumerate(decoder.layers):
            for operation in layer.operations:
                self._operation(operation, layer.prefix, index)
        self._norm(decoder.norm, "")
        last = ops.gather(self._buffers[decoder.norm.writes][0], self._integers(-1), self._integer(1), name="last_token")
        output = embedding if decoder.tied else self._matrix(f"{decoder.output.sources[0].source}.weight", *table, 8)
        logits = ops.matmul(last, output, False, True)
        logits.output(0).set_names({"logits"})
        return self._api.Model([ops.result(logits)], self._assigned, list(self._inputs.values()), "decoder")

    def _parameters(self) -> None:
        ranks = {"input_ids": 2, "attention_mask": 2, "position_ids": 2, "beam_idx": 1}
        for name, rank in ranks.items():
            parameter = self._ops.parameter(self._api.PartialShape([-1] * rank), np.int32 if rank == 1 else np.int64)
            parameter.set_friendly_name(name)
            parameter.output(0).set_names({name})
            self._inputs[name] = parameter
        self._batch = self._size(self._inputs["input_ids"], 0)

    def _rope(self, attention: Attention) -> None:
        """Cosines and sines of the tokens' positions: [batch, 1, tokens, head_dim]."""
        ops, frequency = self._ops, _frequency(attention)
        positions = ops.convert(ops.unsqueeze(self._inputs["position_ids"], self._integer(1)), "f32")
        shape = ops.concat([self._batch, self._integers(len(frequency), 1)], 0)
        angles = ops.matmul(ops.broadcast(self._constant(frequency[None, :, None]), shape), positions, False, False)
        angles = ops.transpose(angles, self._integers(0, 2, 1))
        angles = ops.concat([angles, angles], -1)
        self._cos, self._sin = (ops.unsqueeze(wave(angles), self._integer(1)) for wave in (ops.cos, ops.sin))

    def _causal(self) -> None:
        """What is added to the scores: [batch, 1, tokens, all tokens]."""
        ops, zero = self._ops, self._integer(0)
        total = ops.squeeze(self._size(self._inputs["attention_mask"], 1))
        keys = ops.unsqueeze(ops.range(zero, total, self._integer(1), "i64"), self._integers(0, 1, 2))
        seen = ops.less_equal(keys, ops.unsqueeze(self._inputs["position_ids"], self._integers(1, 3)))
        self._mask = ops.select(seen, self._number(0), self._number(-65504))

    def _operation(self, operation: Operation, prefix: str, layer: int) -> None:
        write: Mapping[str, Callable[[Any], None]] = {
            Norm.KIND: lambda norm: self._norm(norm, prefix),
            Linear.KIND: lambda linear: self._linear(linear, prefix),
            Attention.KIND: lambda attention: self._attention(attention, prefix, layer),
            GLU.KIND: self._swiglu,
        }
        write[operation.KIND](operation)

    def _swiglu(self, swiglu: GLU) -> None:
        gate, up = self._buffers[swiglu.reads]
        self._buffers[swiglu.writes] = [self._ops.multiply(self._ops.swish(gate), up)]

    def _norm(self, norm: Norm, prefix: str) -> None:
        self._buffers[norm.writes] = [self._rms(self._buffers[norm.reads][0], norm.gain, prefix, norm.eps)]

    def _rms(self, x: Any, gain: Gain, prefix: str, eps: float) -> Any:
        ops = self._ops
        mean = ops.reduce_mean(ops.power(x, self._number(2)), self._integers(-1), True)
        normed = ops.multiply(x, ops.divide(self._number(1), ops.sqrt(ops.add(mean, self._number(eps)))))
        return ops.multiply(normed, self._vector(prefix + gain.source, gain.size))

    def _linear(self, linear: Linear, prefix: str) -> None:
        """Every part is a product of its own."""
        ops, (x,) = self._ops, self._buffers[linear.reads]
        products = []
        for part in linear.sources:
            name = prefix + part.source
            product = ops.matmul(x, self._matrix(f"{name}.weight", part.count, linear.columns, self._bits), False, True)
            if linear.bias:
                product = ops.add(product, self._vector(f"{name}.bias", part.count))
            products.append(product)
        if linear.adds:
            products = [ops.add(self._buffers[linear.adds][0], *products)]
        self._buffers[linear.writes] = products

    def _attention(self, attention: Attention, prefix: str, layer: int) -> None:
        ops, dim = self._ops, attention.head_dim
        q, k, v = (ops.reshape(x, self._integers(0, 0, -1, dim), True) for x in self._buffers[attention.reads])
        if attention.q_norm and attention.k_norm:
            q, k = (self._rms(x, gain, prefix, attention.eps) for x, gain in ((q, attention.q_norm), (k, attention.k_norm)))
        q, k, v = (ops.transpose(x, self._integers(0, 2, 1, 3)) for x in (q, k, v))
        keys = self._with_past(f"past_key_values.{layer}.key", self._rotated(k, dim), attention)
        values = self._with_past(f"past_key_values.{layer}.value", v, attention)
        attended = ops.scaled_dot_product_attention(self._rotated(q, dim), keys, values, self._mask)
        attended = ops.transpose(attended, self._integers(0, 2, 1, 3))
        self._buffers[attention.writes] = [ops.reshape(attended, self._integers(0, 0, attention.q_size), True)]

    def _rotated(self, x: Any, dim: int) -> Any:
        ops = self._ops
        first, second = (self._channels(x, start, start + dim // 2) for start in (0, dim // 2))
        turned = ops.concat([ops.multiply(second, self._number(-1)), first], -1)
        return ops.add(ops.multiply(x, self._cos), ops.multiply(turned, self._sin))

    def _channels(self, x: Any, start: int, end: int) -> Any:
        return self._ops.slice(x, *(self._integers(value) for value in (start, end, 1, 3)))

    def _with_past(self, name: str, x: Any, attention: Attention) -> Any:
        """All keys or values of a layer so far, for every query head: the state, with those of ``x`` behind it."""
        ops, util, heads, dim = self._ops, self._api.op.util, attention.kv_heads, attention.head_dim
        info = util.VariableInfo()
        info.variable_id, info.data_type = name, self._api.Type.f32
        info.data_shape = self._api.PartialShape([-1, heads, -1, dim])
        variable = util.Variable(info)
        empty = ops.broadcast(self._number(0), ops.concat([self._batch, self._integers(heads, 0, dim)], 0))
        past = ops.gather(self._api.op.read_value(empty, variable), self._inputs["beam_idx"], self._integer(0))
        every = ops.concat([past, x], -2)
        self._assigned.append(self._api.op.assign(every, variable))
        share = attention.heads // heads
        if share == 1:
            return every
        shape = ops.concat([self._batch, self._integers(heads, share), self._size(every, 2), self._integers(dim)], 0)
        repeated = ops.broadcast(ops.unsqueeze(every, self._integer(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(repeated, self._integers(0, attention.heads, -1, dim), True)

    def _matrix(self, name: str, rows: int, columns: int, bits: int) -> Any:
        """A compressed weight, as float32 [rows, columns]."""
        ops, group = self._ops, GROUP if bits == 4 else columns
        blocks = random_blocks(name, rows, columns, bits, group)
        shape = (rows, columns // group, group) if bits == 4 else (rows, columns)
        codes = self._packed(blocks.codes.reshape(shape), bits)
        scales = blocks.scales.reshape(*shape[:-1], 1).astype(np.float16)
        self.weight_bytes += blocks.codes.size * bits // 8 + scales.nbytes
        scaled = ops.multiply(ops.convert(codes, "f16"), self._constant(scales))
        if bits == 4:
            scaled = ops.reshape(scaled, self._integers(rows, columns), False)
        return ops.convert(scaled, "f32")

    def _packed(self, codes: np.ndarray, bits: int) -> Any:
        """4 bits: two to a byte, the first in the low half."""
        if bits == 8:
            return self._constant(codes)
        pairs = codes.reshape(-1, 2).view(np.uint8) & np.uint8(15)
        packed = pairs[:, 0] | pairs[:, 1] << 4
        return self._api.op.Constant(self._api.Tensor(packed, self._api.Shape(codes.shape), self._api.Type.i4), False)

    def _vector(self, name: str, size: int) -> Any:
        vector = random_vector(name, size)
        self.weight_bytes += vector.nbytes
        return self._constant(vector.reshape(1, 1, -1))

    def _size(self, x: Any, axis: int) -> Any:
        return self._ops.gather(self._ops.shape_of(x, "i64"), self._integers(axis), self._integer(0))

    def _number(self, value: float) -> Any:
        return self._constant(np.array(value, np.float32))

    def _integers(self, *values: int) -> Any:
        return self._constant(np.array(values, np.int64))

    def _integer(self, value: int) -> Any:
        return self._constant(np.array(value, np.int64))

    def _constant(self, array: np.ndarray) -> Any:
        return self._api.op.Constant(np.asarray(array, order="C"))


def _frequency(attention: Attention) -> np.ndarray:
    """Radians per position, float32 [head_dim / 2]."""
    cos, sin = rope_tables(attention.rope, 2)
    return np.arctan2(sin[1], cos[1])
