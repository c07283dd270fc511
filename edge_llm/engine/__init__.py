"""Requests in, streams of deltas out; the faces (command line, chat, REST, bench) all consume the same stream."""
