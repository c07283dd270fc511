"""A look inside the engine while it works: lanes, pages, speeds, counters, memory."""

from edge_llm.tui.inside.panel import InsidePanel

__all__ = ["InsidePanel"]
