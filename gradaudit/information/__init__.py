"""Information about the input in a layer's activations."""
