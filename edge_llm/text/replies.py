"""What a chat template's process and the process that asks it say to each other.

A frame is eight bytes of length, little endian, and that many bytes of UTF-8.  The first frame is the template's source;
each later one is {"values": {...}, "max_output": n}.  Each is answered by one byte of kind and a frame.
"""

TEXT = b"t"
"""The source is compiled (an empty frame), or: what the template makes of the values."""
SAID = b"s"
"""What the template says through raise_exception."""
FAILED = b"f"
"""Why the source cannot be compiled or the values cannot be rendered."""
EXHAUSTED = b"m"
"""There was no memory left."""
