"""Servers of tools (MCP): where they are, what they offer, and calls of them, each server behind a process of its own."""
