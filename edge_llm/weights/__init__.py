"""Weights in memory, on flash, or on their way to a card; who asks for a layer does not know where it lies."""
