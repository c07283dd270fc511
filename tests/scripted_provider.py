"""Providers whose answers, loads and fetches a test writes down, or gives by hand; nothing in here waits for a clock.

    provider = ScriptedProvider([answer("Hello", " you"), [Thought("hm"), gate, "Hi", StorageError("no disk")], []])
    gate.set()                                  # an asyncio.Event: the second answer goes on
    provider.replies[2].give("by", " hand")     # a script that does not end is given by the test
    provider.replies[2].give(Ended("stop"))

A step of an answer is a piece, a list of pieces (one batch), a text (which is said), an `Ended`, an error (raised), an
`asyncio.Event` (waited for), a tuple (the prompt's progress) or a function (called).  A step of a load or a fetch is a
(stage, done, total), an error, a `threading.Event`, or a function.
"""

import asyncio
import threading
from collections import deque
from dataclasses import replace

from edge_llm.errors import ModelNotFound, Unavailable, UsageError
from edge_llm.progress import Step
from edge_llm.providers.base import Ended, Facts, Figures, ModelRow
from edge_llm.talk.pieces import Said, Thought

FIGURES = Figures(12, 4, 3, 0.25, 100.0, 50.0, 2, 1)
MOST_SECONDS = 240.0
"""What a step waits at most for a `threading.Event`: a test that forgot it fails and does not hang."""


def answer(*texts, thought="", reason="stop", figures=FIGURES):
    """The script of a whole answer, a batch for each text."""
    return [*([Thought(thought)] if thought else []), *(Said(text) for text in texts), Ended(reason, figures)]


def echo(ask):
    """The script of an answer that says what it was told."""
    return answer("You said: ", ask.messages[-1]["content"])


class ScriptedReply:
    """A reply that follows ``steps``, and what is given later."""

    def __init__(self, steps=()):
        self._steps = deque(steps)
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self.prompt_progress = None
        self.tokens = 0
        self.begun = False
        self.over = False
        """Nobody iterates any more: it ended, failed or was left."""

    def give(self, *steps):
        """Go on with ``steps``; on the event loop."""
        self._steps.extend(steps)
        self._changed.set()

    def cancel(self):
        self._stopped.set()
        self._changed.set()

    @property
    def cancelled(self):
        return self._stopped.is_set()

    async def __aiter__(self):
        assert not self.begun, "a reply is iterated once"
        self.begun = True
        try:
            async for pieces in self._batches():
                yield pieces
        finally:
            self.over = True
            self.prompt_progress = None

    async def _batches(self):
        while not self.cancelled:
            if not self._steps:
                self._changed.clear()
                await self._changed.wait()
                continue
            step = self._steps.popleft()
            pieces = await self._do(step)
            if pieces and not self.cancelled:
                yield pieces
                if isinstance(pieces[-1], Ended):
                    return
            await asyncio.sleep(0)  # others get their turn, as they do while a model computes
        yield [Ended("cancelled", FIGURES)]

    async def _do(self, step):
        """The pieces of ``step``."""
        if isinstance(step, Exception):
            raise step
        if isinstance(step, asyncio.Event):
            await self._wait_for(step)
        elif isinstance(step, tuple):
            self.prompt_progress = step
        elif callable(step):
            step()
        else:
            self.prompt_progress = None
            return [Said(step)] if isinstance(step, str) else list(step) if isinstance(step, list) else [step]
        return []

    async def _wait_for(self, gate):
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self._stopped)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class ScriptedProvider:
    """Answers by ``scripts``, one after the other, or by a function of the `Ask`; echoes where there is none left."""

    def __init__(self, scripts=(), *, facts=None, inside=None):
        self._script_of = scripts if callable(scripts) else self._next_script
        self._scripts = deque(() if callable(scripts) else scripts)
        self.facts = facts or Facts("scripted", 1024, "device: host")
        self.inside = inside
        self.counts = True
        """Whether it says how many tokens a text has."""
        self.asked = []
        self.replies = []
        self.closed = False

    def ask(self, ask):
        self.asked.append(ask)
        script = [Unavailable("the model was closed")] if self.closed else self._script_of(ask)
        self.replies.append(ScriptedReply(script))
        return self.replies[-1]

    def count(self, ask):
        """A word is a token, as `count_text` has it."""
        counts = [self.count_text(message["content"]) for message in ask.messages]
        return None if None in counts else sum(counts)

    def count_text(self, text):
        return len(text.split()) if self.counts else None

    def look(self):
        return None if self.closed else self.inside

    def close(self):
        self.closed = True

    def _next_script(self, ask):
        return self._scripts.popleft() if self._scripts else echo(ask)


class ScriptedFetch:
    """A fetch that follows ``steps``."""

    def __init__(self, name, steps=(), on_end=lambda: None):
        self.name = name
        self.cancelled = threading.Event()
        self._steps = steps
        self._on_end = on_end

    def __iter__(self):
        for step in self._steps:
            self._check()
            if isinstance(step, tuple):
                yield Step(*step)
            else:
                obey(step, self.cancelled)
        self._check()
        self._on_end()

    def cancel(self):
        self.cancelled.set()

    def _check(self):
        if self.cancelled.is_set():
            raise Unavailable("the fetch was cancelled")


class ScriptedCatalogue:
    """Models by their names: ``providers`` has a `ScriptedProvider` for each, or a function that makes one.

    ``loads`` has the steps of loading a model, ``fetches`` those of fetching a source, by their names.
    Where ``can_fetch`` is false it is a server's.
    """

    def __init__(self, providers=None, *, loads=None, fetches=None, rows=None, can_fetch=True):
        self.providers = providers or {"scripted": ScriptedProvider()}
        self.loads = loads or {}
        self.fetches = fetches or {}
        self.can_fetch = can_fetch
        self.opened = []
        """Every `Wanted`."""
        self.fetched = []
        """Every `ScriptedFetch`."""
        self.refusal = None
        """What `rows` raises."""
        self._rows = rows or [ModelRow(name, 1 << 20, "int8", 1024, True) for name in self.providers]

    def rows(self):
        if self.refusal is not None:
            raise self.refusal
        return [*self._rows]

    def check(self, model):
        if model not in self.providers:
            raise ModelNotFound(f"no model `{model}`")

    def open(self, wanted, progress):
        self.opened.append(wanted)
        name = wanted.model or next(iter(self.providers))
        self.check(name)
        for step in self.loads.get(name, ()):
            if isinstance(step, tuple):
                progress(*step)
            else:
                obey(step)
        provider = self.providers[name]
        if not isinstance(provider, ScriptedProvider):
            return provider()
        provider.closed = False
        provider.facts = replace(provider.facts, name=name)
        return provider

    def fetch(self, source):
        if source not in self.fetches:
            raise UsageError(f"`{source}` cannot be fetched here", param="source")
        name = source.rpartition("/")[2]

        def arrive():
            self.providers[name] = ScriptedProvider()
            self._rows.append(ModelRow(name, 1 << 20, "int8", 1024, True))

        self.fetched.append(ScriptedFetch(name, self.fetches[source], arrive))
        return self.fetched[-1]


def obey(step, cancelled=None):
    """Do the ``step`` of a load or a fetch that is no progress."""
    if isinstance(step, Exception):
        raise step
    if not isinstance(step, threading.Event):
        step()
        return
    for _ in range(int(MOST_SECONDS / 0.01)):
        if step.wait(0.01) or (cancelled is not None and cancelled.is_set()):
            return
    raise AssertionError("nobody let the load or fetch go on")
