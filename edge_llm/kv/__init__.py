"""Pages of keys and values: the holders of each page (`pages`), and its contents (`store`)."""
