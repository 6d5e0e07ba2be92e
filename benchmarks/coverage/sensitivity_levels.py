"""Medians, deciles and means of sensitivities, and the levels that limits on them give.

    python -m benchmarks.coverage.sensitivity_levels [--records 64]

Networks: the sample models, and the zoo's on digits and diabetes, fresh and after 100, 1,000 and
5,000 steps of Adam on batches of 64. Minutes on one thread.
"""

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.harness import SAMPLES, arguments, drawn, fit
from gradaudit.audits.sensitivity import READINGS, Sensitivity
from gradaudit.audits.sensitivity.jacobian_sensitivity import DifferentiableTarget
from gradaudit.config import SubjectSettings, settle
from gradaudit.gradients.differentiation import Variable
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject
from gradaudit.subject import Subject

ZOO = {
    "zoo:mlp?inputs=10&classes=2": "diabetes",
    "zoo:mlp?inputs=64": "digits",
    "zoo:cnn3?shape=1x8x8": "digits",
    "zoo:lenet?shape=1x8x8&padding=same": "digits",
    "zoo:deep-leakage?shape=1x8x8&classes=10": "digits",
    "zoo:fcnet?shape=1x8x8": "digits",
}
STEPS = (0, 100, 1000, 5000)
LIMITS = {metric.id: (metric.warning, metric.error) for metric in Sensitivity.metrics}


def opened(**settings: object) -> Subject:
    return open_subject(settle(SubjectSettings, {"device": "cpu", **settings}, {}))


def networks() -> Iterator[tuple[str, Subject]]:
    for name, rounds in (("digits_cnn", (1, 3, 10)), ("diabetes_mlp", (1, 5, 20))):
        data = name.split("_")[0]
        for number in rounds:
            weights = SAMPLES / data / f"round-{number:02}.safetensors"
            model = f"{SAMPLES}/models.py:{name}"
            yield f"{name} {number}", opened(model=model, checkpoint=(weights,), data=data)
    for spec, data in ZOO.items():
        for steps in STEPS:
            subject = opened(model=spec, data=data)
            torch.manual_seed(0)
            net, records = subject.target.model, subject.records
            adam = torch.optim.Adam(net.parameters(), lr=2e-3)
            batches = drawn(len(records), 64, steps)
            fit(net, records.inputs.float(), records.labels, adam, batches)
            yield f"{spec[4:]} after {steps}", subject


def level(value: float, limits: tuple[float | None, float | None]) -> int:
    """0 within both limits, 1 beyond that of a warning, 2 beyond that of an error."""
    return sum(value > (limit or np.inf) for limit in limits)


def main() -> None:
    given = arguments(__doc__)
    rows = alike = 0
    for name, subject in networks():
        observed = DifferentiableTarget.of(
            subject.target, subject.layers, subject.sample(given.records), 0
        )
        for reading in (one for one in READINGS if one.quantiles):
            by: Variable = "point" if reading.reacting == "input" else "target"
            found = observed.jacobian_sensitivity(by, 0, seed=0, memory=1 << 30, progress=Silent())
            for layer, norms in found.bounded.items():
                values = norms["f"].values
                told = {
                    m: float(np.quantile(values, q.share)) for m, q in reading.quantiles.items()
                }
                mean, now = float(values.mean()), max(level(told[m], LIMITS[m]) for m in told)
                before = level(mean, LIMITS[next(iter(told))])
                rows, alike = rows + 1, alike + (now == before)
                words = " ".join(f"{m.split('_')[-1]} {value:.3g}" for m, value in told.items())
                print(
                    f"{name:40} {reading.metric:16} {layer:8} {words} mean {mean:.3g} level {now}"
                )
    print(f"{alike} of {rows} rows have the level that the median's limits on the mean give")


if __name__ == "__main__":
    main()
