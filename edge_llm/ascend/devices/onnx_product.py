"""INT8 products as ONNX graphs: what all of them are made of, and those that onnxruntime's CPU provider runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from edge_llm.errors import DeviceError, EdgeLLMError
from edge_llm.extras import install_extra
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.schemes.int8_weight import Int8Weight

OPSET = 13
"""The oldest that has all operators in the form used here: most runtimes know it."""
IR_VERSION = 7
"""Of ONNX files with that opset."""
ROWS, PRODUCT = "rows", "product"
"""Input and output of every graph."""

ZERO = 128
"""What stands for 0 in a uint8."""
_ZERO_POINT = "zero_point"


def onnx_package(name: str = "onnx", *, error: type[EdgeLLMError] = DeviceError) -> ModuleType:
    """The package `onnx` or `onnxruntime`, which is loaded where it is needed.  Raises ``error`` if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        raise error(
            f"ONNX graphs need the package `{missing.name or name}`, which is not installed; "
            f"`pip install onnx onnxruntime` adds it, or {install_extra('onnx')}"
        ) from None


def scaled_product(onnx: ModuleType, operands: Sequence[str], *, with_bias: bool) -> Iterator[Any]:
    """The nodes of ``float32(product of operands) * scale (+ bias)``, each rounded once.

    No quantize and dequantize pairs: a runtime would fold them into sums of floats, which differ.
    """
    scaled = "scaled" if with_bias else PRODUCT
    yield onnx.helper.make_node("MatMulInteger", operands, ["sums"])
    yield onnx.helper.make_node("Cast", ["sums"], ["float_sums"], to=onnx.TensorProto.FLOAT)
    yield onnx.helper.make_node("Mul", ["float_sums", "scale"], [scaled])
    if with_bias:
        yield onnx.helper.make_node("Add", [scaled, "bias"], [PRODUCT])


def unsigned(values: np.ndarray, out: np.ndarray) -> np.ndarray:
    """int8 ``values`` + `ZERO` as uint8, in ``out``."""
    return np.bitwise_xor(values.view(np.uint8), np.uint8(ZERO), out=out)


def operands_of(weight: Int8Weight, weight_out: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """What a `Session` multiplies with, by its names and in memory of its own: the matrix uint8 [K, N] in ``weight_out``."""
    matrix = np.empty((weight.columns, weight.rows), np.uint8) if weight_out is None else weight_out
    unsigned(unpack_tiles(weight.tiles, weight.rows, weight.columns).T, matrix)
    operands = {"weight": matrix, "scale": weight.product_scale}
    return operands if weight.bias is None else {**operands, "bias": weight.bias.copy()}


def operand_bytes(columns: int, outputs: int) -> int:
    """Memory of the operands of a product, scale and bias as large as they may be."""
    return columns * outputs + 2 * 4 * outputs


class Session:
    """A static product of ``rows`` rows on onnxruntime's CPU provider: all linears of one shape share it.

    Rows and weights are uint8 around `ZERO`, which onnxruntime multiplies exactly on every CPU: the sums that saturate where
    there is no VNNI are of uint8 and int8, and its kernel for int8 and int8 takes five times as long.  The first of ``cores``
    is the caller's; the others are bound to one thread each.
    """

    def __init__(self, rows: int, columns: int, outputs: int, *, with_bias: bool, cores: Sequence[int]) -> None:
        graph = _graph(rows, columns, outputs, with_bias=with_bias)
        self._refused = f"onnxruntime refused the product [{rows}, {columns}] @ [{columns}, {outputs}]"
        onnxruntime = onnx_package("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # what goes wrong is raised
        options.enable_cpu_mem_arena = False  # as many arenas as sessions would each keep the largest product
        options.intra_op_num_threads = len(cores)
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # nothing to fuse: bits count
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the CPU's lane has work as well
        if len(cores) > 1:  # it counts processors from 1
            bound = ";".join(str(core + 1) for core in cores[1:])
            options.add_session_config_entry("session.intra_op_thread_affinities", bound)
        try:
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's have no base of their own
            raise self._failure(error) from None

    def run(self, rows: np.ndarray, operands: Mapping[str, np.ndarray]) -> np.ndarray:
        """float32 [rows, N] of uint8 ``rows`` [rows, K] and the `operands_of` a linear.  Raises `DeviceError`."""
        try:
            product: np.ndarray = self._session.run((PRODUCT,), {ROWS: rows, **operands})[0]
        except Exception as error:
            raise self._failure(error) from None
        return product

    def _failure(self, error: Exception) -> DeviceError:
        return DeviceError(f"{self._refused}: {str(error).partition(chr(10))[0]}")


def _graph(rows: int, columns: int, outputs: int, *, with_bias: bool) -> bytes:
    onnx = onnx_package()
    tensor, value_info = onnx.TensorProto, onnx.helper.make_tensor_value_info
    inputs = [
        value_info(ROWS, tensor.UINT8, [rows, columns]),
        value_info("weight", tensor.UINT8, [columns, outputs]),
        *(value_info(name, tensor.FLOAT, [outputs]) for name in ("scale", "bias")[: 2 if with_bias else 1]),
    ]
    nodes = scaled_product(onnx, [ROWS, "weight", _ZERO_POINT, _ZERO_POINT], with_bias=with_bias)
    zero_point = onnx.helper.make_tensor(_ZERO_POINT, tensor.UINT8, [], [ZERO])
    results = [value_info(PRODUCT, tensor.FLOAT, [rows, outputs])]
    graph = onnx.helper.make_graph(list(nodes), "product", inputs, results, [zero_point])
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    return bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString())
