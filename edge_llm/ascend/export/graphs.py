"""The ONNX graph of an INT8 product of a static number of rows, without its weights."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from edge_llm.ascend.devices.onnx_product import IR_VERSION, OPSET, PRODUCT, ROWS, onnx_package
from edge_llm.ascend.export.flavours import Flavour
from edge_llm.ascend.export.initializers import Initializer, Product


def product_graph(flavour: Flavour, name: str, rows: tuple[int, int], outputs: int, product: Product, file: str) -> bytes:
    """The graph of ``product`` for ``rows``, which are [length, columns].

    file: where the ``product`` of its first layer lies, beside the graph.
    """
    onnx = onnx_package()
    nodes = flavour.nodes(onnx, any(initializer.name == "bias" for initializer in product))
    graph = onnx.helper.make_graph(
        list(nodes),
        name,
        [_value(onnx, ROWS, flavour.rows, rows)],
        [_value(onnx, PRODUCT, flavour.product, (rows[0], outputs))],
        [_external(onnx, initializer, file) for initializer in product],
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-llm")
    return bytes(model.SerializeToString(deterministic=True))


def _value(onnx: ModuleType, name: str, dtype: str, shape: tuple[int, int]) -> Any:
    return onnx.helper.make_tensor_value_info(name, _type(onnx, dtype), shape)


def _type(onnx: ModuleType, dtype: str) -> Any:
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _external(onnx: ModuleType, initializer: Initializer, file: str) -> Any:
    tensor = onnx.TensorProto(
        name=initializer.name,
        data_type=_type(onnx, initializer.type),
        dims=initializer.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", file), ("offset", initializer.offset), ("length", initializer.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
