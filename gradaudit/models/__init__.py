"""From what a user names on the command line to models, losses and weights."""
