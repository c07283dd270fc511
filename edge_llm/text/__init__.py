"""Text to tokens and back: the tokenizer, the incremental decoder, and chat templates."""
