"""Recovery of texts from the row space of gradients."""
