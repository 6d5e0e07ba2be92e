"""What every room may import: files, names, parts, texts and random numbers."""
