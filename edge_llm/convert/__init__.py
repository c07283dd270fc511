"""The offline twin of the engine: reads a source model, measures it, quantizes it, writes a bundle."""
