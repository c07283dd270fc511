"""An engine whose model says a text that a test has written, token by token, to everybody or as the prompt has it."""

import numpy as np
from test_engine_stream import ScriptRunner

from edge_llm.config import GenerationParams
from edge_llm.decoding.draft import no_draft
from edge_llm.engine.engine import Engine


class Script(ScriptRunner):
    """Says what ``script_for`` gives for the tokens of a prompt."""

    def __init__(self, script_for, vocab_size, context):
        super().__init__([])
        self.context = context
        self._script_for = script_for
        self._size = vocab_size

    def run(self, segments, *, cancel=None):
        return [self._logits(segment) for segment in segments]

    def _logits(self, segment):
        sequence = segment.sequence
        sequence.tokens += list(segment.tokens)
        if not segment.wanted:
            return np.zeros((0, self._size), np.float32)
        if not hasattr(sequence, "script"):  # the prompt ends here
            sequence.script, sequence.start = self._script_for(sequence.tokens), sequence.length
        logits = np.zeros((1, self._size), np.float32)
        logits[0, sequence.script[min(sequence.length - sequence.start, len(sequence.script) - 1)]] = 1.0
        return logits


def scripted(engine, text, template=None, context=1024):
    """The model of ``engine``, which says ``text`` with the control tokens that it spells.

    ``text`` may be a function of the prompt's text.
    """
    tokenizer = engine.tokenizer

    def script_for(prompt):
        said = text(tokenizer.decode(prompt, skip_special=False)) if callable(text) else text
        return tokenizer.encode(f"{said}<|end|>", parse_special=True)

    runner = Script(script_for, engine.config.vocab_size, context)
    made = template or engine.template
    return Engine("builtin", engine.config, tokenizer, made, GenerationParams(), runner, 1.0, make_drafter=lambda: no_draft)
