"""Bounds of what a manifest may say of a model."""

MAX_LAYERS = 4096
MOST = 2**31 - 1
"""Of any whole number."""
