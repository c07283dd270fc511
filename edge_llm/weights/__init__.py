"""Weights in memory or on flash; the runner asks for a layer and does not know where it lies."""
