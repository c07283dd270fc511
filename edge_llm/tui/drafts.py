"""What the person writes is kept with its chat: while it is written, when another chat comes, and when the app is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from edge_llm.chats.drafts import Draft, Drafts
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.tree import Attachment, Message
from edge_llm.tui.prompt import PromptArea

QUIET_SECONDS = 0.7
"""How long nothing is typed before it is written to the disk."""


class DraftKeeper:
    """Keeps what is written in the prompt in the chat on the screen, which ``chat`` gives, and brings it back with it."""

    def __init__(self, chat: Callable[[], OpenChat], area: Callable[[], PromptArea]) -> None:
        self._chat = chat
        self._area = area
        self._tried: Drafts | None = None  # what was last to be written, whatever became of it

    # -- what goes with the text --------------------------------------------------------------------------------------

    @property
    def drafts(self) -> Drafts:
        """Those of the chat on the screen, as they were last noted."""
        return self._chat().drafts

    @property
    def attached(self) -> tuple[Attachment, ...]:
        """What the next prompt brings along."""
        return self.drafts.draft.attachments

    @property
    def editing(self) -> Message | None:
        """The prompt that the next one stands in the place of; none where its message is not there any more."""
        return self._chat().message(self.drafts.draft.edits)

    def attach(self, files: tuple[Attachment, ...]) -> None:
        """The next prompt brings ``files`` along, and nothing else."""
        self._change(draft=replace(self.note().draft, attachments=files))

    # -- editing ------------------------------------------------------------------------------------------------------

    def edit(self, message: Message) -> None:
        """Put the text of ``message`` into the prompt; what is written there waits aside."""
        drafts, area = self.note(), self._area()
        if drafts.draft.edits == message.id:
            return
        if drafts.draft.edits:  # another one was edited
            area.remember([drafts.draft.text])
            drafts = drafts.with_others([drafts.draft.text])
        else:
            drafts = replace(drafts, aside=drafts.draft)
        self._chat().set_drafts(replace(drafts, draft=Draft(message.text, message.attachments, message.id)))
        area.take(message.text)

    def leave_edit(self) -> None:
        """Put back what stood in the prompt before a message was edited; Up reaches what was written instead."""
        drafts, edited = self.note(), self.editing
        if edited is None or edited.text != drafts.draft.text:
            self._area().remember([drafts.draft.text])
            drafts = drafts.with_others([drafts.draft.text])
        self._chat().set_drafts(replace(drafts, draft=drafts.aside, aside=Draft()))
        self._area().take(drafts.aside.text)

    # -- prompts on their way -----------------------------------------------------------------------------------------

    def depart(self, text: str) -> None:
        """``text`` left the prompt and waits to be sent, with all that goes with it; what waited aside is in the prompt."""
        drafts = self.drafts
        leaving = replace(drafts.draft, text=text)
        next_ = drafts.aside if leaving.edits else Draft()
        self._change(
            draft=next_,
            aside=Draft() if leaving.edits else drafts.aside,
            queued=(*drafts.queued, leaving),
            others=tuple(each for each in drafts.others if each != text),
        )
        if next_.text:
            self._area().put_before(next_.text)

    def arrived(self, chat: OpenChat, draft: Draft) -> None:
        """``draft`` waits in ``chat`` no more: it was said, or is given back."""
        queued = [*chat.drafts.queued]
        if draft in queued:
            queued.remove(draft)
            chat.set_drafts(replace(chat.drafts, queued=tuple(queued)))

    def give_back(self, chat: OpenChat, draft: Draft) -> None:
        """``draft`` of ``chat`` could not be sent: it is written in the prompt again, where it was."""
        self.arrived(chat, draft)
        if chat is not self._chat() or draft.edits:
            chat.set_drafts(replace(chat.drafts, queued=(draft, *chat.drafts.queued)).unqueued())
            if chat is self._chat():
                self._area().put_before(draft.text)
            return
        files = (*draft.attachments, *self.drafts.draft.attachments)
        self._change(draft=replace(self.drafts.draft, attachments=files))
        self._area().give_back(draft.text)

    def take_back(self) -> bool:
        """Put what was queued last into the prompt, before what is written there; false when there is nothing."""
        drafts = self.note()
        if not drafts.queued:
            return False
        *queued, last = drafts.queued
        self._change(queued=tuple(queued))
        return self._bring(Drafts(queued=(last,)))

    def unqueue(self, chat: OpenChat) -> None:
        """Nothing waits in ``chat`` any more: it is a draft again."""
        if chat is not self._chat():
            chat.set_drafts(chat.drafts.unqueued())
            return
        queued, _ = self.note().queued, self._change(queued=())
        self._bring(Drafts(queued=queued))

    def _bring(self, back: Drafts) -> bool:
        drafts = self.drafts
        draft = back.unqueued().draft
        if drafts.draft.edits:
            self._change(aside=replace(back, draft=drafts.aside).unqueued().draft)
            return True
        self._change(draft=replace(drafts.draft, attachments=(*draft.attachments, *drafts.draft.attachments)))
        self._area().put_before(draft.text)
        self.note()
        return True

    # -- chats that come and go ---------------------------------------------------------------------------------------

    def switch(self, old: OpenChat, new: OpenChat, carried: bool) -> None:
        """``new`` comes on the screen in the place of ``old``; with ``carried`` what is written goes along."""
        area, drafts = self._area(), self.note()
        if not carried:
            area.remember(drafts.texts)
            if not old.messages and drafts.are_commands:  # Up reaches them; no chat is made for them
                old.set_drafts(Drafts())
            area.remember(new.drafts.others)
            area.open(new.drafts.draft.text)
            return
        if old.chat.id != new.chat.id:
            old.set_drafts(Drafts())
        there = new.drafts
        if not drafts.draft:
            new.set_drafts(replace(there, queued=(*drafts.queued, *there.queued)).with_others(drafts.others))
            area.remember(there.others)
            area.open(there.draft.text)
        elif old.chat.id == new.chat.id:  # it was read anew
            new.set_drafts(drafts)
        else:
            area.remember(there.texts)
            new.set_drafts(drafts.with_others(there.texts))

    def note(self) -> Drafts:
        """Note in the chat what is written now."""
        drafts, area = self.drafts, self._area()
        text, others = area.draft, area.others
        if text != drafts.draft.text or not set(others).issubset(drafts.others):
            self._chat().set_drafts(replace(drafts, draft=replace(drafts.draft, text=text)).with_others(others))
        return self.drafts

    def to_keep(self) -> OpenChat | None:
        """The chat on the screen, when what is written there is to be written to the disk: the person pauses.  Else None."""
        if time.monotonic() - self._area().typed_at < QUIET_SECONDS or self.note() is self._tried:
            return None
        self._tried, chat = self.drafts, self._chat()
        return None if chat.saved or chat.only_commands else chat

    def _change(self, **fields: object) -> Drafts:
        drafts = replace(self.drafts, **fields)  # type: ignore[arg-type]
        self._chat().set_drafts(drafts)
        return drafts
