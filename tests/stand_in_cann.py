"""What stands for CANN: its operators in NumPy, its compiler `atc`, and pyACL, which runs what that compiler wrote."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Lock, local
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
reference = pytest.importorskip("onnx.reference")

# ---- the operators, as hicann/ops-nn documents them


class AscendQuant(reference.op_run.OpRun):  # type: ignore[name-defined, misc]
    """rint(x * scale + offset), saturated to INT8."""

    def _run(self, x: Any, scale: Any = None, offset: Any = None, round_mode: Any = None) -> Any:
        assert x.dtype == np.float16 and round_mode == "Round"
        return (np.clip(np.rint(x * np.float32(scale) + np.float32(offset)), -128, 127).astype(np.int8),)


class QuantBatchMatMul(reference.op_run.OpRun):  # type: ignore[name-defined, misc]
    """(x1 @ x2 + bias) * scale in float16; the third optional input, an offset, is absent."""

    def _run(
        self, x1: Any, x2: Any, scale: Any, offset: Any = None, bias: Any = None,
        dtype: Any = None, transpose_x1: Any = None, transpose_x2: Any = None,
    ) -> Any:  # fmt: skip
        assert (x1.dtype, x2.dtype, scale.dtype) == (np.int8, np.int8, np.uint64)
        assert offset is None and (bias is None or bias.dtype == np.int32)
        assert (dtype, transpose_x1, transpose_x2) == (1, 0, 1)
        assert ((scale >> np.uint64(32)) == 1 << 14).all() and not (scale & np.uint64(0x1FFF)).any()
        sums = x1.astype(np.int32) @ x2.T.astype(np.int32)
        return (dequantized(sums if bias is None else sums + bias, scale),)


class MatMul(reference.op_run.OpRun):  # type: ignore[name-defined, misc]
    """INT8 into int32."""

    def _run(self, a: Any, b: Any) -> Any:
        assert a.dtype == b.dtype == np.int8
        return (a.astype(np.int32) @ b.astype(np.int32),)


class AscendDequant(reference.op_run.OpRun):  # type: ignore[name-defined, misc]
    """x * deq_scale in float16."""

    def _run(self, x: Any, scale: Any, dtype: Any = None) -> Any:
        assert x.dtype == np.int32 and scale.dtype == np.uint64 and dtype == 1
        assert not (scale >> np.uint64(32)).any()
        return (dequantized(x, scale),)


def dequantized(sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    assert sums.dtype == np.int32
    values = sums.astype(np.float32) * (scale & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
    return np.clip(values, -65504, 65504).astype(np.float16)


NEW = [AscendQuant, QuantBatchMatMul, MatMul, AscendDequant]
for operator in NEW:
    operator.op_domain = ""


def evaluated(model: Any, rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = reference.ReferenceEvaluator(model, new_ops=NEW).run(None, {"rows": rows.astype(np.float16)})[0]
    return found


# ---- the compiler: it keeps what it was given, and its OM file says for which chip, and where that is


ATC = """#!/bin/sh
for argument in "$@"; do
  case $argument in
    --model=*) model=${argument#*=} ;; --output=*) output=${argument#*=} ;; --soc_version=*) soc=${argument#*=} ;;
  esac
done
kept="$KEPT/$(basename "$output")"
mkdir -p "$kept"
cp -r "$(dirname "$model")"/initializers "$model" "$kept"
echo "$@" >> "$KEPT/calls"
printf '%s\\n' "$soc" "$kept/$(basename "$model")" > "$output.om"
"""


def compiled(exported: Path, kept: Path, *arguments: str, **environment: str) -> list[str]:
    """The calls of `atc`."""
    kept.mkdir(parents=True)
    atc = kept / "bin" / "atc"
    atc.parent.mkdir()
    atc.write_text(ATC)
    atc.chmod(0o755)
    path = f"{atc.parent}:{os.environ['PATH']}"
    command = ["sh", str(exported / "atc.sh"), *arguments]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path, "KEPT": str(kept), **environment}, cwd="/")
    assert not (exported / "om" / "work").exists()
    return (kept / "calls").read_text().splitlines()


# ---- pyACL


OTHER_CHIP, BROKEN = 145011, 507011
WORKSPACE = 4096


class PyAcl:
    """The package `acl` on a board with the chip ``soc``; it asserts what the documentation asks of its callers."""

    def __init__(self, soc: str = "Ascend310B4") -> None:
        self.soc = soc
        self.held: dict[int, Any] = {}
        """By handle: contexts, memory, models, descriptions, buffers and datasets."""
        self.executed: list[str] = []
        """Files of the models that ran."""
        self.fails_after: int | None = None
        """Executions, after which all fail."""
        self.starts = 0
        self._numbers = count(1)
        self._message = ""
        self._thread = local()
        self._running = Lock()
        self._graphs: dict[str, Any] = {}
        self.rt = SimpleNamespace(
            set_device=lambda device: int(device != 0),
            reset_device=lambda device: int(device != 0),
            create_context=self._create_context,
            set_context=self._set_context,
            destroy_context=self._destroy,
            malloc=self._malloc,
            free=self._in_context(self._destroy),
            memcpy=self._in_context(self._memcpy),
        )
        self.mdl = SimpleNamespace(
            query_size=self._query_size,
            load_from_file_with_mem=self._in_context(self._load),
            unload=self._in_context(self._destroy),
            create_desc=lambda: self._hold({}),
            get_desc=self._get_desc,
            destroy_desc=self._destroy,
            get_input_size_by_index=lambda number, index: self.held[number]["sizes"][0][index],
            get_output_size_by_index=lambda number, index: self.held[number]["sizes"][1][index],
            create_dataset=lambda: self._hold([]),
            add_dataset_buffer=self._add_buffer,
            destroy_dataset=self._destroy,
            execute=self._in_context(self._execute),
        )

    @property
    def in_use(self) -> int:
        """Handles that nobody gave back, but for the process's context."""
        return sum(not isinstance(value, str) for value in self.held.values())

    def init(self) -> int:
        self.starts += 1
        return 0 if self.starts == 1 else 100002

    def finalize(self) -> int:
        assert not self.in_use
        return 0

    def get_soc_name(self) -> str:
        return self.soc

    def get_recent_err_msg(self) -> str | None:
        said, self._message = self._message, ""
        return said or None

    def create_data_buffer(self, address: int, size: int) -> int:
        assert len(self.held[address]) >= size
        return self._hold((address, size))

    def destroy_data_buffer(self, number: int) -> int:
        return self._destroy(number)

    def _in_context(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*given: Any) -> Any:
            assert self.held[self._thread.context] == "context"
            return call(*given)

        return checked

    def _create_context(self, device: int) -> tuple[int, int]:
        self._thread.context = self._hold("context")
        return self._thread.context, 0

    def _set_context(self, context: int) -> int:
        assert self.held[context] == "context"
        self._thread.context = context
        return 0

    def _hold(self, value: Any) -> int:
        number = next(self._numbers)
        self.held[number] = value
        return number

    def _destroy(self, number: int) -> int:
        del self.held[number]
        return 0

    def _malloc(self, size: int, policy: int) -> tuple[int, int]:
        assert size > 0 and policy in (0, 1, 2)
        memory = np.empty(size, np.uint8)
        address = memory.ctypes.data
        self.held[address] = memory
        return address, 0

    def _memcpy(self, to: int, room: int, source: int, size: int, kind: int) -> int:
        card = self.held[to if kind == 1 else source]
        assert kind in (1, 2) and size <= room and size <= len(card)
        ctypes.memmove(to, source, size)
        return 0

    def _read(self, path: str) -> tuple[str, str]:
        soc, graph = Path(path).read_text().splitlines()
        return soc, graph

    def _query_size(self, path: str) -> tuple[int, int, int]:
        graph = Path(self._read(path)[1])
        model = onnx.load(str(graph), load_external_data=False)
        said = [entry for one in model.graph.initializer for entry in one.external_data]
        return WORKSPACE, sum(int(entry.value) for entry in said if entry.key == "length"), 0

    def _load(self, path: str, workspace: int, size: int, weights: int, weights_size: int) -> tuple[int, int]:
        assert len(self.held[workspace]) >= size == WORKSPACE and (weights, weights_size) == (0, 0)
        soc, graph = self._read(path)
        if soc != self.soc:
            self._message = "EE1001: the OM file does not match the SoC.\n        Solution: compile it again."
            return 0, OTHER_CHIP
        if graph not in self._graphs:
            self._graphs[graph] = onnx.load(graph)
        return self._hold({"path": path, "graph": self._graphs[graph]}), 0

    def _get_desc(self, number: int, model: int) -> int:
        graph = self.held[model]["graph"].graph
        self.held[number]["sizes"] = [[_bytes(value) for value in values] for values in (graph.input, graph.output)]
        return 0

    def _add_buffer(self, dataset: int, buffer: int) -> tuple[int, int]:
        self.held[dataset].append(self.held[buffer])
        return dataset, 0

    def _execute(self, number: int, inputs: int, outputs: int) -> int:
        model = self.held[number]
        assert self._running.acquire(blocking=False), "two models at once share a workspace"
        try:
            if self.fails_after is not None and len(self.executed) >= self.fails_after:
                self._message = "EZ9999: inner error"
                return BROKEN
            self.executed.append(model["path"])
            ((taken, size),), ((given, room),) = self.held[inputs], self.held[outputs]
            shape = [one.dim_value for one in model["graph"].graph.input[0].type.tensor_type.shape.dim]
            product = evaluated(model["graph"], self.held[taken][:size].view(np.float16).reshape(shape))
            assert product.nbytes == room
            self.held[given][:room] = product.reshape(-1).view(np.uint8)
        finally:
            self._running.release()
        return 0


def _bytes(value: Any) -> int:
    kind = value.type.tensor_type
    assert kind.elem_type == onnx.TensorProto.FLOAT16
    return 2 * int(np.prod([one.dim_value for one in kind.shape.dim]))
