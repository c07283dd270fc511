"""What people have said and been told: chats as trees of messages, kept in SQLite, searched and exported.  Knows no model."""
