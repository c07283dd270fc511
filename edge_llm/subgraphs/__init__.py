"""What a device is given: the static subgraphs of a decoder, built once per length and shared."""
