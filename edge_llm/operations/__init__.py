"""What a decoder layer is made of: one file per kind of operation, and the layer that puts them in order.

A file of a kind holds all that is known of it: its fields, the buffers that it reads and writes and how wide they are, its
tensors, its float reference and the way back through it, its calls on the host, and which channels can be folded in it.
Whoever walks a layer asks its operations (`edge_llm.operations.base.Operation`); nobody asks what kind they are.
"""
