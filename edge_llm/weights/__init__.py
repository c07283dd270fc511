"""Where weights are right now; the runner asks for a layer and does not know where it came from."""
