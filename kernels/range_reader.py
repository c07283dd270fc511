"""Ranges of files read in the background and checked on the way, without the interpreter.

    reader = RangeReader(4, 1 << 20)
    first = reader.start(fd, buffer, offset, ends)    # returns at once
    second = reader.start(fd, other, later, ends)     # read right behind it, without a pause
    there, checksums = first.wait()

`start(fd, out, offset, ends, urgent=False, beside=None)` asks for `out` (uint8 [n], its address and `offset` aligned as the
descriptor wants) from `offset` of `fd`; piece i ends at `ends[i]` (int64, ascending, at most n).  `out` may be closed over, not
touched, until `wait` returns how many of the first bytes are there (n, or fewer when the system refused or the file ended)
and the CRC-32C of every piece (uint32 [len(ends)], of which only those before that end mean anything).  `wait` raises
nothing and may be called again; dropping what `start` returned waits too.  Ranges are read in the order in which they were
asked for, the urgent ones before all others.  Each of the `threads` has one request of `request_bytes` (a multiple of 4096)
in flight.  `hurry` makes a reading urgent, `drop` has no more read of it than was begun: it ends as one that failed there.
`again` asks for the same range once more, from the same file even if it was closed since.  `beside` is an earlier reading of
the same file, whose descriptor the new one shares; without it, a reading has one of its own.

A process that was forked has no such threads: there 0 bytes are there, and who waits reads them itself.
"""

from edge_llm.kernels._native import RangeReader, Reading

__all__ = ["RangeReader", "Reading"]
