"""A device holds arrays, builds static subgraphs, runs them, and counts its memory; a file of its own opens it.

A device is found by its name: the host by `host`, an emulated chip by `emulated:CHIP`, an Ascend card by
`ascend`, onnxruntime by `onnx`, compiled products by `om:FOLDER`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from edge_llm.devices.base import Device, DeviceOptions, no_device

OpenDevice = Callable[[str, DeviceOptions], Device]
"""``(name, options) -> device``; the name is all of what the user wrote."""


class _DeviceFile(Protocol):
    open_device: OpenDevice


_FILES = {
    "host": "edge_llm.devices.host",
    "emulated": "edge_llm.ascend.devices.emulated",
    "ascend": "edge_llm.ascend.devices.card.device",
    "onnx": "edge_llm.ascend.devices.onnx",
    "om": "edge_llm.ascend.devices.om",
}
"""Kinds of devices and the modules that have them, which are imported when a device is opened."""
_FORMS = {"host": "host", "emulated": "emulated:CHIP", "ascend": "ascend", "onnx": "onnx", "om": "om:FOLDER"}
_ADDED: dict[str, OpenDevice] = {}


def device_forms() -> tuple[str, ...]:
    """What a user can name, such as ``emulated:CHIP``."""
    return (*_FORMS.values(), *_ADDED)


def check_device(name: str) -> None:
    """Raises `UsageError` for a kind of device that this version does not have."""
    if name.partition(":")[0] not in (*_FILES, *_ADDED):
        raise no_device(name, f"this version runs on: {', '.join(device_forms())}")


def has_card(name: str) -> bool:
    """Whether the device ``name`` of this folder multiplies on a card, or stands for one that does."""
    return name.partition(":")[0] in _FILES.keys() - {"host"}


def open_device(name: str, options: DeviceOptions) -> Device:
    """The device ``name``.

    Raises `UsageError` for a device, chip or route that this version does not have and for options that it does not know what
    to do with, `DeviceError` for a device that is missing here.
    """
    check_device(name)
    kind = name.partition(":")[0]
    opener = _ADDED.get(kind) or cast(_DeviceFile, import_module(_FILES[kind])).open_device
    return opener(name, options)


def add_device(kind: str, opener: OpenDevice) -> None:
    """Have devices ``kind`` and ``kind:...`` opened by ``opener``, which is not a file of this folder."""
    _ADDED[kind] = opener
