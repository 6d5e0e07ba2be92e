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
import time
from collections.abc import Callable

import numpy as np
from torch import nn

import gradaudit
from benchmarks.harness import arguments
from benchmarks.papers.vinfo_tables import faces, train
from gradaudit.data.records import Records
from gradaudit.models.building import load_model

OTHERS = (0, 1, 5, 10, 30, 50)
EPOCHS = (0, 1, 2, 5, 10, 20)
FRACTIONS = (1.0, 0.5, 0.05, 0.01)
ELEMENTS = (48, 480)
SIGMAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
TRAINED = 8


def lenet(training: Records, epochs: int) -> nn.Module:
    return train(load_model("zoo:lenet?classes=2", seed=0), training, epochs)


class Sweep:
    """Rows of one table: a setting each."""

    def __init__(self, records: Records, given: argparse.Namespace) -> None:
        self.records, self.given = records, given
        self.headed = False

    def row(
        self, title: str, model: nn.Module, defense: tuple[str, ...] = (), **options: object
    ) -> None:
        begun = time.perf_counter()
        report = gradaudit.audit(
            model,
            self.records,
            audits={
                "vinfo": {
                    "batch_size": 32,
                    "batches": self.given.batches,
                    "repeats": self.given.repeats,
                    "family": self.given.family,
                    "correlation": False,
                    **options,
                }
            },
            attributes=(self.given.attribute,),
            samples=len(self.records),
            defenses=defense,
        )
        rows = [row for row in report.select("vinfo.vinfo") if not row.variant]
        if not self.headed:
            print(f"{'':16}" + "".join(f"{row.layer:>22}" for row in rows))
            self.headed = True
        ends = (row.interval or (float("nan"), float("nan")) for row in rows)
        cells = (
            f"{row.value:.3f} [{low:.3f}, {high:.3f}]"
            for row, (low, high) in zip(rows, ends, strict=True)
        )
        seconds = time.perf_counter() - begun
        print(
            f"{title:16}" + "".join(f"{cell:>22}" for cell in cells) + f"{seconds:7.0f} s",
            flush=True,
        )


def tables(
    training: Records, own: Records, given: argparse.Namespace
) -> dict[str, Callable[[], None]]:
    model = lenet(training, TRAINED)

    def each(settings: dict[str, dict[str, object]]) -> Callable[[], None]:
        def run() -> None:
            sweep = Sweep(own, given)
            for title, options in settings.items():
                sweep.row(title, **{"model": model, **options})  # type: ignore[arg-type]

        return run

    return {
        "aggregation": each({f"{n} others": {"others": n} for n in OTHERS}),
        "training": each({f"{n} epochs": {"model": lenet(training, n)} for n in EPOCHS}),
        "fraction": each({f"{share:.0%}": {"fraction": share} for share in FRACTIONS}),
        "elements": each({f"{n} elements": {"elements": n} for n in ELEMENTS}),
        "noise": each(
            {
                f"sigma {sigma:g}": {"defense": (f"dp:clip=1,sigma={sigma},per=release",)}
                for sigma in SIGMAS
            }
        ),
    }


def main() -> None:
    given = arguments(__doc__)
    training, others = faces([given.attribute], given.train)
    own = others.take(np.arange(given.records))
    run = tables(training, own, given)
    print(f"UTKFace at 32 x 32, LeNet, task gender; {vars(given)}")
    for part in given.parts.split(","):
        print(f"\n{part}: V-information in nats")
        run[part]()


if __name__ == "__main__":
    main()
