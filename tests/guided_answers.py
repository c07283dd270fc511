"""What a grammar lets through, and the deltas of one answer; shared by the tests of guided decoding."""

from __future__ import annotations

import numpy as np

from edge_llm.decoding.guided import Constraint


def allows(grammar, tokenizer, text):
    """Whether ``text`` is a whole answer of ``grammar``."""
    constraint = Constraint(grammar, tokenizer)
    zeros = np.zeros(tokenizer.vocab_size, np.float32)
    for token in tokenizer.encode(text):
        if constraint.finished or not np.isfinite(constraint.mask(zeros)[token]):
            return False
        constraint.accept(token)
    return constraint.finished or bool(np.isfinite(constraint.mask(zeros)[list(tokenizer.eos_ids)]).any())


def deltas_of(engine, generation):
    """Run ``generation`` to its end; what fails is raised."""
    engine.batcher.add(generation)
    deltas = []
    while not generation.finished:
        for _, item in engine.batcher.step():
            if isinstance(item, Exception):
                raise item
            deltas.append(item)
    return deltas
