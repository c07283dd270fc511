"""A runner on real pages whose logits are a hash of the tokens that lie in them: fast, and any mistake with a page shows."""

import zlib

import numpy as np

from edge_llm.config import LlamaConfig
from edge_llm.devices.kv_pages import PagedKV
from edge_llm.errors import ContextOverflow
from edge_llm.kv.memory import KVMemory
from edge_llm.kv.pages import PAGE_TOKENS
from edge_llm.kv.prefix import page_keys
from edge_llm.models import describe
from edge_llm.runner.base import Cancelled

CONFIG = LlamaConfig(
    family="llama", vocab_size=257, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1,
    head_dim=8, context=256, norm_eps=1e-5, rope_theta=1e4,
)  # fmt: skip


def forget(memory: KVMemory) -> int:
    """Forget what ``memory`` keeps of earlier sequences: how many pages that gave back."""
    return memory._prefix.evict(len(memory._prefix))


class DictDisk:
    """Pages that outlive their sequences, as `kv.prefix_store` keeps them, in a dictionary."""

    class Page:
        def __init__(self, number, key):
            self.number, self.key = number, key

    def __init__(self):
        self.pages = {}

    def _pages_of(self, tokens, identity):
        return [self.Page(number, key) for number, (key, _) in enumerate(page_keys(identity or b"", tokens))]

    def count(self, most):
        return 0

    def find(self, tokens, start, identity=None):
        found = []
        for page in self._pages_of(tokens, identity)[start:]:
            if page.key not in self.pages:
                break
            found.append(page)
        return found

    def read(self, found):
        for page in found:
            yield self.pages[page.key][None]

    def missing(self, tokens, identity=None):
        return [page for page in self._pages_of(tokens, identity) if page.key not in self.pages]

    def write(self, pages, data):
        for page, each in zip(pages, data, strict=True):
            self.pages[page.key] = each.copy()


class PagedScript:
    """Obeys the contract of a runner; its numbers depend on every token of a sequence and on nothing else."""

    pool = None

    def __init__(self, kv_tokens=256, context=256, disk=None):
        self.context = context
        self.kv = PagedKV(describe(CONFIG).attentions, kv_tokens)
        self.memory = KVMemory(self.kv, b"", disk)
        self.steps = []
        """Of every step: (answers' rows, rows of texts to embed)."""

    def run(self, segments, *, cancel=None):
        if cancel is not None and cancel():
            raise Cancelled
        starts = [segment.sequence.length for segment in segments]
        try:
            for segment, start in zip(segments, starts, strict=True):
                if start + len(segment.tokens) > self.context:
                    raise ContextOverflow(start + len(segment.tokens), self.context)
                self.memory.reserve(segment.sequence, start + len(segment.tokens))
            rows = [self._append(segment) for segment in segments]
            counts = [sum(len(segment.tokens) for segment in segments if segment.states is kind) for kind in (False, True)]
            self.steps.append(tuple(counts))
            return rows
        except BaseException:
            for segment, start in zip(segments, starts, strict=True):
                segment.sequence.truncate(start)
            raise

    def _append(self, segment):
        sequence = segment.sequence
        for token in segment.tokens:
            page, slot = sequence.table[sequence.length // PAGE_TOKENS], sequence.length % PAGE_TOKENS
            self.kv.layers[0].k[page, 0, slot, :2] = token % 100, token // 100
            sequence.length += 1
        width = CONFIG.hidden_size if segment.states else CONFIG.vocab_size
        ends = range(sequence.length - segment.wanted + 1, sequence.length + 1)
        return np.array([self._row(sequence, end, width) for end in ends], np.float32).reshape(len(ends), width)

    def _row(self, sequence, end, width):
        written = self.kv.layers[0].k[sequence.table, 0, :, :2].reshape(-1, 2)[:end]
        return np.random.Generator(np.random.PCG64(zlib.crc32(written.tobytes()))).standard_normal(width)
