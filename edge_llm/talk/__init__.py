"""Between messages and a request, and between text and what it holds: thoughts, tool calls, the answer; for every face."""
