"""JSON schemas as grammars: what a value may be, as rules and terminals of the grammar library."""
