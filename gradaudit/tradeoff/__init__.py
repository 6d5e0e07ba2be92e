"""What a defense costs in accuracy and buys in privacy, over a grid of its settings."""
