"""Where on this machine, or on one that a test builds in a folder, what an Ascend card needs is looked for.

Nothing here was seen on silicon by us.  Sources, as tags in the comments: [doc] Huawei's installation guides; [src] torch's
and torch_npu's sources; [whl] torch_npu's wheel; [run] tried on a machine without a card; [vllm] vllm-ascend's files;
[web] a third party's page or script.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edge_llm.ascend.npu.packages import Imported, import_torch_npu
from edge_llm.ascend.npu.pci import card_nodes, is_own_host, small_text

INSTALLED = "/usr/local/Ascend"  # [doc] where the installers of root put driver, CANN and NNAL
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,39}")


@dataclass(frozen=True)
class AscendMachine:
    """Where to look.  By itself it is this machine; a test builds another one in a folder."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    search: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    """Folders with Python packages."""
    may_use: Callable[[Path], bool] = lambda device: os.access(device, os.R_OK | os.W_OK, effective_ids=True)
    import_torch_npu: Callable[[Mapping[str, str]], Imported] = import_torch_npu

    def at(self, path: str) -> Path:
        """The file that ``path`` names on that machine."""
        return self.root / path.lstrip("/") if path.startswith("/") else Path(path)

    def folder(self, *variables: str) -> str:
        """The first of these environment variables that is set, or nothing."""
        return next(filter(None, map(self.environment.get, variables)), "")

    def on_path(self, variable: str, name: str) -> str:
        """The file called ``name`` in the first folder of a list such as PATH that has it, or nothing."""
        folders = filter(None, self.environment.get(variable, "").split(":"))
        return next((file for folder in folders if self.has(file := f"{folder}/{name}")), "")

    def has(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        try:
            return self.at(path).exists()
        except (OSError, ValueError):
            return False  # in a folder that is closed, or no path at all

    def value(self, file: str, key: str) -> str:
        """What follows ``key=`` in a file; empty if nothing does."""
        found = re.search(rf"^[ \t]*{key}[ \t]*=(.*)$", small_text(self.at(file)), re.MULTILINE)
        return found[1].strip() if found else ""

    def version(self, file: str, key: str) -> str:
        """The version that a file gives as ``key``; empty if it gives none."""
        found = self.value(file, key)
        return found if VERSION.fullmatch(found) else ""

    @property
    def nodes(self) -> list[str]:
        """Device files of cards: davinci0, davinci1, ..."""
        return card_nodes(self.at("/dev"))

    @property
    def board(self) -> bool:
        """Whether the chip is its own host."""
        return is_own_host(self.root)

    @property
    def in_container(self) -> bool:
        """Whether this is a container of Docker, Podman or Kubernetes."""
        marks = ("/.dockerenv", "/run/.containerenv")
        return any(map(self.has, marks)) or "KUBERNETES_SERVICE_HOST" in self.environment

    @property
    def toolkit(self) -> str:
        """CANN's folder, as its `set_env.sh` has told it."""
        return self.folder("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
