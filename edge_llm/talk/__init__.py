"""Between messages and a request, and between text and what it holds: thoughts, calls of tools, the answer; for every face."""
