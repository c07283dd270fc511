"""A store for tests that say things in few words: messages get their ids here, as an open chat gives them in the app."""

import time
from dataclasses import replace

from edge_llm.chats.store import ChatStore
from edge_llm.chats.tree import Message, new_id


class WritingStore(ChatStore):
    """Begins chats and adds to them, each with an id of its own."""

    def begin(self, settings):
        """An empty chat."""
        return self.create(settings, new_id())

    def add(self, chat_id, parent, role, text, **more):
        """Say something behind ``parent`` and show the path to it; the message as it is stored."""
        message = Message(new_id(), chat_id, parent, role, text, created=time.time(), **more)
        self.put(message)
        return self.message(chat_id, message.id)

    def grow(self, message, text, thought, state, figures):
        """Replace what an answer says so far."""
        self.put(replace(message, text=text, thought=thought, state=state, figures=figures))

    def message(self, chat_id, message_id):
        """The message as it is stored."""
        return next(each for each in self.messages(chat_id) if each.id == message_id)
