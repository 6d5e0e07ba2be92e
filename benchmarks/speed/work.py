"""Seconds of gradients beside their counted work: what the constants in ``subject.py`` stand on.

    python -m benchmarks.speed.work

For each model: operations of a gradient, its seconds alone and among 32 on one thread, and the
seconds that the plan counts for both.
"""

import time
from dataclasses import replace

import numpy as np
import torch

from benchmarks.harness import heading, line
from gradaudit.config import SubjectSettings
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.run.opening import load
from gradaudit.subject import RATE, Subject

MODELS = (
    ("sample_models/models.py:digits_cnn", "digits"),
    ("zoo:mlp?inputs=10&hidden=64&classes=2", "diabetes"),
    ("zoo:mlp?inputs=10&hidden=2048&classes=2", "diabetes"),
)


def seconds(subject: Subject, count: int) -> float:
    """Mean seconds of ten gradients of the loss of some records, in single precision."""
    model = FunctionalModel.of(replace(subject.target, mode="eval"), dtype=torch.float32)
    taken = subject.records.take(np.arange(count))
    inputs, labels = model.cast(taken.inputs), model.cast(taken.labels)
    gradient = torch.func.grad(lambda weights: model.losses(weights, inputs, labels).sum())
    gradient(model.parameters)
    begun = time.perf_counter()
    for _ in range(10):
        gradient(model.parameters)
    return (time.perf_counter() - begun) / 10


def main() -> None:
    heading("model", "operations", "alone", "counted", "of 32", "counted")
    for model, data in MODELS:
        named = {"model": model, "data": data, "device": "cpu", "dtype": "float32"}
        subject = load(SubjectSettings.model_validate(named))
        line(
            model,
            f"{subject.work(1):.3g}",
            f"{seconds(subject, 1):.2e}",
            f"{subject.work(1 + subject.waiting(1)) / RATE:.2e}",
            f"{seconds(subject, 32) / 32:.2e}",
            f"{subject.work(1 + subject.waiting(1) / 32) / RATE:.2e}",
        )


if __name__ == "__main__":
    main()
