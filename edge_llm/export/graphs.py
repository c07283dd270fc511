"""The ONNX graph of an INT8 product of a static number of rows, without its weights."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from edge_llm.devices.onnx_product import IR_VERSION, OPSET, PRODUCT, ROWS, onnx_package, scaled_product
from edge_llm.export.initializers import Initializer, Product


def product_graph(name: str, length: int, product: Product, file: str) -> bytes:
    """The graph of ``float32(rows @ weight) * scale (+ bias)`` for ``length`` rows, exact up to the conversion to float32.

    file: where the ``product`` of its first layer lies, beside the graph.
    """
    onnx = onnx_package()
    columns, outputs = product[0].shape
    graph = onnx.helper.make_graph(
        list(scaled_product(onnx, [ROWS, "weight"], with_bias=len(product) == 3)),
        name,
        [onnx.helper.make_tensor_value_info(ROWS, onnx.TensorProto.INT8, [length, columns])],
        [onnx.helper.make_tensor_value_info(PRODUCT, onnx.TensorProto.FLOAT, [length, outputs])],
        [_external(onnx, initializer, file) for initializer in product],
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-llm")
    return bytes(model.SerializeToString(deterministic=True))


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
