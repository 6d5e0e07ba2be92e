"""A model that writes into what it is given changes nothing that is measured, and no record."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradaudit
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import AuditError
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.report import Report

N = 96
SAMPLES = {"vinfo": None, "subspace": 24, "attack labels": 2, "sensitivity": 4}


class Net(nn.Module):
    """Scales its inputs, in place or not, before it runs."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.conv = nn.Conv2d(1, 2, 2)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sub_(0.1).div_(0.5) if self.in_place else x.sub(0.1).div(0.5)
        return self.fc(torch.sigmoid(self.conv(x)).flatten(1))  # type: ignore[no-any-return]


class Clipping(nn.Module):
    """Clips its weights when it runs, as some networks do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0
        self.fc = nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            weight = self.fc.weight if self.how == "no_grad" else self.fc.weight.data
            if self.how != "later" or self.calls > 1:
                weight.clamp_(-0.01, 0.01)
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def net(in_place: bool) -> Net:
    torch.manual_seed(0)
    return Net(in_place)


def records() -> Records:
    generator = torch.Generator().manual_seed(1)
    sign = np.arange(N) % 2
    inputs = 0.75 * torch.rand(N, 1, 3, 3, generator=generator)
    return Records(
        inputs=inputs + torch.from_numpy(sign)[:, None, None, None] / 4,
        labels=torch.arange(N) // 2 % 2,
        attributes={"sign": Attribute(sign, ("a", "b"))},
    )


AUDITS: dict[str, Mapping[str, Any]] = {
    "sensitivity": {},
    "vinfo": {"batch_size": 2, "batches": 10, "repeats": 2, "family": ("logistic",)},
    "subspace": {"permutations": 19},
    "copa-metric": {},
    "forward": {},
    "attack reconstruct": {"method": ("dlg",), "restarts": 1, "iterations": 2},
    "attack labels": {"iterations": 5},
    "attack property": {"batch_size": 2, "shadow": 8, "trials": 8},
}


def same(one: Report, other: Report) -> bool:
    """Whether the same was measured, to rounding."""
    names, numbers = zip(*(_names_and_numbers(report) for report in (one, other)), strict=True)
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-12)
    return bool(names[0] == names[1]) and one.data == other.data


def _names_and_numbers(report: Report) -> tuple[list[tuple[Any, ...]], list[float]]:
    rows = report.measurements
    names = [(row.audit, row.metric, row.layer, row.variant, row.status) for row in rows]
    numbers = [(row.value, *(row.interval or (None, None))) for row in rows]
    return names, [np.nan if x is None else x for row in numbers for x in row]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", AUDITS)
def test_what_is_measured_is_that_of_a_model_that_works_on_copies(name: str) -> None:
    given, untouched = records(), records()
    attributes = ["sign"] if name != "attack labels" else []
    reports = [
        gradaudit.audit(
            net(in_place),
            given,
            audits={name: AUDITS[name]},
            attributes=attributes,
            samples=SAMPLES.get(name, 8),
        )
        for in_place in (False, True)
    ]
    polite, rude = reports
    assert any(row.status == "measured" for row in polite.measurements), polite.measurements[0]
    assert same(rude, polite)
    assert torch.equal(given.inputs, untouched.inputs)
    assert torch.equal(given.labels, untouched.labels)


@pytest.mark.parametrize("how", ["data", "no_grad", "later"])
def test_a_model_that_writes_into_its_weights_is_refused_and_left_alone(how: str) -> None:
    model = Clipping(how)
    before = model.fc.weight.detach().clone()
    with pytest.raises(AuditError, match=r"writes into its own weights .* \(fc\.weight\)"):
        gradaudit.audit(model, records(), audits=["sensitivity"])
    assert torch.equal(model.fc.weight, before)


def test_a_loss_that_writes_into_labels_or_outputs() -> None:
    def polite(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs * 2, 1 - targets, reduction="none")

    def rude(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            outputs.mul_(2), targets.neg_().add_(1), reduction="none"
        )

    given = records()
    found = [
        gradaudit.audit(
            net(False),
            given,
            audits={"vinfo": AUDITS["vinfo"]},
            attributes=["sign"],
            loss=CustomLoss(function, "mine"),
        )
        for function in (polite, rude)
    ]
    assert same(*found)
    assert torch.equal(given.labels, records().labels)
