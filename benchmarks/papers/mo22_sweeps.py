"""Mo et al. 2022, sections V-D and V-E: latent information under aggregation and defenses.

    python -m benchmarks.papers.mo22_sweeps [--parts aggregation,training,fraction,elements,noise]
        [--attribute older] [--records 3000] [--train 2000] [--repeats 5] [--batches 48]
        [--family forest,logistic]

The paper takes LeNet on LFW (task gender, private race) and batches of 32. The faces here are
UTKFace at 32 × 32, the task is gender, the attribute age above the median (29), or a race. For
every setting, the V-information of each layer's gradient, by ``gradaudit.audit``, in nats with
Student's interval:

- aggregation: the target's update averaged with those of 0 to 50 other batches (figure 6; the
  paper: hard to extract from 30 to 50 on);
- training: after 0 to 20 epochs (figure 7; the paper: a drop in the first epochs, then little);
- fraction, elements: a share, or a number of each layer's elements (figure 8; the paper: 5 % still
  give a great deal, most in the first fully connected layer);
- noise: clipped to a norm of 1, Gaussian noise of 1e-4 to 1 on the batch's update (figure 9; the
  paper: protects the last layers best).
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

import gradaudit
from benchmarks.harness import arguments, heading, line
from benchmarks.papers.vinfo_tables import faces, train
from gradaudit.data.records import Records
from gradaudit.models.building import load_model

TRAINED = 8
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "aggregation": {f"{n} others": {"others": n} for n in (0, 1, 5, 10, 30, 50)},
    "training": {f"{n} epochs": {"epochs": n} for n in (0, 1, 2, 5, 10, 20)},
    "fraction": {f"{share:.0%}": {"fraction": share} for share in (1.0, 0.5, 0.05, 0.01)},
    "elements": {f"{n} elements": {"elements": n} for n in (48, 480)},
    "noise": {
        f"sigma {sigma:g}": {"defense": f"dp:clip=1,sigma={sigma},per=release"}
        for sigma in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    },
}
"""What each row of a table sets: options of the audit, epochs of training or a defense."""


def lenet(training: Records, epochs: int) -> nn.Module:
    return train(load_model("zoo:lenet?classes=2", seed=0), training, epochs)


def layers_of(
    model: nn.Module, own: Records, given: argparse.Namespace, setting: Mapping[str, Any]
) -> dict[str, str]:
    """The information of each layer with its interval, in words."""
    options = {
        "batch_size": 32,
        "batches": given.batches,
        "repeats": given.repeats,
        "family": given.family,
        "correlation": False,
        **{name: value for name, value in setting.items() if name not in ("epochs", "defense")},
    }
    report = gradaudit.audit(
        model,
        own,
        audits={"vinfo": options},
        attributes=(given.attribute,),
        samples=len(own),
        defenses=(setting["defense"],) if "defense" in setting else (),
    )
    told = {}
    for row in report.select("vinfo.vinfo", variant={}):
        low, high = row.interval or (float("nan"), float("nan"))
        told[str(row.layer)] = f"{row.value:.3f} [{low:.3f}, {high:.3f}]"
    return told


def main() -> None:
    given = arguments(__doc__)
    training, others = faces([given.attribute], given.train)
    own, usual = others.take(np.arange(given.records)), lenet(training, TRAINED)
    print(f"UTKFace at 32 x 32, LeNet, task gender; {vars(given)}")
    for part in given.parts.split(","):
        for number, (title, setting) in enumerate(SETTINGS[part].items()):
            model = lenet(training, setting["epochs"]) if "epochs" in setting else usual
            told = layers_of(model, own, given, setting)
            if not number:
                print(f"\n{part}: V-information in nats")
                heading("setting", *told)
            line(title, *told.values())


if __name__ == "__main__":
    main()
