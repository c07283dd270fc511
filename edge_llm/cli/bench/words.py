"""What the word behind `edge-llm bench` may be."""

from __future__ import annotations

COMMANDS = (
    ("lanes", "bench.lanes", "A prompt under scheduling policies, on a device with lanes."),
    ("simulate", "bench.simulate", "The scheduling policies on a machine of a cost table."),
    ("load", "bench.load", "Many answers at once through the service."),
    ("speculation", "bench.speculation", "What guessing ahead is worth."),
    ("experts", "bench.experts", "A trace of routing through caches of experts."),
    ("neurons", "bench.neurons", "What a token reads of a model with ReLU."),
    ("sampling", "bench.sampling", "What choosing tokens adds to decoding."),
)
"""As `Verbs` takes them."""
WORDS = tuple(word for word, _, _ in COMMANDS)
