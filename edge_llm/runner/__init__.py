"""Tokens of one or many sequences to logits; the only package that imports the scheduler."""
