"""Measure: speed (`speed`), quality against the float path (`quality`), and how to print it (`report`)."""
