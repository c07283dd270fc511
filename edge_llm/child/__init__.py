"""Untrusted work in a process of its own: `owner` starts it, asks it and ends it; `inside` reads, answers and keeps limits.

Both ends speak in frames: eight bytes of length, little endian, and that many bytes.
"""

LENGTH_BYTES = 8
