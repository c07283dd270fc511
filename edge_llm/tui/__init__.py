"""The terminal chat, full screen (Textual).  It shows what a provider says and what the chats hold, and knows no model."""
