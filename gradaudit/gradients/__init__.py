"""What an adversary sees: per-sample gradients and their Jacobians, batched."""

from gradaudit.gradients.eager import postpone_compiler

postpone_compiler()
