"""llama.cpp's quantizer: ``python -m edge_llm.bench.quantize_gguf SOURCE TARGET TYPE``, as its tool `llama-quantize` is called.

Without an importance matrix.  Weights may be quantized already: the speed of a file does not depend on its values.
"""

from __future__ import annotations

import ctypes
import os
import sys


def quantize(source: str, target: str, quant: str) -> None:
    """Write ``target`` in the types that llama.cpp mixes for ``quant`` (such as q4_k_m); RuntimeError where it fails.

    With "-pure" behind it all matrices get the same type.
    """
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    kind, _, pure = quant.partition("-")
    params.ftype = getattr(llama_cpp, "LLAMA_FTYPE_ALL_F32" if kind == "f32" else f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.pure = bool(pure)
    params.allow_requantize = True
    params.nthread = len(os.sched_getaffinity(0))
    failed = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if failed:
        raise RuntimeError(f"llama_model_quantize returned {failed}")


if __name__ == "__main__":
    quantize(*sys.argv[1:])
