"""What an adversary sees: per-sample gradients and their Jacobians, batched."""
