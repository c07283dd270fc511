"""An engine that says what a test wants, token by token: whole answers of a real generation without a real model."""

from dataclasses import dataclass

import numpy as np
import tokenizers
from test_engine_stream import CONFIG, LastMemory

from edge_llm.config import GenerationParams
from edge_llm.decoding.draft import no_draft
from edge_llm.engine.engine import Engine
from edge_llm.runner.inside import RunnerInside
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import SpecialTokens, Tokenizer

END = "<end>"
CONTEXT = 8192


def marked_tokenizer(controls=()):
    """A token for each byte, for the end, and for each of ``controls``."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([END, *controls])
    return Tokenizer(backend, 257 + len(controls), SpecialTokens(eos_ids=frozenset({256}), add_bos=False))


@dataclass(frozen=True)
class Site:
    """Where it runs."""

    device: str = "a script"


class ScriptRunner:
    """Behind a prompt it says ``script``; one request at a time."""

    context = CONTEXT
    pool = refusal = None
    site = Site()

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size
        self.script = []
        self.memory = LastMemory()

    def look(self):
        return RunnerInside()

    def run(self, segments, *, cancel=None):
        return [self._forward(segment.sequence, list(segment.tokens), segment.wanted) for segment in segments]

    def _forward(self, sequence, tokens, wanted):
        sequence.tokens += tokens
        logits = np.zeros((max(1, wanted), self.vocab_size), np.float32)
        said = len(sequence.tokens) - self.prompt
        for row in range(max(1, wanted)):
            at = said - max(1, wanted) + 1 + row
            logits[row, self.script[min(max(at, 0), len(self.script) - 1)]] = 9.0
        return logits


class Scripted:
    """``says(text)`` sets what the engine answers next; marks in it that are control tokens are these."""

    def __init__(self, template, controls=()):
        self.tokenizer = marked_tokenizer(controls)
        self.runner = ScriptRunner(self.tokenizer.vocab_size)
        config = CONFIG.__class__(**{**vars(CONFIG), "vocab_size": self.tokenizer.vocab_size, "context": CONTEXT})
        self.engine = Engine(
            "script",
            config,
            self.tokenizer,
            ChatTemplate(template),
            GenerationParams(),
            self.runner,
            load_ms=1.0,
            make_drafter=lambda: no_draft,
        )
        generation = self.engine.generation

        def told(request, *more):
            self.runner.prompt = len(request.prompt)
            self.runner.memory.remembered = []
            self.request = request
            return generation(request, *more)

        self.engine.generation = told

    def says(self, text):
        self.runner.script = self.tokenizer.encode(text + END, parse_special=True)
