"""Who answers a chat: a model in this process or an OpenAI-compatible server, behind one protocol (`base`)."""
