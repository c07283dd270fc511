"""The commands of `edge-llm bench`: speed (`speed`, the way in), and what else is measured, a file each."""
