"""From logits to a token: pure functions over arrays, composed per request."""
