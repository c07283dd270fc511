"""Compiled models (OM files) on a chip through pyACL, the Python package of CANN: the one module that calls it.

Nothing here ran on a chip by us.  Sources, as tags in the comments:
[py] "pyACL API reference" of CANN 8.0 to 9.0, hiascend.com, aclpythondevg_01_*; [c] the same of the C calls behind it,
aclcppdevg_03_*; [src] Ascend/samples, python/common/acllite/acllite_model.py and acllite_resource.py; [recall] from memory.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from edge_llm.errors import DeviceError, DeviceLost
from edge_llm.files import shown

DEVICE = 0  # the first of ASCEND_RT_VISIBLE_DEVICES; a board has one
REPEATED = 100002  # [recall] ACL_ERROR_REPEAT_INITIALIZE: torch_npu has done it, or we before a failure
HUGE_PAGES_FIRST = 0  # [src] ACL_MEM_MALLOC_HUGE_FIRST
TO_DEVICE, TO_HOST = 1, 2  # [py] memcpy finds the direction out by itself, on boards as well, and takes these as they are
BY_SYSTEM = 0  # [py] load_from_file_with_mem: memory that is 0 is the system's affair


@dataclass(frozen=True)
class Compiled:
    """A file with a model, and bytes: of its input and its output, and what it takes on the chip."""

    path: Path
    input: int
    output: int
    workspace: int
    weights: int


class Chip:
    """The chip of this process; open it with `open_chip`."""

    def __init__(self) -> None:
        self.acl = _pyacl()
        code = self.acl.init()
        if code != REPEATED:
            self._check(code, "acl.init")
        self._check(self.acl.rt.set_device(DEVICE), "acl.rt.set_device")
        context, code = self.acl.rt.create_context(DEVICE)
        self._check(code, "acl.rt.create_context")
        self.context: int = context
        self.name = str(self.acl.get_soc_name())
        """Such as Ascend310B4."""
        weakref.finalize(self, _leave, self.acl, context)

    def look_at(self, path: Path, taken: int, given: int) -> Compiled:
        """The model at ``path``, which takes and gives so many bytes.  Raises `DeviceError` for what is none."""
        workspace, weights, code = self.acl.mdl.query_size(str(path))
        if code:
            raise DeviceError(f"`{shown(path)}` is no model that {self.name} takes: {self.reason(code)}; compile it again")
        return Compiled(path, taken, given, workspace, weights)

    def enter(self) -> None:
        """Let the calling thread use the chip: loading, running and unloading are of one context [c]."""
        self._check(self.acl.rt.set_context(self.context), "acl.rt.set_context")

    def reason(self, code: int) -> str:
        """What went wrong, by the ``code`` that a call gave."""
        said = str(self.acl.get_recent_err_msg() or "").strip()  # [py] once after each failure, or they pile up
        return f"pyACL's code {code}" + (f", {shown(said.splitlines()[0])}" if said else "")

    def _check(self, code: int, call: str) -> None:
        if code:
            raise DeviceError(f"the chip cannot be used: {call} failed with {self.reason(code)}; does `npu-smi info` show it?")


@functools.cache
def open_chip() -> Chip:
    """The chip of this machine, one for the process.  Raises `DeviceError` when it cannot be used, with the remedy."""
    return Chip()


def _pyacl() -> Any:
    try:
        return import_module("acl")
    except ImportError as missing:  # also where a library of CANN's is missing
        raise DeviceError(
            f"OM files need pyACL, the package `acl`, which cannot be imported: {missing}; it comes with CANN's toolkit: "
            "`source /usr/local/Ascend/cann/set_env.sh` (before CANN 8.5: /usr/local/Ascend/ascend-toolkit/set_env.sh)"
        ) from None


def _leave(acl: Any, context: int) -> None:
    """At the end of the process, after all models are gone [src]."""
    acl.rt.destroy_context(context)
    acl.rt.reset_device(DEVICE)
    acl.finalize()


@dataclass(frozen=True)
class Model:
    """A loaded model of one input and one output."""

    models: Models
    path: Path
    number: int
    inputs: int
    outputs: int

    def run(self, rows: np.ndarray, product: np.ndarray) -> None:
        """``product`` of ``rows``, both contiguous and of the model's own types and shapes.

        Raises `DeviceLost`.
        """
        self.models.run(self, rows, product)


class Models:
    """Models on ``chip`` that run one after the other, and so share a workspace, an input and an output.

    All of it is given back when nobody has a model of them any more.  ``who`` is what messages call the device.
    """

    def __init__(self, chip: Chip, who: str) -> None:
        self._chip = chip
        self._acl = chip.acl
        self._who = who
        self._held = ExitStack()
        self._running = Lock()
        self._workspace = self._input = self._output = BY_SYSTEM
        weakref.finalize(self, _give_back, chip, self._held)
        chip.enter()

    def load(self, files: Sequence[Compiled]) -> list[Model]:
        """The models in ``files``; called once.

        Raises `DeviceError` for one that the chip does not take, and when there is no room.
        """
        taken, given, workspace = shared_bytes(files)
        self._input, self._output = self._malloc(taken), self._malloc(given)
        self._workspace = self._malloc(workspace) if workspace else BY_SYSTEM
        return [self._load(file, workspace) for file in files]

    def run(self, model: Model, rows: np.ndarray, product: np.ndarray) -> None:
        """As `Model.run`."""
        mdl, rt = self._acl.mdl, self._acl.rt
        with self._running:
            self._done(rt.set_context(self._chip.context), "acl.rt.set_context")
            self._done(rt.memcpy(self._input, rows.nbytes, rows.ctypes.data, rows.nbytes, TO_DEVICE), "acl.rt.memcpy")
            self._done(mdl.execute(model.number, model.inputs, model.outputs), f"acl.mdl.execute of `{model.path.name}`")
            self._done(rt.memcpy(product.ctypes.data, product.nbytes, self._output, product.nbytes, TO_HOST), "acl.rt.memcpy")

    def _load(self, file: Compiled, workspace: int) -> Model:
        mdl, path = self._acl.mdl, file.path
        # [py] models that run in series may share a workspace as large as the largest of them
        number, code = mdl.load_from_file_with_mem(str(path), self._workspace, workspace, BY_SYSTEM, BY_SYSTEM)
        if code:
            raise DeviceError(
                f"{self._chip.name} does not load `{shown(path)}`: {self._chip.reason(code)}; it was compiled for another "
                f"chip (`SOC={self._chip.name} sh atc.sh` compiles for this one), or there is no room for its {file.weights} "
                "bytes: compile fewer numbers of rows, or use --device host"
            )
        self._held.callback(mdl.unload, number)
        self._check_sizes(file, number)
        return Model(self, path, number, self._dataset(self._input, file.input), self._dataset(self._output, file.output))

    def _check_sizes(self, file: Compiled, number: int) -> None:
        mdl, path = self._acl.mdl, file.path
        description = mdl.create_desc()
        try:
            code = mdl.get_desc(description, number)
            if code:
                raise DeviceError(f"`{shown(path)}` does not say what it takes: {self._chip.reason(code)}; compile it again")
            found = mdl.get_input_size_by_index(description, 0), mdl.get_output_size_by_index(description, 0)
        finally:
            mdl.destroy_desc(description)
        if found != (file.input, file.output):
            raise DeviceError(
                f"`{shown(path)}` takes {found[0]} bytes and gives {found[1]}, and the export's graph takes {file.input} and "
                f"gives {file.output}: it was compiled from another one; compile it again"
            )

    def _malloc(self, size: int) -> int:
        address, code = self._acl.rt.malloc(size, HUGE_PAGES_FIRST)
        if code:
            raise DeviceError(f"{self._chip.name} has no room for {size} bytes: {self._chip.reason(code)}; --device host")
        self._held.callback(self._acl.rt.free, address)
        return int(address)

    def _dataset(self, address: int, size: int) -> int:
        buffer = self._acl.create_data_buffer(address, size)
        self._held.callback(self._acl.destroy_data_buffer, buffer)
        dataset = self._acl.mdl.create_dataset()
        self._held.callback(self._acl.mdl.destroy_dataset, dataset)
        _, code = self._acl.mdl.add_dataset_buffer(dataset, buffer)
        if code:
            raise DeviceError(f"acl.mdl.add_dataset_buffer failed with {self._chip.reason(code)}; --device host does without")
        return int(dataset)

    def _done(self, code: int, call: str) -> None:
        if code:
            raise DeviceLost(self._who, f"{call} failed with {self._chip.reason(code)}")


def shared_bytes(files: Sequence[Compiled]) -> tuple[int, int, int]:
    """Bytes of the input, the output and the workspace that the models in ``files`` share: each of the largest."""
    return max(one.input for one in files), max(one.output for one in files), max(one.workspace for one in files)


def _give_back(chip: Chip, held: ExitStack) -> None:
    """The latest first; in whatever state the chip is, so what it says of it is not asked."""
    chip.acl.rt.set_context(chip.context)
    held.close()
