"""For commands that know nothing of tests: as soon as torch_npu is imported, it has the kernels of STANDIN_KERNELS.

That is the name of a module with ``IMPLEMENTATIONS``.  Python imports this file when it starts.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


class _WithKernels(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch_npu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        from standins import kernels

        kernels.install(importlib.import_module(os.environ["STANDIN_KERNELS"]).IMPLEMENTATIONS)


sys.meta_path.insert(0, _WithKernels())
