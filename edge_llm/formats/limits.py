"""Bounds of what files may say of a model."""

MAX_LAYERS = 4096
MOST = 2**31 - 1
"""Of any whole number."""
MAX_WEIGHT = 1e15
"""Largest weight; products of two still have room in float32."""
