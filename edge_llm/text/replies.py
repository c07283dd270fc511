"""What a chat template's process and the process that asks it say to each other.

The first question is the template's source; each later one is the JSON of {"values": {...}, "max_output": n}.  Each is
answered by one byte of kind and a text; all of it is UTF-8.
"""

TEXT = b"t"
"""The source is compiled (an empty text), or: what the template makes of the values."""
REFUSED = b"r"
"""What the template says through raise_exception: it refuses the values."""
FAILED = b"f"
"""Why the source cannot be compiled or the values cannot be rendered."""
EXHAUSTED = b"m"
"""There was no memory left."""
