"""Tokens of what is being written: counted when the person pauses, in a thread, with the files that go along."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from edge_llm.chats.attachments import find_attachments, read_attachment
from edge_llm.chats.tree import Attachment, Message
from edge_llm.errors import EdgeLLMError
from edge_llm.providers.base import Provider

PAUSE_SECONDS = 0.3
"""How long nothing is typed before it is counted."""


class TypedTokens:
    """Counts texts; files that are named in them lie in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[Path, int, int, int], int] = {}  # tokens of a file by what tells whether it has changed
        self._counted: object = None
        """What was counted last, or is being counted."""

    def is_due(self, provider: Provider | None, text: str, attached: Sequence[Attachment], typed_at: float) -> bool:
        """Whether this is to be counted now; then it counts as counted."""
        if self.is_last(provider, text, attached) or time.monotonic() - typed_at < PAUSE_SECONDS:
            return False
        self._counted = (id(provider), text, tuple(attached))
        return True

    def is_last(self, provider: Provider | None, text: str, attached: Sequence[Attachment]) -> bool:
        """Whether this is what was to be counted last; counts come in any order."""
        return self._counted == (id(provider), text, tuple(attached))

    def count(self, provider: Provider, text: str, attached: Sequence[Attachment]) -> int | None:
        """Tokens of ``text`` and its files; None where nobody says.  Called in a thread."""
        said, paths = find_attachments(text, self._folder)
        try:
            found = [provider.count_text(said), *(provider.count_text(_shown(each)) for each in attached)]
            found += [self._tokens_of(provider, path) for path in paths]
        except EdgeLLMError:  # it is told when the prompt is sent
            return None
        return None if None in found else sum(each for each in found if each is not None)

    def _tokens_of(self, provider: Provider, path: Path) -> int | None:
        try:
            status = path.stat()
        except OSError:
            return 0
        key = (path, status.st_mtime_ns, status.st_size, id(provider))
        if key not in self._files and (tokens := provider.count_text(_shown(read_attachment(path)))) is not None:
            self._files[key] = tokens
        return self._files.get(key)


def _shown(file: Attachment) -> str:
    """``file`` as a model is given it."""
    return Message(0, 0, None, "user", "", attachments=(file,)).content
