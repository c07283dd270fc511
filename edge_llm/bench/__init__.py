"""Measure: speed beside other engines (`session` is the way in), and quality against the float path (`quality`)."""
