"""Data about numbers: how a weight becomes INT8, and which activations stand out.  Runs no model."""
