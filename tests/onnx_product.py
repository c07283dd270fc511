"""Runs one ONNX file in a process of its own, which may be emulated: needs nothing of edge-llm.

    python onnx_product.py GRAPH ARRAYS.npz RESULT.npy

ARRAYS has the inputs and the initializers; it says on stdout whether uint8 rows and int8 weights saturate here.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, load


def session(graph, initializers, *, x64="0", how="add_external_initializers"):
    """A session of ``graph`` (a path, or bytes) on the CPU with ``initializers`` by their names."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", x64)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in initializers.items()}
    if how == "add_external_initializers" and values:
        options.add_external_initializers(list(values), list(values.values()))
    elif how == "add_initializer":
        for name, value in values.items():
            options.add_initializer(name, value)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def saturates():
    """Whether this CPU has no VNNI, so that onnxruntime's product of uint8 and int8 is not exact."""
    shapes = {"a": (TensorProto.UINT8, [4, 64]), "b": (TensorProto.INT8, [64, 16])}
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in shapes.items()]
    outputs = [helper.make_tensor_value_info("c", TensorProto.INT32, [4, 16])]
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["c"])], "probe", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    a, b = np.full((4, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    found = session(model.SerializeToString(), {}).run(None, {"a": a, "b": b})[0]
    return bool((found != 64 * 255 * 127).any())


if __name__ == "__main__":
    arrays = dict(np.load(sys.argv[2]))
    inputs = {one.name: arrays.pop(one.name) for one in load(sys.argv[1], load_external_data=False).graph.input}
    results = [session(sys.argv[1], arrays, x64=x64).run(None, inputs)[0] for x64 in "01"]
    np.save(sys.argv[3], np.stack(results))
    print("saturates" if saturates() else "exact")
