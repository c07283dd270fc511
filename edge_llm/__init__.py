"""edge-llm: a local LLM runtime for one small machine.

Public names are loaded when they are first used, so that `import edge_llm` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_llm.config import GenerationParams, RuntimeConfig
    from edge_llm.errors import EdgeLLMError
    from edge_llm.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "EdgeLLMError", "GenerationParams", "RuntimeConfig", "__version__"]

_HOMES = {
    "LLM": "edge_llm.llm",
    "EdgeLLMError": "edge_llm.errors",
    "GenerationParams": "edge_llm.config",
    "RuntimeConfig": "edge_llm.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `edge_llm` has no attribute `{name}`")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
