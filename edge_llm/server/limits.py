"""What one request may ask for; everything past a limit is refused before work is done."""

from __future__ import annotations

from edge_llm.decoding.trial import MAX_WAITING
from edge_llm.strict_json import MAX_DEPTH

MIN_BODY_BYTES = 4 << 20
BODY_BYTES_PER_TOKEN = 8
"""A body may have this many bytes per token of context, or `MIN_BODY_BYTES` if that is more."""
BODY_SECONDS = 30.0
"""Longest wait for the next piece of a body, and for all of one that comes slower than `BODY_BYTES_PER_SECOND`."""
BODY_BYTES_PER_SECOND = 2048
"""A body gets a second more for this many bytes: a long prompt over a slow line comes through, a trickle does not."""
HEADER_COUNT = 100
HEADER_BYTES = 16 << 10
HEADER_SECONDS = 10.0
"""Longest wait for a request's headers, from its first byte on or, in a new connection, from the beginning."""
IDLE_SECONDS = 30.0
"""Longest wait for the next request of a connection."""
READER_SECONDS = 60.0
"""Longest wait for a client that does not read its answer."""
READER_BYTES_PER_SECOND = 2048
"""A client gets a second more for this many bytes of its answer that it reads."""
LOOK_SECONDS = 1.0
"""Time between two looks at how long every connection has waited for its client."""
JSON_DEPTH = MAX_DEPTH
MESSAGES = 2048
TOOLS = 512
CHOICES = 16
"""Answers to one prompt (`n`)."""
PROMPTS = 128
"""Prompts of one completions request."""
INPUTS = 2048
"""Texts of one embeddings request."""
STORED_RESPONSES = 1000
"""Responses that are kept for clients to go on with."""
STORED_BYTES = 32 << 20
"""Bytes that all of them together may have, as JSON."""
STOP_STRINGS = 16
STOP_CHARACTERS = 256
TOP_LOGPROBS = 20
LOGIT_BIASES = 1024
LOGPROB_TOKENS = 128
"""Tokens whose log-probabilities may be asked for beside each token's."""
MODEL_CHARACTERS = 256
PULLS = 2
"""Models that are brought here at a time by requests."""
KEEP_ALIVE_SECONDS = 5.0
"""A stream that has nothing to say for this long sends a comment."""
PROGRESS_SECONDS = 0.25
"""A stream that tells how much of its prompt is read looks so often."""
LOAD_SECONDS = 300.0
"""Longest wait of a request for a model that is being loaded, or for memory to load it."""
LOAD_WAITERS = 1024
"""Requests that may wait for one model to be loaded."""
LOADERS = 2
"""Models that are loaded or unloaded at a time."""
RETRY_AFTER_SECONDS = 2
SPARE_DESCRIPTORS = 32
"""Descriptors that are kept free for files; a connection that would take one of them gets 503."""
END_SECONDS = 2.0
"""Longest wait for work that cannot be interrupted, when the drain is over."""
JOURNAL_LINES = 1000
"""Lines about requests that may wait for whoever reads them; more are not written."""
SAY_AGAIN_SECONDS = 10.0
"""Time between two lines of the log about the same trouble."""


SHORT_BYTES = 64 << 10
"""Requests with longer bodies share one thread."""
SHORT_WORKERS = MAX_WAITING + 4
"""Threads for requests with short bodies: however many wait for the trial of a grammar, others go on; answers have as many."""
MIN_HELD_BYTES = 64 << 20
"""Bytes that all long bodies together may hold, or four times the longest body if that is more."""


def held_bytes(context: int | None) -> int:
    """Bytes that all long bodies together may hold, for a model of ``context`` tokens."""
    return max(MIN_HELD_BYTES, 4 * body_bytes(context))


def body_bytes(context: int | None) -> int:
    """Bytes that a request's body may have, for a model of ``context`` tokens."""
    return max(MIN_BODY_BYTES, BODY_BYTES_PER_TOKEN * (context or 0))
