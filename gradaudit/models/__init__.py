"""From what a user names on the command line to models, weights and records."""
