"""One command, or the commands about one thing, a file."""
