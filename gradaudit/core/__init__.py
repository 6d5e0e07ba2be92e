"""Tools that every package may import: files, names, parts, texts and random numbers."""
