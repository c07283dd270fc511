"""Responses that clients may go on with: in memory, so many of them and so many bytes, the longest unused go first."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from edge_llm.errors import ResponseNotFound, UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.shapes import new_id

Item = dict[str, Any]
_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
"""Of ids, by the type of an item; others begin with `item_`."""
_TEXTS = {"assistant": "output_text"}
"""Types of the text of a message, by its role; that of others is `input_text`."""


@dataclass(frozen=True)
class Stored:
    """One response, what was asked, and the response that it goes on with."""

    response: dict[str, Any]
    items: tuple[Item, ...]
    """What was asked, without what came before; each has an id."""
    previous: str | None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        size = len(json.dumps([self.response, self.items], ensure_ascii=False).encode("utf-8", "replace"))
        object.__setattr__(self, "nbytes", size)

    @property
    def id(self) -> str:
        found: str = self.response["id"]
        return found

    def everything(self) -> Iterator[Item]:
        """What was asked and what was answered."""
        yield from self.items
        yield from self.response["output"]


class ResponseStore:
    """Keeps at most ``most`` responses of ``most_bytes`` together; any thread may use it."""

    def __init__(self, most: int = limits.STORED_RESPONSES, most_bytes: int = limits.STORED_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = Lock()
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._places: dict[str, str] = {}
        """Which response has an item, by the item's id."""
        self.nbytes = 0
        """Of all responses that are kept."""

    def put(self, stored: Stored) -> None:
        """Keep ``stored``, if it is not larger than all may be; others go where there is no room."""
        if stored.nbytes > self._most_bytes:
            return
        with self._lock:
            self._kept[stored.id] = stored
            self._places |= {item["id"]: stored.id for item in stored.everything() if isinstance(item.get("id"), str)}
            self.nbytes += stored.nbytes
            while len(self._kept) > self._most or self.nbytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def get(self, name: str) -> Stored:
        """The response with the id ``name``.  Raises `ResponseNotFound`."""
        with self._lock:
            if name not in self._kept:
                raise ResponseNotFound(f"no response `{shown(name, 80)}` is kept here; it was deleted, or is long unused")
            self._kept.move_to_end(name)
            return self._kept[name]

    def delete(self, name: str) -> None:
        """Forget the response with the id ``name``.  Raises `ResponseNotFound`."""
        self.get(name)
        with self._lock:
            if name in self._kept:
                self._drop(name)

    def before(self, name: str | None) -> list[Item]:
        """All items up to the end of the response ``name``, oldest first; raises `UsageError` where one is not kept."""
        links: list[Stored] = []
        while name is not None:
            if len(links) == limits.MESSAGES:
                raise UsageError(f"previous_response_id: more than {limits.MESSAGES} responses before", param=_PREVIOUS)
            try:
                links.append(self.get(name))
            except ResponseNotFound as missing:
                raise UsageError(f"previous_response_id: {missing}", param=_PREVIOUS) from None
            name = links[-1].previous
        return [item for link in reversed(links) for item in link.everything()]

    def item(self, name: Any, where: str) -> Item:
        """The item with the id ``name``, which stands at ``where`` in a request.  Raises `UsageError`."""
        with self._lock:
            stored = self._kept.get(self._places.get(name, "")) if isinstance(name, str) else None
        found = None if stored is None else next((item for item in stored.everything() if item.get("id") == name), None)
        if found is None:
            raise UsageError(f"{where}: no item `{shown(name, 80)}` is kept here; send the item itself", param=where)
        return found

    def _drop(self, name: str) -> None:
        gone = self._kept.pop(name)
        self.nbytes -= gone.nbytes
        for item in gone.everything():
            if self._places.get(item.get("id", "")) == name:
                del self._places[item["id"]]


_PREVIOUS = "previous_response_id"


def named(given: str | Sequence[Item]) -> list[Item]:
    """The input of a request as items of which each has an id, and a message its content as parts."""
    items: Sequence[Item] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [_named(item) for item in items]


def _named(item: Item) -> Item:
    kind = item.get("type", "message")
    content = item.get("content")
    prefix = _PREFIXES.get(kind, "item_") if isinstance(kind, str) else "item_"
    own = item.get("id") if isinstance(item.get("id"), str) else None
    if kind == "message" and isinstance(content, str):
        content = [{"type": _TEXTS.get(str(item.get("role")), "input_text"), "text": content}]
    return item | {"id": own or new_id(prefix), "type": kind} | ({"content": content} if content is not None else {})


def is_reference(item: Item) -> bool:
    """Whether ``item`` stands for one that is kept."""
    return item.get("type") == "item_reference" or (set(item) <= {"id", "type"} and item.get("type") is None and "id" in item)
