"""llama.cpp in a process of its own: loads a GGUF file once, then measures what it is asked for, line by line.

Started by `edge_llm.bench.peer` as ``python -m edge_llm.bench.peer_llama_cpp '{"gguf": ..., ...}'``.  A request is one
line of JSON on stdin, its answer one line on stdout.  Everything is set as llama-bench sets it: low-level decode calls,
no tokenizer and no sampling, float16 keys and values.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.serve import FIRST_PROMPT, serve

ERROR = 4
"""Log level of ggml from which a message is a complaint."""


class LlamaCpp:
    """A loaded model and its context."""

    def __init__(self, gguf: str, context: int, threads: int, batch: int, ubatch: int, flash_attention: bool) -> None:
        import llama_cpp

        self._api = llama_cpp
        complaints: list[str] = []

        def listen(level: int, text: bytes, data: object) -> None:
            if level >= ERROR and text.strip():
                complaints.append(text.decode("utf-8", "replace").strip())

        self._log = llama_cpp.llama_log_callback(listen)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(gguf.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp cannot load `{gguf}`: {' '.join(complaints[:1])}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch, params.n_ubatch = batch, ubatch
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash_attention)
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {context} tokens: {' '.join(complaints[:1])}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = batch
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._depth = 0

    def describe(self) -> str:
        """The instruction sets that the library was compiled for."""
        return str(self._api.llama_print_system_info().decode())

    def begin(self, depth: int, threads: int, state: str | None) -> None:
        """Have ``depth`` tokens of context, from the file ``state`` if it has them (values do not change speed)."""
        self._api.llama_set_n_threads(self._context, threads, threads)
        if depth == self._depth:
            return
        self._api.llama_memory_clear(self._memory, True)
        self._depth = depth
        tokens = self._tokens(depth)
        if depth and not (state and self._load(state, tokens)):
            self._decode(tokens)
            if state:
                self._save(state, tokens)

    def run(self, prompt: int, generate: int) -> float:
        """Seconds for a prompt and then single tokens; the context is as before afterwards."""
        api, tokens = self._api, self._tokens(prompt)
        singles = [self._tokens(1, seed) for seed in range(generate)]
        started = time.perf_counter()
        if prompt:
            self._decode(tokens)
        for single in singles:
            self._decode(single)
        seconds = time.perf_counter() - started
        if api.llama_memory_seq_pos_max(self._memory, 0) != self._depth + prompt + generate - 1:
            raise RuntimeError("the context does not hold the tokens that were run")
        api.llama_memory_seq_rm(self._memory, 0, self._depth, -1)
        return seconds

    def first_token(self) -> int:
        """The most likely token after a prompt of `FIRST_PROMPT` tokens."""
        self._decode(self._tokens(FIRST_PROMPT))
        logits = np.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, -1), (self._vocab,))
        return int(logits.argmax())

    def logits(self, tokens: list[int], past: int, out: str) -> int:
        """Write the logits of ``tokens``, a batch at most, to the file ``out``: float32 [T, vocab].

        They follow the last ``past`` tokens; none begins anew.
        """
        api, count = self._api, len(tokens)
        if past == 0:
            api.llama_memory_clear(self._memory, True)
        batch = api.llama_batch_init(count, 0, 1)
        try:
            batch.n_tokens = count
            for index, token in enumerate(tokens):
                batch.token[index], batch.pos[index], batch.logits[index] = token, past + index, 1
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            failed = api.llama_decode(self._context, batch)
            if failed:
                raise RuntimeError(f"llama_decode returned {failed}")
            np.ctypeslib.as_array(api.llama_get_logits(self._context), (count, self._vocab)).tofile(out)
        finally:
            api.llama_batch_free(batch)
        return count

    def _tokens(self, count: int, seed: int = 0) -> Any:
        vocab, state = self._vocab, seed * 2654435761 + 12345
        array = (self._api.llama_token * count)()
        for index in range(count):
            state = (1103515245 * state + 12345) % 2**31
            array[index] = (state >> 8) % vocab
        return array

    def _decode(self, tokens: Any) -> None:
        api = self._api
        for first in range(0, len(tokens), self._batch):
            count = min(self._batch, len(tokens) - first)
            part = (api.llama_token * count).from_buffer(tokens, first * ctypes.sizeof(api.llama_token))
            failed = api.llama_decode(self._context, api.llama_batch_get_one(part, count))
            if failed:
                raise RuntimeError(f"llama_decode returned {failed}")
        api.llama_synchronize(self._context)

    def _load(self, path: str, tokens: Any) -> bool:
        if not Path(path).is_file():
            return False
        room, count = (self._api.llama_token * len(tokens))(), ctypes.c_size_t()
        self._api.llama_state_seq_load_file(self._context, path.encode(), 0, room, len(room), ctypes.byref(count))
        # A return value above zero is not enough: a file without tokens loads nothing and says nothing.
        if self._api.llama_memory_seq_pos_max(self._memory, 0) == len(tokens) - 1:
            return True
        self._api.llama_memory_clear(self._memory, True)
        return False

    def _save(self, path: str, tokens: Any) -> None:
        temporary = f"{path}.{os.getpid()}"
        saved = self._api.llama_state_seq_save_file(self._context, temporary.encode(), 0, tokens, len(tokens))
        if saved:
            Path(temporary).replace(path)
        else:
            Path(temporary).unlink(missing_ok=True)


if __name__ == "__main__":
    serve(LlamaCpp, sys.argv[1])
