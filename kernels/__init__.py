"""Kernels of edge-llm: arrays in, arrays out.

This is a part of the edge-llm distribution (not the `kernels` project on PyPI). It knows numbers, not purpose: no configs, no
requests, no devices. Every kernel exists twice: in NumPy in `kernels.reference`, which defines what is correct, and in the
native library `kernels._native`, which must give the same bits on every instruction set, at any thread count and for any
number of rows at once.

    pool = kernels.ThreadPool(4)
    tiles = kernels.layout.pack_tiles(weight)
"""

from edge_llm.kernels._native import LowRank, ThreadPool, emulated_isas, isa, isa_refusal, isa_variants, use_isa

__all__ = ["LowRank", "ThreadPool", "emulated_isas", "isa", "isa_refusal", "isa_variants", "use_isa"]
