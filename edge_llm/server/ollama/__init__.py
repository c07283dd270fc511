"""Ollama's API over the same models and engine: names with tags, streams of JSON lines, durations in nanoseconds."""
