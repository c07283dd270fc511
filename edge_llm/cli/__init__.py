"""The command line: thin verbs, each in a file of its own that is imported when it is called."""
