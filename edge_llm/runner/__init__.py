"""Tokens of one or many sequences to logits, as tasks for the scheduler."""
