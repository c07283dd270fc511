"""What runs where, and what a device is given: parts of layers as static subgraphs, built once per length and shared."""
