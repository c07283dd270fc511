"""Pages of keys and values by number: who holds each, which text it has, what is kept on disk.  A device has what is in them."""
