"""Per-sample gradients and their Jacobians, batched."""
