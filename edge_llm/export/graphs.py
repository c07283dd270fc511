"""The ONNX graph of an INT8 product of a static number of rows, without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from edge_llm.errors import UsageError
from edge_llm.export.initializers import Initializer, Product

OPSET = 13
"""The oldest that has all operators in the form used here: most runtimes know it."""
IR_VERSION = 7
"""Of ONNX files with that opset."""
ROWS, PRODUCT = "rows", "product"
"""Input and output of every graph."""


def onnx_package() -> ModuleType:
    """The package `onnx`, which is loaded where it is needed.  Raises `UsageError` when it is not installed."""
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise UsageError(
            f"ONNX graphs need the package `{error.name or 'onnx'}`, which is not installed; "
            "`pip install onnx onnxruntime` adds what the extra `onnx` has"
        ) from None
    module: ModuleType = onnx
    return module


def product_graph(name: str, length: int, product: Product, file: str) -> bytes:
    """The graph of ``float32(rows @ weight) * scale (+ bias)`` for ``length`` rows, exact up to the conversion to float32.

    file: where the ``product`` of its first layer lies, beside the graph.
    """
    onnx = onnx_package()
    columns, outputs = product[0].shape
    graph = onnx.helper.make_graph(
        list(_nodes(onnx, with_bias=len(product) == 3)),
        name,
        [onnx.helper.make_tensor_value_info(ROWS, onnx.TensorProto.INT8, [length, columns])],
        [onnx.helper.make_tensor_value_info(PRODUCT, onnx.TensorProto.FLOAT, [length, outputs])],
        [_external(onnx, initializer, file) for initializer in product],
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-llm")
    return bytes(model.SerializeToString(deterministic=True))


def _nodes(onnx: ModuleType, *, with_bias: bool) -> Iterator[Any]:
    """No quantize and dequantize pairs: a runtime would fold them into sums of floats, which differ."""
    scaled = "scaled" if with_bias else PRODUCT
    yield onnx.helper.make_node("MatMulInteger", [ROWS, "weight"], ["sums"])
    yield onnx.helper.make_node("Cast", ["sums"], ["float_sums"], to=onnx.TensorProto.FLOAT)
    yield onnx.helper.make_node("Mul", ["float_sums", "scale"], [scaled])
    if with_bias:
        yield onnx.helper.make_node("Add", [scaled, "bias"], [PRODUCT])


def _external(onnx: ModuleType, initializer: Initializer, file: str) -> Any:
    tensor = onnx.TensorProto(
        name=initializer.name,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(initializer.type)),
        dims=initializer.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", file), ("offset", initializer.offset), ("length", initializer.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
