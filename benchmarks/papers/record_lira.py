"""Records told by `attack record`, beside a likelihood ratio written in loops of plain autograd.

    python -m benchmarks.papers.record_lira [--batches 32 128 512 …] [--updates 120]

The loops share nothing with the audit but the model and the data: gradients come from
``torch.autograd`` one by one, the covariance is formed and inverted, records are split otherwise,
and each candidate's laws in and out of an update are fitted to shadow batches drawn with it and
without it (Carlini et al. 2022, algorithm 1). Compared is the last layer of an MLP on digits.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.harness import arguments
from gradaudit.audits.attack_record import AttackRecord
from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, choose_layers
from gradaudit.progress import Silent
from gradaudit.subject import Subject

SHADOW, RIDGE = 400, 0.01


def loops(model: nn.Module, records: Records, k: int, updates: int) -> float:
    """Returns the AUROC of the last layer's gradients, one record in and one out of each update."""
    weight = [p for p in model.parameters() if p.dim() == 2][-1]
    draws = np.random.default_rng(7)
    order = draws.permutation(len(records))
    fitted, shadow, private = np.split(order, [SHADOW, len(order) // 2 + 200])

    def gradient(rows: NDArray[np.int64]) -> Tensor:
        loss = nn.functional.cross_entropy(model(records.inputs[rows]), records.labels[rows])
        return torch.autograd.grad(loss, weight)[0].flatten().double()

    own = torch.stack([gradient(np.array([i])) for i in fitted])
    mean, centred = own.mean(dim=0), own - own.mean(dim=0)
    shrunk = RIDGE * float(centred.square().sum()) / len(own) * torch.eye(centred.shape[1])
    inverse = torch.linalg.inv(centred.T @ centred + shrunk.double())
    others = [gradient(draws.permutation(shadow)[:k]) for _ in range(2 * updates)]
    less = [gradient(draws.permutation(shadow)[: k - 1]) for _ in range(2 * updates)]
    inside: list[float] = []
    outside: list[float] = []
    for _ in range(updates):
        chosen = draws.permutation(private)
        seen = gradient(chosen[:k])
        for candidate, scores in ((chosen[0], inside), (chosen[k], outside)):
            g = gradient(np.array([candidate]))
            direction = inverse @ (g - mean)
            t = float(direction @ seen)
            out = torch.stack([direction @ each for each in others])
            there = torch.stack([direction @ (each * (k - 1) + g) / k for each in less])
            deviations = [(t - float(x.mean())) / float(x.std()) for x in (there, out)]
            spreads = float(out.std() / there.std())
            ratio = np.log(spreads) + (deviations[1] ** 2 - deviations[0] ** 2) / 2
            scores.append(float(ratio))
    return float(np.mean([a > b for a in inside for b in outside]))


def main() -> None:
    given = arguments(__doc__)
    torch.manual_seed(0)
    records, model = load_records("digits"), load_model("zoo:mlp?inputs=64&classes=10").eval()
    target = Target(model, CrossEntropy())
    subject = Subject((target,), records, choose_layers(target.layers, ()))
    for k in given.batches:
        audit = AttackRecord(AttackRecord.Options(batch_size=k))
        rows = list(audit.run(subject, Silent()))
        row = next(x for x in rows if (x.metric, x.layer) == ("record_auroc", "output"))
        print(k, row.value, row.interval, loops(model, records, k, given.updates), flush=True)


if __name__ == "__main__":
    main()
