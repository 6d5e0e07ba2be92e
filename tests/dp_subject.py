"""A small table and model for the tests of the dp-audit: every kind of column, quick to audit."""

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor, nn

from gradaudit.audits.dp_audit.game.domain import Domain, DomainName, PrivateColumn
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses
from gradaudit.audits.dp_audit.game.sensitivity import (
    RecordGradients,
    RecordSensitivity,
    cosine_distance,
    squared_gap,
)
from gradaudit.audits.dp_audit.mechanisms import FileMechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.core.noise_laws import Noise, NoisePlace
from gradaudit.data.records import Attribute, Feature, Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.subject import Subject

FEATURES = (
    Feature("age", (0,), (-1.5, 2.0)),
    Feature("sex", (1, 2), values=("female", "male")),
    Feature("hours", (3,), (-1.0, 1.0)),
    Feature("race", (4, 5, 6), values=("a", "b", "c")),
    Feature("job", (7, 8, 9, 10), values=("p", "q", "r", "s")),
)
RECORDS = 60


def table(records: int = RECORDS, seed: int = 0) -> Records:
    """Records with two numbers and three categories; the label goes with age and sex."""
    rng = np.random.default_rng(seed)
    age, hours = rng.uniform(-1.5, 2, records), rng.uniform(-1, 1, records)
    codes = {name: rng.integers(0, count, records) for name, count in COUNTS.items()}
    one_hot = {name: np.eye(COUNTS[name])[code] for name, code in codes.items()}
    inputs = np.column_stack([age, one_hot["sex"], hours, one_hot["race"], one_hot["job"]])
    labels = (age + codes["sex"] + rng.normal(size=records) > 0.8).astype(np.int64)
    return Records(
        inputs=torch.tensor(inputs, dtype=torch.float32),
        labels=torch.from_numpy(labels),
        classes=("no", "yes"),
        attributes={
            feature.name: Attribute(codes[feature.name], feature.values)
            for feature in FEATURES
            if feature.values
        },
        features=FEATURES,
        adapter="test",
    )


COUNTS = {"sex": 2, "race": 3, "job": 4}


def model(depth: int = 1, width: int = 8, seed: int = 0) -> nn.Module:
    """An MLP of 11 inputs and 2 classes in float32, whose signals neither fade nor grow (He)."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs in (11, *[width] * (depth - 1)):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
    built = nn.Sequential(*layers, nn.Linear(width, 2)).eval()
    for parameter in built.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, generator=generator)
        else:
            nn.init.uniform_(parameter, -0.3, 0.3, generator=generator)
    return built


def subject(*attributes: str, depth: int = 1, width: int = 8, seed: int = 0) -> Subject:
    """The table and the model, asked about these attributes."""
    target = Target(model(depth, width), CrossEntropy())
    return Subject((target,), table(), target.layers, attributes=attributes, seed=seed)


def hypotheses(
    gap: float, *, elements: int = 40, companions: int = 0, values: int = 1
) -> Hypotheses:
    """Gradients of norm below one that lie ``gap`` apart, value by value further."""
    generator = torch.Generator().manual_seed(elements)
    null = torch.randn(elements, generator=generator, dtype=torch.float64)
    null *= 0.1 / null.norm()
    away = torch.randn(values, elements, generator=generator, dtype=torch.float64)
    away *= gap / away.norm(dim=1, keepdim=True) * torch.arange(1, values + 1)[:, None]
    others = torch.randn(companions, elements, generator=generator, dtype=torch.float64)
    return Hypotheses(null, null + away, others)


def clip(gradients: Tensor, bound: float) -> Tensor:
    """Clip as a user's file might."""
    lengths = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    return gradients / (lengths / bound).clamp(min=1)


Release = Callable[[Tensor, Generator], Tensor]


def from_file(function: Release, noise: Noise | None = None) -> FileMechanism:
    """A mechanism as a user's file has it, with the law of its noise declared or not."""
    return FileMechanism(function, "f.py:m", noise)


def domain(attribute: str = "sex", name: DomainName = "feasible") -> Domain:
    """The domain of the table's records."""
    return Domain.of(table(), PrivateColumn.of(table(), attribute), name)


def deaf(gradients: Tensor, generator: Generator) -> Tensor:
    """Noise alone."""
    return torch.randn(gradients.shape[1], generator=generator)


def sums_under_loud_noise(gradients: Tensor, generator: Generator) -> Tensor:
    """Noise far above the gradients."""
    return clip(gradients, 5).sum(0) + 50 * torch.randn(gradients.shape[1], generator=generator)


def noise_that_no_seed_reaches(gradients: Tensor, generator: Generator) -> Tensor:
    """Noise that no seed reaches."""
    fresh = np.random.default_rng(int.from_bytes(os.urandom(16))).normal(size=gradients.shape[1])
    return clip(gradients, 1).sum(0) + 0.05 * torch.from_numpy(fresh).float()


def sensitivity(
    attribute: str = "sex", per: NoisePlace = "sum", companions: int = 0
) -> RecordSensitivity:
    """Of the table's records under DP-SGD with a clip of .5."""
    audited = subject(attribute)
    records = audited.records
    gradients = RecordGradients.of(audited.target, records.inputs, records.labels)
    others = gradients(records.inputs[:companions], records.labels[:companions])
    mean = ClippedNoise(clip=0.5, sigma=1, per=per).noiseless
    return RecordSensitivity(
        gradients,
        PrivateColumn.of(records, attribute),
        mean,
        (squared_gap(mean, others), cosine_distance),
        others.detach(),
        memory=1 << 24,
    )


def starts(records: Records, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first records of a table, and their labels."""
    return records.inputs[:count].double(), records.labels[:count]


def expect_feasible(inputs: torch.Tensor, records: Records) -> None:
    """Fail unless these rows are such records as the table's columns allow."""
    for feature in records.features:
        block = inputs[:, list(feature.positions)]
        if feature.values:
            assert ((block == 0) | (block == 1)).all(), feature.name
            assert (block.sum(dim=1) == 1).all(), feature.name
        else:
            observed = records.inputs[:, list(feature.positions)].double()
            assert (block >= observed.min()).all(), feature.name
            assert (block <= observed.max()).all(), feature.name
