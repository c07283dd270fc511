"""ONNX models with random weights at a real shape, as onnxruntime-genai's own builder lays them out for a CPU.

INT4 or INT8 in blocks of 32 with a float32 scale (`MatMulNBits`, accuracy level 4: activations become INT8), queries, keys and
values in one product, `GroupQueryAttention` over float32 keys and values, logits of the last token only.  An embedding that is
the output matrix too is kept once, in blocks (needs the `onnx` package).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.peer_model import PeerModel, WeightBytes, require_blocks, written_once
from edge_llm.bench.random_weights import Blocks, random_blocks, random_vector
from edge_llm.config import LlamaConfig
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import rope_tables
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import Gain, Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.norm import Norm

VARIANTS = ("int4", "int8")
BLOCK = 32
ACCURACY_LEVEL = 4
"""Of the products: 4 rounds activations to INT8 and is the builder's choice for a CPU; 0 leaves them in float32."""
_DATA = "model.onnx.data"
_ALIGNMENT = 4096
_MICROSOFT = "com.microsoft"


def synthetic_onnx(config: LlamaConfig, variant: str) -> PeerModel:
    """The model at the shape of ``config``; made once and kept."""
    require_blocks(config, BLOCK, "genai")
    folder = written_once(config, variant, "onnx", write_onnx)
    size = sum((folder / name).stat().st_size for name in ("model.onnx", _DATA))
    return PeerModel({"folder": str(folder)}, folder.name, variant.upper(), size, partial(WeightBytes.noted, folder), "f32", 4)


def write_onnx(folder: Path, config: LlamaConfig, variant: str, accuracy_level: int = ACCURACY_LEVEL) -> None:
    """Fill the empty ``folder``."""
    with (folder / _DATA).open("wb") as data:
        graph = _Graph(data, int(variant.removeprefix("int")), accuracy_level)
        graph.decoder(describe(config), config.context)
    (folder / "model.onnx").write_bytes(graph.model().SerializeToString())
    (folder / "genai_config.json").write_text(json.dumps(_genai_config(config), indent=1))
    WeightBytes(graph.weight_bytes, graph.weight_bytes - graph.unread_bytes).write(folder)


