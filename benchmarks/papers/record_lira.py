"""Records told by `attack record`, beside a likelihood ratio written in loops of plain autograd.

    python -m benchmarks.papers.record_lira [--data digits|adult|utkface] [--epochs 0]
        [--batches 32 128 512 …] [--updates 120]

The loops share nothing with the audit but the model and the data: gradients come from
``torch.autograd`` one by one, the covariance is formed and inverted, records are split otherwise,
and each candidate's laws in and out of an update are fitted to shadow batches drawn with it and
without it (Carlini et al. 2022, algorithm 1). Compared is the last layer of an MLP on digits.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.harness import arguments, data_file, epochs_of, fit, scaled, stored
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


def auroc_interval(auroc: float, inside: int) -> tuple[float, float]:
    """Hanley and McNeil's (1982) 95 % interval, with as many scores inside as outside."""
    one, two = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (inside - 1) * (one + two - 2 * auroc**2)
    reach = 1.96 * (variance / inside**2) ** 0.5
    return max(0.0, auroc - reach), min(1.0, auroc + reach)


def scene(data: str, epochs: int) -> tuple[Records, nn.Module]:
    """A data set with an MLP that was trained on its last third."""
    if data == "utkface":
        faces = stored("utkface_32.npz")
        pictures = nn.functional.avg_pool2d(scaled(faces["images"]).float(), 2).flatten(1)
        records = Records(pictures, torch.from_numpy(faces["gender"]).long())
    else:
        spec = "digits"
        if data == "adult":
            spec = f"csv:{data_file('adult.csv')}?label=income&scale=standard"
        records = load_records(spec)
        records = records.take(np.arange(min(len(records), 6000)))
    classes = int(records.labels.max()) + 1
    inputs, labels = records.inputs.flatten(1).float(), records.labels
    model = load_model(f"zoo:mlp?inputs={inputs.shape[1]}&classes={classes}")
    kept = len(labels) * 2 // 3
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    model = fit(
        model, inputs[kept:], labels[kept:], adam, epochs_of(len(labels) - kept, 64, epochs)
    )
    return Records(inputs[:kept], labels[:kept]), model


def main() -> None:
    given = arguments(__doc__)
    torch.manual_seed(0)
    records, model = scene(given.data, given.epochs)
    target = Target(model, CrossEntropy())
    subject = Subject((target,), records, choose_layers(target.layers, ()))
    last = target.layers[-1].name
    for k in given.batches:
        audit = AttackRecord(AttackRecord.Options(batch_size=k))
        rows = list(audit.run(subject, Silent()))
        row = next(x for x in rows if (x.metric, x.layer) == ("record_auroc", last))
        found = loops(model, records, k, given.updates)
        print(k, row.value, row.interval, found, auroc_interval(found, given.updates), flush=True)


if __name__ == "__main__":
    main()
