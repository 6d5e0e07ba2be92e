"""A convolution's input as the shortest solution of [W; ∇_Z J] x = [z; ∇_W J]: R-GAP's step."""

from dataclasses import dataclass

import torch

from gradaudit.attacks.layerwise.recursion import Given, Solved, Solver, share_outside
from gradaudit.attacks.layerwise.systems import solve


@dataclass(frozen=True)
class LeastSquares(Solver):
    """Least squares on both blocks, each scaled to rows of length one on the average.

    Attributes:
        iterations: the most of LSMR.
        dense: by singular values or by LSMR; None: by size.
    """

    iterations: int = 20_000
    dense: bool | None = None

    def solve(self, given: Given) -> Solved:
        """The shortest input among those that fit best."""
        matrix, right = given.system.balanced()
        found = solve(matrix, right, iterations=self.iterations, dense=self.dense)
        x = torch.from_numpy(found.x).to(given.stage.weight)
        return Solved(
            given.stage.layer,
            x,
            residual=found.residual,
            iterations=found.iterations,
            outside=share_outside(given.before, x),
        )
