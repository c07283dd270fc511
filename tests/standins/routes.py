"""Which kernels of the card torch_npu's own code chooses, for a process of `standins.Card.run` with ``routes=True``.

No operator is overridden but those of ATB, whose kernels are chosen in a library that is not here: each is written down by its
name.  Nothing is computed: what kernels would write is zero.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from standins.lengths import check_lengths

ATB = (
    "_npu_reshape_and_cache", "_npu_paged_attention", "_npu_paged_attention_splitfuse", "_npu_paged_attention_splitfuse_v2",
)  # fmt: skip


class Route(NamedTuple):
    """A kernel that was called: ``aclnn`` by its own library, ``aclop`` by the compiler of operators, or ``atb``."""

    kind: str
    name: str
    captured: bool
    """Whether into a graph."""


_runtime = ctypes.CDLL("libascendcl.so")
_runtime.standin_route.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
_runtime.standin_route_kind.restype = ctypes.c_char_p
_runtime.standin_route_name.restype = ctypes.c_char_p
_overrides: list[torch.library.Library] = []  # an override lasts as long as its library


@contextmanager
def watched() -> Iterator[list[Route]]:
    """A list that holds, after the block, the kernels that were called in it."""
    found: list[Route] = []
    first = _runtime.standin_route_count()
    yield found
    for number in range(first, _runtime.standin_route_count()):
        kind, name = _runtime.standin_route_kind(number), _runtime.standin_route_name(number)
        found.append(Route(kind.decode(), name.decode(), bool(_runtime.standin_route_captured(number))))


def install() -> None:
    """Write down ATB's operators."""
    for name in ATB:
        operator = getattr(torch.ops.atb, name).default
        library = torch.library.Library("atb", "IMPL")
        library.impl(operator.name(), _noting(operator), "PrivateUse1", allow_override=True)
        _overrides.append(library)


def _noting(operator: torch._ops.OpOverload) -> Any:
    parameters = [parameter.name for parameter in operator._schema.arguments]
    name = operator._schema.name

    def note(*arguments: Any, **named: Any) -> None:
        check_lengths(os.environ["STANDIN_SOC"], name, dict(zip(parameters, arguments, strict=False)) | named)
        stream = torch.npu.current_stream().npu_stream
        _runtime.standin_route(b"atb", name.removeprefix("atb::").encode(), stream)

    return note