def _genai_config(config: LlamaConfig) -> dict[str, Any]:
    return {
        "model": {
            "type": config.family,
            "vocab_size": config.vocab_size,
            "context_length": config.context,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "decoder": {
                "filename": "model.onnx",
                "session_options": {"provider_options": []},
                "head_size": config.head_dim,
                "hidden_size": config.hidden_size,
                "num_attention_heads": config.num_heads,
                "num_hidden_layers": config.num_layers,
                "num_key_value_heads": config.num_kv_heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"max_length": config.context, "past_present_share_buffer": True},
    }


class _Graph:
    """Nodes of the model as they are added, after its description; big tensors go to the file ``data`` at once."""

    def __init__(self, data: Any, bits: int, accuracy_level: int) -> None:
        import onnx

        self._onnx = onnx
        self._named = 0
        self._data = data
        self._bits = bits
        self._accuracy_level = accuracy_level
        self._nodes: list[Any] = []
        self._tensors: dict[str, Any] = {}
        sizes = {"input_ids": "tokens", "attention_mask": "all"}
        self._inputs = [self._value(name, np.int64, "batch", size) for name, size in sizes.items()]
        self._outputs: list[Any] = []
        self._buffers: dict[str, list[str]] = {}
        self._added: dict[str, str] = {}
        """Products that are still to be added to a buffer: the norm that reads it does."""
        self.weight_bytes = self.unread_bytes = 0

    def decoder(self, decoder: Decoder, positions: int) -> None:
        """The whole model, with room for ``positions`` tokens of context."""
        self._lengths()
        cos, sin = rope_tables(decoder.attentions[0].rope, positions)
        self._tensor("cos", cos)
        self._tensor("sin", sin)
        self._embedding(decoder)
        for index, layer in enumerate(decoder.layers):
            for operation in layer.operations:
                self._operation(operation, layer, index)
        self._norm(decoder.norm, "")
        last = self._node("Gather", [self._buffers["normed"][0], self._tensor("minus_one", np.array(-1))], axis=1)
        last = self._node("Unsqueeze", [last, self._tensor("one", np.array([1]))])
        table = decoder.embedding.source if decoder.tied else f"{decoder.output.sources[0].source}.weight"
        blocks = random_blocks(table, decoder.vocab_size, decoder.hidden_size, self._bits, BLOCK)
        self._product(last, blocks, table, "logits")
        self._outputs.insert(0, self._value("logits", np.float32, "batch", 1, decoder.vocab_size))

    def model(self) -> Any:
        """What `decoder` made."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, list(self._tensors.values()))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _lengths(self) -> None:
        """What attention wants to know: tokens before the last one, and tokens in all."""
        one = self._tensor("one", np.array([1]))
        total = self._node("ReduceSum", ["attention_mask", one], keepdims=0)
        self._cast(self._node("Sub", [total, one]), "seqlens_k")
        shape = self._node("Shape", ["attention_mask"])
        self._cast(self._node("Gather", [shape, self._tensor("one_alone", np.array(1))], axis=0), "total_length")

    def _embedding(self, decoder: Decoder) -> None:
        name, rows, columns = decoder.embedding.source, decoder.vocab_size, decoder.hidden_size
        if decoder.tied and self._bits == 4:
            codes, scales = self._blocks(name, random_blocks(name, rows, columns, self._bits, BLOCK))
            flat = self._node("Reshape", [codes, self._tensor("flat", np.array([rows, columns // 2]))])
            hidden = self._node(
                "GatherBlockQuantized",
                [flat, "input_ids", scales],
                domain=_MICROSOFT,
                bits=4,
                block_size=BLOCK,
                gather_axis=0,
                quantize_axis=1,
            )
        else:
            values = random_blocks(name, rows, columns, self._bits, BLOCK).values
            self.unread_bytes += values.nbytes
            hidden = self._node("Gather", [self._weight(f"{name}.float32", values), "input_ids"])
        self._buffers[decoder.embedding.writes] = [hidden]

    def _operation(self, operation: Operation, layer: Layer, index: int) -> None:
        write: Mapping[str, Callable[[Any], None]] = {
            Norm.KIND: lambda norm: self._norm(norm, layer.prefix),
            Linear.KIND: lambda linear: self._linear(linear, layer),
            Attention.KIND: lambda attention: self._attention(attention, layer.prefix, index),
            GLU.KIND: self._swiglu,
        }
        write[operation.KIND](operation)

    def _swiglu(self, swiglu: GLU) -> None:
        gate, up = self._buffers[swiglu.reads]
        activated = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
        self._buffers[swiglu.writes] = [self._node("Mul", [activated, up])]

    def _norm(self, norm: Norm, prefix: str) -> None:
        (x,), gain = self._buffers[norm.reads], self._vector(prefix + norm.gain.source, norm.gain.size)
        if norm.reads not in self._added:
            self._buffers[norm.writes] = [self._rms(x, gain, norm.eps)]
            return
        outputs = [self._new(), "", "", self._new()]
        inputs = [x, self._added.pop(norm.reads), gain]
        self._node("SkipSimplifiedLayerNormalization", inputs, outputs, domain=_MICROSOFT, epsilon=norm.eps)
        self._buffers |= {norm.writes: outputs[:1], norm.reads: outputs[3:]}

    def _rms(self, x: str, gain: str, eps: float) -> str:
        return self._node("SimplifiedLayerNormalization", [x, gain], epsilon=eps, axis=-1, stash_type=1)

    def _linear(self, linear: Linear, layer: Layer) -> None:
        """What attention reads is one product; gate and up are a product each."""
        (x,), together = self._buffers[linear.reads], linear.writes == layer.attention.reads
        groups = [linear.sources] if together else [(part,) for part in linear.sources]
        products = [self._product_of(x, group, linear, layer.prefix) for group in groups]
        if linear.adds:
            (self._added[linear.adds],) = products
        else:
            self._buffers[linear.writes] = products

    def _product_of(self, x: str, parts: Sequence[SourceRows], linear: Linear, prefix: str) -> str:
        name, columns, bits = prefix + parts[0].source, linear.columns, self._bits
        blocks = [random_blocks(f"{prefix}{part.source}.weight", part.count, columns, bits, BLOCK) for part in parts]
        product = self._product(x, Blocks.stacked(blocks), f"{name}.weight")
        if not linear.bias:
            return product
        bias = np.concatenate([random_vector(f"{prefix}{part.source}.bias", part.count) for part in parts])
        return self._node("Add", [product, self._weight(f"{name}.bias", bias)])

    def _product(self, x: str, blocks: Blocks, name: str, output: str = "") -> str:
        rows, columns = blocks.codes.shape
        return self._node(
            "MatMulNBits",
            [x, *self._blocks(name, blocks)],
            [output or self._new()],
            domain=_MICROSOFT,
            K=columns,
            N=rows,
            bits=self._bits,
            block_size=BLOCK,
            accuracy_level=self._accuracy_level,
        )

    def _attention(self, attention: Attention, prefix: str, layer: int) -> None:
        qkv = [*self._buffers[attention.reads], "", ""]
        if attention.q_norm and attention.k_norm:
            sizes = np.array([attention.q_size, attention.kv_size, attention.kv_size])
            parts = [self._new() for _ in sizes]
            self._node("Split", [qkv[0], self._tensor("qkv_sizes", sizes)], parts, axis=-1)
            gains = [(attention.q_norm, attention.heads), (attention.k_norm, attention.kv_heads)]
            normed = [self._head_norm(x, prefix, *gain, attention) for x, gain in zip(parts, gains, strict=False)]
            qkv = [*normed, parts[2]]
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        heads, dim = attention.kv_heads, attention.head_dim
        self._inputs += [self._value(name, np.float32, "batch", heads, "past", dim) for name in past]
        self._outputs += [self._value(name, np.float32, "batch", heads, "all", dim) for name in present]
        attended = self._node(
            "GroupQueryAttention",
            [*qkv, *past, "seqlens_k", "total_length", "cos", "sin"],
            [self._new(), *present],
            domain=_MICROSOFT,
            num_heads=attention.heads,
            kv_num_heads=heads,
            scale=dim**-0.5,
            do_rotary=1,
            rotary_interleaved=0,
        )
        self._buffers[attention.writes] = [attended]

    def _head_norm(self, x: str, prefix: str, gain: Gain, heads: int, attention: Attention) -> str:
        apart = self._node("Reshape", [x, self._tensor(f"{heads}_heads", np.array([0, -1, heads, attention.head_dim]))])
        normed = self._rms(apart, self._vector(prefix + gain.source, gain.size), attention.eps)
        return self._node("Reshape", [normed, self._tensor(f"{heads}_together", np.array([0, -1, heads * attention.head_dim]))])

    def _node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attributes: Any) -> str:
        """Add a node; the name of its first result."""
        outputs = outputs or [self._new()]
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, outputs, f"{kind}_{len(self._nodes)}", **attributes))
        return outputs[0]

    def _cast(self, x: str, output: str) -> None:
        self._node("Cast", [x], [output], to=self._onnx.TensorProto.INT32)

    def _new(self) -> str:
        self._named += 1
        return f"value_{self._named}"

    def _value(self, name: str, kind: type, *shape: int | str) -> Any:
        helper = self._onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)

    def _vector(self, name: str, size: int) -> str:
        return self._weight(name, random_vector(name, size))

    def _blocks(self, name: str, blocks: Blocks) -> tuple[str, str]:
        """Codes are unsigned around the middle, two to a byte where they have 4 bits, the first in the low half."""
        rows, columns = blocks.codes.shape
        middle = np.uint8(1 << (blocks.bits - 1))
        codes: np.ndarray = (blocks.codes.view(np.uint8) + middle) & np.uint8(2 * int(middle) - 1)
        if blocks.bits == 4:
            codes = codes[:, ::2] | codes[:, 1::2] << 4
        codes = codes.reshape(rows, columns // BLOCK, BLOCK * blocks.bits // 8)
        return self._weight(f"{name}.codes", codes), self._weight(f"{name}.scales", blocks.scales)

    def _weight(self, name: str, array: np.ndarray) -> str:
        """A tensor in the data file, whose bytes are counted once."""
        if name not in self._tensors:
            self.weight_bytes += array.nbytes
            self._data.write(bytes(-self._data.tell() % _ALIGNMENT))
            tensor = self._onnx.TensorProto(
                name=name,
                dims=array.shape,
                data_type=self._onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
                data_location=self._onnx.TensorProto.EXTERNAL,
            )
            for key, value in (("location", _DATA), ("offset", self._data.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            self._data.write(np.ascontiguousarray(array).data)
            self._tensors[name] = tensor
        return name

    def _tensor(self, name: str, array: np.ndarray) -> str:
        """A constant in the graph itself."""
        if name not in self._tensors:
            self._tensors[name] = self._onnx.numpy_helper.from_array(array, name)
        return name
