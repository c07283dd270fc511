"""All that is for Ascend cards: leave it out, and a host runs every model.

`npu/` is what is known of cards and how one is called, `devices/` are the devices that need one or stand for one (a card, an
emulated chip, compiled and ONNX products), `selftest/` tries a card, `export/` writes products for other runtimes.
"""
