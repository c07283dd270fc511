"""A chat as one terminal has it open: changed in memory at once, written when `save` is called.

What could not be written (a full disk, a locked file) stays in memory and is written by the next `save`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_llm.chats.drafts import Drafts
from edge_llm.chats.store import ChatGone, ChatStore
from edge_llm.chats.titles import UNTITLED, title_of
from edge_llm.chats.tree import Chat, Message, Role, new_id, newest_leaf, path_to


class OpenChat:
    """The tree of one chat.  One thread changes it; `save` may run in another."""

    def __init__(
        self,
        store: ChatStore,
        chat: Chat,
        messages: Iterable[Message] = (),
        *,
        stored: bool = True,
        drafts: Mapping[int, str] | None = None,
    ) -> None:
        """``drafts``: what the store has of them."""
        self._store = store
        self._messages = {message.id: message for message in messages}
        self._chat = replace(chat, leaf=_leaf_among(self._messages, chat.leaf))
        self._written = self._chat if stored else None
        self._dirty: dict[int, Message] = {}
        self._renamed: str | None = None
        self._deleted = False
        self._removed: list[int] = []
        self._last_id = max(self._messages, default=0)
        self._draft_rows = dict(drafts or {})
        self._drafts = self._kept_drafts = _drafts_of([*self._draft_rows.values()])
        self._unnamed = not self._messages and self._chat.title in ("", UNTITLED, self._drafts.title)
        self._saving = threading.Lock()
        self._marks = threading.Lock()  # of what is to be written; never held while the disk is waited for

    @classmethod
    def new(cls, store: ChatStore, settings: Mapping[str, Any]) -> OpenChat:
        """An empty chat, which is written with its first message."""
        now = time.time()
        return cls(store, Chat(new_id(), "", settings, None, now, now), stored=False)

    @classmethod
    def read(cls, store: ChatStore, chat_id: int) -> OpenChat | None:
        """The stored chat ``chat_id``, None if there is none any more."""
        chat = store.chat(chat_id)
        return None if chat is None else cls(store, chat, store.messages(chat_id), drafts=store.drafts(chat_id))

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def chat(self) -> Chat:
        return self._chat

    @property
    def messages(self) -> list[Message]:
        """All messages of the tree."""
        return [*self._messages.values()]

    @property
    def path(self) -> list[Message]:
        """The messages that are shown."""
        return path_to(self._messages.values(), self._chat.leaf)

    @property
    def saved(self) -> bool:
        """Whether everything is written; an empty chat needs no writing."""
        written = self._written is self._chat or not (self._messages or self._drafts)
        return not (self._dirty or self._removed) and written and self._drafts == self._kept_drafts

    @property
    def only_commands(self) -> bool:
        """Whether it is no chat yet: nothing of it is stored, and all there is are commands that are being typed."""
        return self._written is None and not self._messages and self._drafts.are_commands

    @property
    def drafts(self) -> Drafts:
        """What the person has written here and not sent."""
        return self._drafts

    def message(self, message_id: int) -> Message | None:
        """The message as it is now."""
        return self._messages.get(message_id)

    # -- changes ------------------------------------------------------------------------------------------------------

    def add(self, role: Role, text: str, *, parent: int | None, **more: Any) -> Message:
        """A message behind ``parent`` (None: a first one), which becomes the leaf; ``more`` are fields of `Message`."""
        self._last_id = max(new_id(), self._last_id + 1)
        message = Message(self._last_id, self._chat.id, parent, role, text, created=time.time(), **more)
        self.put(message)
        before = "" if self._unnamed else self._chat.title
        title = before or (title_of(text) if role == "user" else "")
        self._unnamed = not title
        self._change(leaf=message.id, title=title, changed=message.created)
        return message

    def put(self, message: Message) -> None:
        """``message`` in place of the one with its id."""
        with self._marks:
            self._messages[message.id] = self._dirty[message.id] = message

    def select(self, message_id: int) -> None:
        """Show the path through ``message_id``, and below it the newest."""
        self._change(leaf=newest_leaf(self.messages, message_id))

    def rename(self, title: str) -> None:
        """Give the chat a title, which stays."""
        self._change(title=title)
        self._renamed, self._unnamed = title, False

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        self._change(settings=settings)

    def set_drafts(self, drafts: Drafts) -> None:
        """``drafts`` are what is not sent."""
        self._drafts = drafts

    def remove(self, message_id: int) -> None:
        """Take a message away, and all that follows it; the path then ends before it."""
        gone = {message_id}
        for message in sorted(self._messages.values(), key=lambda message: message.id):  # followers have larger ids
            if message.parent in gone:
                gone.add(message.id)
        on_path = any(message.id in gone for message in self.path)
        parent = self._messages[message_id].parent
        with self._marks:
            for one in gone:
                del self._messages[one]
                self._dirty.pop(one, None)
            self._removed.append(message_id)
        if on_path:
            self._change(leaf=parent)

    def _change(self, **fields: Any) -> None:
        self._chat = replace(self._chat, **fields)

    # -- writing ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write what is not written, in the order in which it came.  Raises `StorageError`; then the next call goes on.

        A chat of which another terminal has deleted what is needed here is written again, as a whole.
        """
        with self._saving:
            try:
                self._write()
            except ChatGone:
                self._written = None
                with self._marks:
                    self._dirty = dict(self._messages)
                    self._renamed = self._chat.title or None
                    self._draft_rows, self._kept_drafts = {}, Drafts()
                self._write()

    def delete(self) -> None:
        """Delete the chat for good: what is still added to it, as by an answer that ends, is not written.  `StorageError`."""
        with self._saving:
            self._store.delete(self._chat.id)
            self._deleted = True

    def _write(self) -> None:
        if self._deleted:
            return
        drafts = self._drafts
        if not self._messages and not drafts and self._written is None:
            return
        chat, before = self._chat, self._written or self._store.create(self._chat.settings, self._chat.id)
        with self._marks:
            unwritten = sorted(self._dirty.values(), key=lambda message: message.id)  # a parent before its followers
        for message in unwritten:
            self._store.put(message)
            with self._marks:
                if self._dirty.get(message.id) is message:  # else it has grown meanwhile
                    del self._dirty[message.id]
        while self._removed:
            self._store.delete_message(self._removed[0])
            self._removed.pop(0)
        if chat.settings != before.settings:
            self._store.set_settings(chat.id, chat.settings)
        title = self._renamed
        if title is not None:
            self._store.rename(chat.id, title)
            with self._marks:
                if self._renamed == title:  # else it was given another one meanwhile
                    self._renamed = None
        if chat.leaf != before.leaf:
            self._store.set_leaf(chat.id, chat.leaf)
        self._written = chat
        if drafts != self._kept_drafts:  # behind the messages: what was sent is never in neither
            body = drafts.as_json() if drafts else ""
            self._draft_rows = self._store.keep_draft(chat.id, self._draft_rows, body, drafts.title)
            self._kept_drafts = drafts
            if not drafts and not self._messages and self._store.forget_empty(chat.id):
                self._written = None


def _drafts_of(stored: Sequence[str]) -> Drafts:
    """The newest of what is ``stored``; of older ones, which other terminals have left, the texts.

    Nothing waits to be sent: the answer that it waited for is over.
    """
    found = [Drafts.from_json(body) for body in stored]
    newest = found[-1].unqueued() if found else Drafts()
    return newest.with_others(text for each in found[:-1] for text in each.texts) if len(found) > 1 else newest


def _leaf_among(known: Mapping[int, Message], leaf: int | None) -> int | None:
    """``leaf``, or the newest message where another terminal has deleted it meanwhile."""
    return leaf if leaf is None or leaf in known else max(known, default=None)
