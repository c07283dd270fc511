"""Pages of keys and values by number: who holds each, which text it has, what is kept on disk; devices hold their contents."""
