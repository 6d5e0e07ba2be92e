"""The forward audit: its rows against a plain loop, its refusals, its command."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from subjects import one, rows_by, seeded, subject_of
from torch import nn

from gradaudit.audits.forward import Forward, ForwardOptions
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.subject import Subject
from tests.cases import CASES
from tests.command_line import run

SAMPLE = (
    *("-m", "sample_models/models.py:digits_cnn"),
    *("-c", "sample_models/digits/round-10.safetensors"),
    *("-d", "digits", "--device", "cpu"),
)


def of_models(*models: nn.Module, records: int = 12, **settings: Any) -> Subject:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(records, 4, generator=generator, dtype=torch.float64) / 2
    labels = torch.randint(3, (records,), generator=generator)
    targets = tuple(Target(model.double(), CrossEntropy()) for model in models)
    return Subject(targets, Records(inputs, labels), targets[-1].layers, **settings)


def net(seed: int = 0) -> nn.Module:
    with seeded(seed):
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


rows_of = rows_by(Forward)


def looped(points: torch.Tensor, width: float) -> float:
    inner = [sum(math.exp(-float((t - u).square().sum()) / width) for u in points) for t in points]
    return -sum(math.log2(each / len(points)) for each in inner) / len(points)


@pytest.mark.parametrize("sigma2", [None, 0.02])
def test_every_layer_by_a_plain_loop(sigma2: float | None) -> None:
    model = net()
    subject = of_models(model)
    rows = rows_of(subject, **({} if sigma2 is None else {"sigma2": sigma2}))
    assert len(rows) == 2 * 3
    noise = sigma2 or 0.1
    for layer in ("0", "2"):
        points = model[: int(layer) + 1](subject.records.inputs).detach()  # type: ignore[index]
        upper, lower = looped(points, 2 * noise), looped(points, 8 * noise)
        assert one(rows, "information_upper", layer).value == pytest.approx(upper, rel=1e-9)
        assert one(rows, "information_lower", layer).value == pytest.approx(lower, rel=1e-9)
        fraction = one(rows, "fraction", layer)
        assert fraction.value == pytest.approx(upper / math.log2(12), rel=1e-9)
        assert fraction.details["sigma2"] == noise
        assert fraction.interval is not None
        assert fraction.interval[0] <= upper / math.log2(12) <= fraction.interval[1] <= 1
        assert (fraction.n, fraction.confidence) == (12, 0.95)


def test_older_checkpoints_are_rounds() -> None:
    rows = rows_of(of_models(net(0), net(1)))
    alone = rows_of(of_models(net(0)))
    assert one(rows, "fraction", "0", round=1).value == one(alone, "fraction", "0").value
    assert one(rows, "fraction", "0").value != one(alone, "fraction", "0").value


@pytest.mark.parametrize("memory", [1 << 14, 1 << 30])
def test_memory_changes_nothing(memory: int) -> None:
    (case,) = [case for case in CASES if case.id == "conv-pooled"]
    scales = torch.linspace(0.5, 2, 12, dtype=torch.float64)[:, None, None, None]
    records = Records(case.inputs.repeat(4, 1, 1, 1) * scales, case.labels.repeat(4))
    target = case.target()
    subject = subject_of(target, records)
    found = [row.value for row in rows_of(replace(subject, memory=memory))]
    assert found == pytest.approx([row.value for row in rows_of(subject)], rel=1e-12)


def test_rows_at_their_ceiling_are_no_finding() -> None:
    """Records that all lie apart give log2 N in any layer; through more noise they do not."""
    subject = of_models(net(), records=20)
    apart = rows_of(subject, sigma2=1e-6)
    assert {row.value for row in apart if row.metric == "fraction"} == {1.0}
    for row in apart:
        assert (row.details["ceiling"], row.imprecise) == (True, False)
        assert "log2 20; look at more records" in str(row.details["warning"])
    for row in rows_of(subject, sigma2=1.0):
        assert not {"ceiling", "warning"} & set(row.details)


def test_identical_records_tell_nothing() -> None:
    subject = of_models(net())
    same = replace(subject.records, inputs=subject.records.inputs[:1].expand(12, 4))
    for row in rows_of(replace(subject, records=same)):
        assert row.value == pytest.approx(0, abs=1e-12)
        assert row.interval == pytest.approx((0, 0), abs=1e-12)


def test_a_layer_that_never_runs_is_skipped() -> None:
    (case,) = [case for case in CASES if case.id == "unused-and-frozen"]
    target = case.target()
    rows = rows_of(subject_of(target, Records(case.inputs, case.labels)))
    assert {row.status for row in rows if row.layer == "spare"} == {"skipped"}
    assert {row.status for row in rows if row.layer == "head"} == {"measured"}


def test_activations_that_are_not_finite_fail() -> None:
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = math.inf  # type: ignore[index]
    rows = rows_of(of_models(model))
    assert {row.status for row in rows if row.layer == "0"} == {"failed"}
    assert "not finite" in str(one(rows, "fraction", "0").reason)
    assert {row.status for row in rows if row.layer == "2"} == {"measured"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"samples": 2}, "2 records cannot be distinguished by much; look at 3 or more"),
        ({"memory": 16 * 100}, "12 records do not fit into memory; look at 10 or fewer"),
    ],
)
def test_numbers_of_records_that_will_not_do(settings: dict[str, int], reason: str) -> None:
    subject = of_models(net(), **settings)
    with pytest.raises(NotApplicable, match=reason):
        rows_of(subject)


@pytest.mark.parametrize("sigma2", [0, -1, math.inf, math.nan])
def test_noise_that_is_none_is_refused(sigma2: float) -> None:
    with pytest.raises(ValidationError):
        ForwardOptions(sigma2=sigma2)


def test_the_plan_counts_forward_passes() -> None:
    audit = Forward(ForwardOptions())
    one, two = of_models(net()), of_models(net(), net(1), samples=4)
    assert audit.gradients(one) == 6
    assert audit.gradients(two) == 4


def test_the_sample_model_on_the_command_line() -> None:
    done = run("forward", *SAMPLE, "--samples", "60", "--sigma2", "1.5", "-f", "json")
    assert done.status == 0, done.err
    rows = {
        (row["metric"], row["layer"]): row["value"] for row in json.loads(done.out)["measurements"]
    }
    assert len(rows) == 3 * 4
    most = np.log2(60)
    for layer in ("conv1", "conv2", "fc1", "fc2"):
        assert 0 < rows["information_lower", layer] < rows["information_upper", layer] <= most
        assert rows["fraction", layer] == pytest.approx(rows["information_upper", layer] / most)
