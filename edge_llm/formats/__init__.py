"""Files become named tensors and plain dictionaries: safetensors folders and our own bundles.

Every reader here takes untrusted bytes: sizes are checked before anything is allocated or read, and whatever is
wrong raises an error of `edge_llm.errors` that names the file and the value.
"""
