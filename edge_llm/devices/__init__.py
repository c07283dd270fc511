"""A device holds arrays, builds static subgraphs, runs them, and counts its memory; one file per device."""
