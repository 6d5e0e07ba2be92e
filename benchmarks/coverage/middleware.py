"""Flower's LocalDpMod audited with sensitivities that are and are not its clip's.

    python -m benchmarks.coverage.middleware [--runs 200] [--trials 1000]

Two opposite updates of a model with ``logit_scale``, an array without dimensions, under clip 1 and
sensitivity 1e-4: the claim of ε = 10 must fall at once. Then runs with other updates and noise
under clip 1 and sensitivity 2, on a model of matrices and vectors only: in none may the bound
exceed the claim of ε = 1, in at most 5 % the pair's exact ε.
"""

import time

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments
from gradaudit.audits.dp_audit import DpAudit
from gradaudit.data import load_records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject

MOD = "flower:flwr.clientapp.mod:LocalDpMod?clipping_norm=1&sensitivity={}&epsilon={}&delta=1e-5"


class Scaled(nn.Module):
    """A linear model of diabetes whose logits have a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 2)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (records, 2)."""
        scaled: Tensor = self.logit_scale * self.linear(inputs)
        return scaled


def rows_of(model: nn.Module, seed: int, **options: object) -> list[Measurement]:
    """Rows of one audit of middleware."""
    target = Target(model.eval(), CrossEntropy())
    subject = Subject((target,), load_records("diabetes"), target.layers, seed=seed)
    return list(DpAudit(DpAudit.Options(**options)).run(subject, Silent()))


def value(rows: list[Measurement], metric: str, **variant: object) -> float:
    """The number of one row."""
    (found,) = (row.number for row in rows if (row.metric, row.variant) == (metric, variant))
    assert found is not None
    return found


def main() -> None:
    """Print both."""
    asked = arguments(__doc__)
    torch.manual_seed(0)
    began = time.process_time()
    rows = rows_of(Scaled(), 0, mechanism=MOD.format(1e-4, 10), claimed_epsilon=10)
    spent = time.process_time() - began
    print(f"sensitivity 1e-4, claim 10: {rows[0].details['remark']}")
    removed = value(rows, "epsilon_theory", relation="remove")
    print(f"exact ε {removed:.4g} (removed), {value(rows, 'epsilon_theory'):.4g} (replaced)")
    print(f"{spent:.2f} CPU seconds")
    options = {"mechanism": MOD.format(2, 1), "trials": asked.trials}
    bounds, pairs, began = [], [], time.process_time()
    for seed in range(asked.runs):
        rows = rows_of(nn.Linear(10, 2), seed, claimed_epsilon=1, **options)
        bounds.append(value(rows, "epsilon_lower"))
        pairs.append(value(rows, "epsilon_pair"))
    spent = (time.process_time() - began) / asked.runs
    above = int(np.sum(np.array(bounds) > np.array(pairs)))
    print(f"sensitivity 2, claim 1: {sum(bound <= 1 for bound in bounds)} of {asked.runs} pass")
    print(f"largest bound {max(bounds):.3f}, mean {np.mean(bounds):.3f}; {above} above the pair's")
    print(f"ε of {min(pairs):.4f} to {max(pairs):.4f}; {spent:.2f} CPU seconds a run")


if __name__ == "__main__":
    main()
