"""The REST face: OpenAI's, Anthropic's and Ollama's shapes over the engine's stream of deltas, for clients on this machine."""
