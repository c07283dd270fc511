"""The model of a peer: what is made for it at a shape, kept in a file, and what a row says of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_llm.config import LlamaConfig
from edge_llm.errors import DeviceError, UsageError
from edge_llm.models import describe
from edge_llm.paths import synthetic_folder

_NOTE = "weights.json"


@dataclass(frozen=True)
class WeightBytes:
    """What the tensors of a file take."""

    all: int
    read: int
    """Of those that a generated token reads (see `edge_llm.bench.roofs.Costs`): an embedding of its own is not among them."""

    def write(self, folder: Path) -> None:
        """Note them beside the model that they were counted in."""
        (folder / _NOTE).write_text(json.dumps(asdict(self)))

    @classmethod
    def noted(cls, folder: Path) -> WeightBytes:
        """What `write` noted."""
        return cls(**json.loads((folder / _NOTE).read_text()))


@dataclass(frozen=True)
class PeerModel:
    """One way to store the weights, at one shape."""

    setting: dict[str, Any]
    """How its worker finds it."""
    filename: str
    """Empty if it is made up at the start."""
    numbers: str
    """Format of the weights."""
    size: int
    """Bytes of the file."""
    count: Callable[[], WeightBytes]
    """Of the file, once its engine could load it."""
    kv_type: str
    kv_bytes: int
    """Of one key or value."""


def shape_name(config: LlamaConfig) -> str:
    """A file name that no other shape has."""
    sizes = (config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads, config.num_kv_heads)
    parts = [config.family, *sizes, config.head_dim, config.vocab_size, "tied" if config.tied_embeddings else "untied"]
    return "-".join(map(str, parts))


def written_once(config: LlamaConfig, variant: str, kind: str, write: Callable[[Path, LlamaConfig, str], None]) -> Path:
    """The folder of the model ``kind`` at the shape of ``config``: ``write`` fills an empty one once, whole or not at all.

    It does so in a process of its own, because ours is measured.
    """
    folder = synthetic_folder() / f"{shape_name(config)}-{kind}-{variant}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                process.submit(write, temporary, config, variant).result()
            temporary.rename(folder)
        except BrokenProcessPool:
            raise DeviceError(f"the model `{folder.name}` could not be made: its writer ended unexpectedly") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def require_blocks(config: LlamaConfig, block: int, peer: str) -> None:
    """`UsageError` for a shape whose matrices are not whole blocks of ``block`` columns."""
    for name, linear in describe(config).linears().items():
        if linear.columns % block:
            raise UsageError(
                f"`{name}` has {linear.columns} input channels, and {peer} needs a multiple of {block}; "
                f"measure this model without --peer {peer}",
                param="peer",
            )
