"""What opens above the chat: the model picker, settings, help, and small questions.  Each returns what was chosen."""
