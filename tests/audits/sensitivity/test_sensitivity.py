"""Sensitivity: every row against dense Jacobians and closed forms, and what it says beside it."""

import copy
import math
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from subjects import one, rows_by
from torch import Tensor, nn

from gradaudit.audits import audits
from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions
from gradaudit.audits.sensitivity import jacobian_sensitivity as sensitivity
from gradaudit.core.text import UNBOUNDED
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, choose_layers, layers_of
from gradaudit.report import estimate
from gradaudit.subject import Subject
from tests.cases import CASES, Case
from tests.gradients.dense import jacobians as dense_jacobians

NORMS = ("f", "1", "inf")
REACTING = ("input", "label")
QUANTILES = {"median": 0.5, "decile": 0.9}
ENDS = {"input": "_bounded", "label": ""}
"""Of the metrics over range and ψ."""


def subject_of(*targets: Target, inputs: Tensor, labels: Tensor, **settings: Any) -> Subject:
    records = Records(inputs=inputs, labels=labels)
    return Subject(targets, records, targets[-1].layers, **settings)


rows_of = rows_by(Sensitivity)


def of_case(case: Case, **settings: Any) -> Subject:
    return subject_of(case.target(), inputs=case.inputs, labels=case.labels, **settings)


@cache
def jacobian(case: Case, record: int, parameter: str, by: str) -> tuple[Tensor, Tensor]:
    """One record's gradient by one parameter, and its dense Jacobian."""
    of = case.inputs[record], case.labels[record]
    return dense_jacobians(case.target(), *of, (parameter,), by=by)


def expected(case: Case, *, by: str, with_bias: bool) -> dict[tuple[str, str], list[float]]:
    """Every record's number, by layer and norm, from dense Jacobians."""
    numbers: dict[tuple[str, str], list[float]] = {}
    for layer in layers_of(case.make_model(), with_bias=with_bias):
        for record in range(len(case.inputs)):
            parts = [jacobian(case, record, name, by) for name in layer.parameter_names]
            gradient, dense = (torch.cat(part) for part in zip(*parts, strict=True))
            spread, size = float(gradient.max() - gradient.min()), len(gradient)
            found = {
                "f": float(dense.square().sum().sqrt()) / math.sqrt(size),
                "1": float(dense.abs().sum()) / size,
                "inf": float(dense.abs().max()),
            }
            for norm, number in found.items():
                numbers.setdefault((layer.name, norm), []).append(
                    number / spread if number > 1e-14 else 0.0
                )
    return numbers


FEW = [
    case
    for case in CASES
    if case.id in ("mlp-tanh", "mlp-relu-mse", "conv-grouped-dilated", "text", "lstm", "attention")
]


@pytest.mark.parametrize("with_bias", [False, True], ids=["weights", "with bias"])
@pytest.mark.parametrize("case", FEW, ids=str)
def test_values_are_means_of_dense_norms(case: Case, with_bias: bool) -> None:
    rows = rows_of(of_case(case), with_bias=with_bias)
    layers = layers_of(case.make_model())
    assert len(rows) == len(layers) * (3 * 3 * 2 + 2 * 2)
    for by in REACTING:
        numbers = expected(case, by=by, with_bias=with_bias)
        for norm in NORMS:
            total = sum(np.mean(numbers[layer.name, norm]) for layer in layers)
            for layer in layers:
                row = one(rows, f"{by}_{norm}{ENDS[by]}", layer.name)
                mean = np.mean(numbers[layer.name, norm])
                assert row.value == pytest.approx(mean, rel=1e-7, abs=1e-12)
                assert row.details["median"] == pytest.approx(
                    np.median(numbers[layer.name, norm]), rel=1e-7, abs=1e-12
                )
                assert row.interval is None
                assert (row.n, row.details["undefined"]) == (3, 0)
                share = one(rows, f"{by}_{norm}{ENDS[by]}_share", layer.name)
                assert share.value == pytest.approx(mean / total, rel=1e-7, abs=1e-12)


def test_every_metric_is_declared_and_found() -> None:
    assert audits()["sensitivity"] is Sensitivity
    means = {f"{by}_{norm}" for by in REACTING for norm in NORMS}
    means |= {f"input_{norm}_bounded" for norm in NORMS}
    promised = {f"{mean}{end}" for mean in means for end in ("", "_share")}
    promised |= {f"{mean}_{end}" for mean in ("input_f_bounded", "label_f") for end in QUANTILES}
    assert {metric.id for metric in Sensitivity.metrics} == promised
    assert set(Sensitivity.headline) <= promised
    flagged = [metric for metric in Sensitivity.metrics if metric.warning is not None]
    assert all(metric.why and metric.riskier == "higher" for metric in flagged)
    assert {metric.id for metric in flagged} == set(Sensitivity.headline)


@pytest.mark.parametrize("case", FEW, ids=str)
def test_the_inputs_own_norms_are_divided_by_nothing(case: Case) -> None:
    rows = rows_of(of_case(case))
    totals = dict.fromkeys(NORMS, 0.0)
    layers = layers_of(case.make_model())
    norms = {"f": Tensor.norm, "1": lambda j: j.abs().sum(), "inf": lambda j: j.abs().max()}
    for layer in layers:
        jacobians = [
            dense_jacobians(case.target(), record, label, layer.parameter_names)[1]
            for record, label in zip(case.inputs, case.labels, strict=True)
        ]
        for norm, of in norms.items():
            row = one(rows, f"input_{norm}", layer.name)
            expected = sum(float(of(jacobian)) for jacobian in jacobians) / len(jacobians)
            assert (row.value, row.unit) == (pytest.approx(expected, rel=1e-7), "gradient/input")
            totals[norm] += expected
    for layer in layers:
        for norm, total in totals.items():
            mean, share = (one(rows, f"input_{norm}{end}", layer.name) for end in ("", "_share"))
            assert share.value == pytest.approx((mean.value or 0) / total)


@pytest.mark.parametrize("by", REACTING)
def test_quantiles_have_exact_intervals_by_order_statistics(by: str) -> None:
    """The ranks are those of sums over exact fractions of the binomial law of 40 records."""
    subject = many_records(40)
    rows = rows_of(subject)
    for layer, values in dense_f_norms(subject, by).items():
        for name, (below, above) in {"median": (14, 27), "decile": (32, 40)}.items():
            row = one(rows, f"{by}_f{ENDS[by]}_{name}", layer)
            assert row.value == pytest.approx(np.quantile(values, QUANTILES[name]), rel=1e-6)
            expected = values[below - 1], values[above - 1]
            assert row.interval == pytest.approx(expected, rel=1e-6)
            assert (row.n, row.confidence, row.imprecise) == (40, 0.95, False)


def many_records(count: int, width: int = 5) -> Subject:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = 2 * torch.randn(count, width).double()
    target = Target(model, CrossEntropy())
    return subject_of(target, inputs=inputs, labels=torch.arange(count) % 3)


def dense_f_norms(subject: Subject, by: str) -> dict[str, list[float]]:
    """The bounded F norm of every record, sorted, by layer."""
    norms: dict[str, list[float]] = {}
    records = subject.records
    for layer in subject.layers:
        for of in zip(records.inputs, records.labels, strict=True):
            gradient, dense = dense_jacobians(subject.target, *of, layer.parameter_names, by=by)
            spread = float(gradient.max() - gradient.min())
            number = float(dense.norm()) / math.sqrt(len(gradient)) / spread
            norms.setdefault(layer.name, []).append(number)
    return {layer: sorted(values) for layer, values in norms.items()}


def test_few_records_bound_a_quantile_from_below_only() -> None:
    rows = rows_of(many_records(12))
    row = one(rows, "input_f_bounded_decile", "0")
    assert row.interval is not None
    assert 0 < row.interval[0] < (row.value or 0) < row.interval[1] == UNBOUNDED
    needed = "12 records bound the upper decile from below only; look at 36 or more (--samples)"
    assert row.doubts == (needed,)
    assert estimate(row).endswith(", infinite]")
    assert not one(rows, "input_f_bounded_median", "0").doubts
    five = one(rows_of(many_records(5)), "label_f_median", "0")
    assert five.interval == (0, UNBOUNDED)
    assert "look at 6 or more" in five.doubts[0]
    probed = one(rows_of(many_records(12, 20), probes=8), "input_f_bounded_decile", "0")
    assert "look at 38 or more" in probed.doubts[0]


def test_the_mean_is_of_the_records_that_were_looked_at() -> None:
    """No interval holds a heavy-tailed mean over others, so none is judged."""
    row = one(rows_of(many_records(12)), "label_f", "0")
    assert row.interval is None
    low, high = row.details["bootstrap_interval"]  # type: ignore[misc]
    assert low < (row.value or 0) < high
    probed = one(rows_of(many_records(12, 20), probes=8), "input_f", "0")
    assert isinstance(estimated := probed.details["estimate"], dict)
    assert list(probed.interval or ()) == estimated["interval"]


def softmax_regression(margin: float) -> tuple[nn.Linear, Tensor]:
    """Three classes, two features; the record's logits are margin, 0 and −margin/2."""
    model = nn.Linear(2, 3, bias=False).double()
    record = torch.tensor([1.0, 2.0]).double()
    logits = torch.tensor([margin, 0.0, -margin / 2]).double()
    with torch.no_grad():
        model.weight.copy_(torch.outer(logits, record) / record.dot(record))
        model.weight += torch.tensor([[2.0, -1.0], [4.0, -2.0], [-2.0, 1.0]]).double()
    return model, record


def closed_form(margin: float, label: int) -> dict[str, dict[str, float]]:
    """G = (p − e_y) xᵀ, ∂G/∂y_c = (p − e_c) xᵀ, ∂G/∂x_j = (P W)_j xᵀ + (p − e_y) e_jᵀ."""
    model, record = softmax_regression(margin)
    with mpmath.workdps(250):
        x = mpmath.matrix(record.tolist())
        w = mpmath.matrix(model.weight.tolist())
        powers = [mpmath.exp(z) for z in w * x]
        p = mpmath.matrix([power / mpmath.fsum(powers) for power in powers])
        unit = [mpmath.matrix([int(c == k) for c in range(3)]) for k in range(3)]
        residual = p - unit[label]
        gradient = list(residual * x.T)
        spread = max(gradient) - min(gradient)
        hessian = mpmath.diag(list(p)) - p * p.T
        moved = hessian * w
        columns = {
            "label": [list((p - unit[c]) * x.T) for c in range(3)],
            "input": [
                [moved[i, j] * x[k] + residual[i] * int(k == j) for i in range(3) for k in range(2)]
                for j in range(2)
            ],
        }
        found: dict[str, dict[str, float]] = {}
        for by, jacobian in columns.items():
            entries = [abs(entry) / spread for column in jacobian for entry in column]
            found[by] = {
                "f": float(mpmath.sqrt(mpmath.fsum(e**2 for e in entries) / 6)),
                "1": float(mpmath.fsum(entries) / 6),
                "inf": float(max(entries)),
            }
    return found


@pytest.mark.parametrize("margin", [0.5, 18.0, 40.0, 200.0])
@pytest.mark.parametrize("label", [0, 1, 2], ids=["confident", "wrong", "far off"])
def test_values_stay_accurate_however_confident(margin: float, label: int) -> None:
    model, record = softmax_regression(margin)
    target = Target(model, CrossEntropy())
    rows = rows_of(subject_of(target, inputs=record[None], labels=torch.tensor([label])))
    exact = closed_form(margin, label)
    for by in REACTING:
        for norm in NORMS:
            row = one(rows, f"{by}_{norm}{ENDS[by]}", "(model)")
            assert row.value == pytest.approx(exact[by][norm], rel=1e-9)
            assert row.details["confident_share"] == float(label == 0 and margin > 7)
            assert row.interval is None


def test_shares_are_taken_over_the_shown_layers() -> None:
    case = CASES[0]
    subject = of_case(case)
    one_layer = replace(subject, layers=choose_layers(subject.layers, ["2"]))
    assert one(rows_of(one_layer), "label_f_share", "2").value == pytest.approx(1)
    rows = rows_of(subject)
    shares = [row for row in rows if row.metric == "input_1_bounded_share"]
    assert sum(row.value or 0 for row in shares) == pytest.approx(1)
    assert {row.details["of"] for row in shares} == {"the sum over 2 shown layers"}
    assert not {row.layer for row in rows_of(one_layer)} - {"2"}


def test_the_median_of_an_even_number_of_records_lies_between() -> None:
    case = CASES[0]
    numbers = expected(case, by="input", with_bias=False)["0", "f"]
    two = subject_of(case.target(), inputs=case.inputs[:2], labels=case.labels[:2])
    found = one(rows_of(two), "input_f_bounded", "0").details["median"]
    assert found == pytest.approx(sum(numbers[:2]) / 2)


def test_older_rounds_are_variants() -> None:
    case = CASES[0]
    targets = [Target(case.make_model(seed), case.loss) for seed in (1, 2, 3)]
    rows = rows_of(subject_of(*targets, inputs=case.inputs, labels=case.labels))
    for number, target in enumerate(targets, start=1):
        alone = rows_of(subject_of(target, inputs=case.inputs, labels=case.labels))
        variant = {} if number == 3 else {"round": number}
        for row in alone:
            assert one(rows, row.metric, row.layer or "", **variant).value == row.value
    assert len(rows) == 3 * len(alone)


def test_records_without_a_range_are_counted_and_left_out() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))
    inputs = torch.rand(4, 1, 3, 3)
    labels = torch.tensor([0, 1, 0, 1])
    rest = rows_of(subject_of(Target(model, CrossEntropy()), inputs=inputs[1:], labels=labels[1:]))
    inputs[0] = 0
    rows = rows_of(subject_of(Target(model, CrossEntropy()), inputs=inputs, labels=labels))
    row = one(rows, "input_f_bounded", "0")
    assert (row.n, row.details["undefined"]) == (3, 1)
    assert row.value == pytest.approx(one(rest, "input_f_bounded", "0").value)
    assert one(rows, "input_f_bounded_share", "0").details["undefined"] == 1
    # The label does not move a gradient that is zero for every label.
    by_label = one(rows, "label_f", "0")
    assert (by_label.n, by_label.details["undefined"]) == (4, 0)
    assert by_label.value == pytest.approx((one(rest, "label_f", "0").value or 0) * 3 / 4)


def test_a_record_whose_label_is_certain_has_no_range() -> None:
    """The square of its gradient's range, e^-400 here, is below the smallest number."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    inputs = torch.tensor([[400.0, 0.0], *torch.rand(6, 2).tolist()], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    target = Target(model, CrossEntropy())
    rest = rows_of(subject_of(target, inputs=inputs[1:], labels=labels[1:]))
    rows = rows_of(subject_of(target, inputs=inputs, labels=labels))
    for metric in ("input_f_bounded", "input_inf_bounded", "label_f", "label_1"):
        row = one(rows, metric, "0")
        assert (row.n, row.details["undefined"]) == (6, 1)
        assert row.value == pytest.approx(one(rest, metric, "0").value)


def test_no_record_with_a_range_leaves_nothing_measured() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))
    blank = subject_of(
        Target(model, CrossEntropy()), inputs=torch.zeros(2, 1, 3, 3), labels=torch.tensor([0, 1])
    )
    row = one(rows_of(blank), "input_f_bounded", "0")
    assert (row.status, row.value) == ("failed", None)
    assert "range zero" in (row.reason or "")
    assert row.details["undefined"] == 2
    share = one(rows_of(blank), "input_f_bounded_share", "0")
    assert (share.status, share.details["undefined"]) == ("failed", 2)


def test_layers_of_one_element_are_skipped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.PReLU(), nn.Linear(1, 1), nn.Linear(1, 2))
    rows = rows_of(
        subject_of(
            Target(model, CrossEntropy()), inputs=torch.rand(3, 3), labels=torch.tensor([0, 1, 1])
        )
    )
    for layer in ("1", "2"):
        assert one(rows, "input_f", layer).status == "measured"
        for metric in ("input_f_bounded", "input_f_bounded_share", "label_1", "label_inf_share"):
            row = one(rows, metric, layer)
            assert (row.status, row.reason) == (
                "skipped",
                "its gradient has one element, which has no range to divide by",
            )
    assert one(rows, "input_f_bounded", "0").value
    shares = [one(rows, "input_f_bounded_share", layer).value or 0 for layer in ("0", "3")]
    assert sum(shares) == pytest.approx(1)


def test_a_dead_network_reacts_to_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].bias.fill_(-100)
    rows = rows_of(
        subject_of(
            Target(model, CrossEntropy()), inputs=torch.rand(3, 4), labels=torch.tensor([0, 1, 0])
        )
    )
    for by in REACTING:
        for norm in NORMS:
            assert one(rows, f"{by}_{norm}{ENDS[by]}", "0").value == 0
            share = one(rows, f"{by}_{norm}{ENDS[by]}_share", "0")
            assert (share.status, "reacts" in (share.reason or "")) == ("skipped", True)


def test_one_record_that_carries_the_mean_is_pointed_out() -> None:
    model, record = softmax_regression(30.0)
    inputs = torch.stack([record, -0.1 * record, 0.05 * record])
    rows = rows_of(
        subject_of(Target(model, CrossEntropy()), inputs=inputs, labels=torch.tensor([0, 0, 0]))
    )
    row = one(rows, "label_f", "(model)")
    assert "one record makes up 100% of the mean" in str(row.details["warning"])
    assert row.details["confident_share"] == pytest.approx(1 / 3)
    assert "warning" not in one(rows_of(of_case(CASES[0])), "input_f_bounded", "0").details


@pytest.mark.parametrize("by", REACTING)
def test_probes_are_never_silent(by: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 4), nn.Tanh(), nn.Linear(4, 20))
    subject = subject_of(
        Target(model, CrossEntropy()), inputs=torch.rand(5, 30), labels=torch.arange(5)
    )
    exact, probed = rows_of(subject), rows_of(subject, probes=10)
    for norm in ("f", "1"):
        row = one(probed, f"{by}_{norm}{ENDS[by]}", "0")
        estimate = row.details["estimate"]
        assert isinstance(estimate, dict)
        assert estimate["probes"] == 10
        of = "10 directions" if norm == "f" else f"10 of {30 if by == 'input' else 20} columns"
        assert f"estimated from {of}" in str(row.details["method"])
        assert "all columns" in str(one(exact, f"{by}_{norm}{ENDS[by]}", "0").details["method"])
        low, high = estimate["interval"]
        assert low < (one(exact, f"{by}_{norm}{ENDS[by]}", "0").value or 0) < high
        assert row.value != one(exact, f"{by}_{norm}{ENDS[by]}", "0").value
    skipped = one(probed, f"{by}_inf{ENDS[by]}", "0")
    assert (skipped.status, skipped.reason) == (
        "skipped",
        "10 probes do not show the largest entry; --probes 0 measures it",
    )
    assert one(probed, f"{by}_inf{ENDS[by]}_share", "0").status == "skipped"
    without = rows_of(subject, probes=10, one_norm=False)
    assert (
        one(without, f"{by}_f{ENDS[by]}", "0").value == one(probed, f"{by}_f{ENDS[by]}", "0").value
    )
    assert one(without, f"{by}_1{ENDS[by]}", "0").reason == (
        "the 1-norm was not estimated beside 10 probes; --one-norm does"
    )
    assert one(rows_of(subject, probes=0, one_norm=False), f"{by}_1{ENDS[by]}", "0").value
    assert [row.value for row in rows_of(subject, probes=10)] == [row.value for row in probed]
    assert [row.interval for row in rows_of(subject, probes=10)] == [r.interval for r in probed]


def test_what_is_not_affordable_is_estimated_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sensitivity, "AFFORDABLE", 1)
    monkeypatch.setattr(sensitivity, "PROBES", 9)
    torch.manual_seed(0)
    subject = subject_of(
        Target(nn.Linear(12, 3), CrossEntropy()), inputs=torch.rand(2, 12), labels=torch.arange(2)
    )
    assert "estimate" in one(rows_of(subject), "input_f_bounded", "(model)").details
    assert "estimate" not in one(rows_of(subject), "label_f", "(model)").details
    assert "estimate" not in one(rows_of(subject, probes=0), "input_f_bounded", "(model)").details


def test_too_few_probes_are_refused() -> None:
    with pytest.raises(ValidationError, match="3 probes give no interval"):
        SensitivityOptions(probes=3)
    assert SensitivityOptions(probes=8).probes == 8


def test_a_loss_without_real_labels_has_no_label_sensitivity() -> None:
    case = next(case for case in CASES if case.id == "mlp-custom-each")
    rows = rows_of(of_case(case))
    row = one(rows, "label_f", "0")
    assert (row.status, "integer labels" in (row.reason or "")) == ("skipped", True)
    assert one(rows, "input_f_bounded", "0").status == "measured"


def test_a_jacobian_that_fails_leaves_failed_rows() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.detach() * outputs).sum(dim=1) + 0 * targets.detach().sum()

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return Once.apply(self.last(self.first(x).tanh()))

    target = Target(Model(), CrossEntropy())
    rows = rows_of(subject_of(target, inputs=torch.rand(2, 3), labels=torch.tensor([0, 1])))
    row = one(rows, "input_f_bounded", "first")
    assert row.status == "failed"
    assert "can be differentiated only once; write this operation of the model" in str(row.reason)


def test_a_loss_without_a_second_derivative_is_told_how_to_get_one() -> None:
    def margin(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.multi_margin_loss(outputs, targets, reduction="none")

    target = Target(nn.Sequential(nn.Linear(3, 3)), CustomLoss(margin, "my.py:margin"))
    rows = rows_of(subject_of(target, inputs=torch.rand(2, 3), labels=torch.tensor([0, 1])))
    row = one(rows, "input_f_bounded", "0")
    assert row.status == "failed"
    assert "--loss my.py:margin with ones that can be differentiated twice" in str(row.reason)
    label = one(rows, "label_f", "0")
    assert label.status == "skipped"
    assert "a loss of real targets" in str(label.reason)


def test_each_record_is_a_batch_of_its_own() -> None:
    case = next(case for case in CASES if case.id == "batch-norm")
    target = replace(case.target(), mode="train")
    rows = rows_of(subject_of(target, inputs=case.inputs, labels=case.labels))
    assert "normalises by its batch" in str(one(rows, "input_f_bounded", "0").details["coupling"])
    _, dense = dense_jacobians(target, case.inputs[0], case.labels[0], ["0.weight"])
    alone = rows_of(subject_of(target, inputs=case.inputs[:1], labels=case.labels[:1]))
    assert one(alone, "input_inf_bounded", "0").value == pytest.approx(
        float(dense.abs().max() / _range(target, case))
    )
    flat = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    lonely = Target(flat, CrossEntropy(), mode="train")
    with pytest.raises(NotApplicable, match=r"alone a record fails: .*more than 1 value"):
        rows_of(subject_of(lonely, inputs=torch.rand(4, 4), labels=torch.tensor([0, 1, 0, 1])))


def _range(target: Target, case: Case) -> Tensor:
    gradient, _ = dense_jacobians(target, case.inputs[0], case.labels[0], ["0.weight"])
    return gradient.max() - gradient.min()


def test_numbers_that_are_not_finite_are_told() -> None:
    broken = nn.Linear(4, 3)
    with torch.no_grad():
        broken.weight[0, 0] = torch.nan
    inputs, labels = torch.rand(3, 4), torch.tensor([0, 1, 2])
    with pytest.raises(AuditError, match="outputs are not finite"):
        rows_of(subject_of(Target(broken, CrossEntropy()), inputs=inputs, labels=labels))

    def steep(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.square() - outputs.square().detach()).sqrt().sum(dim=1)

    target = Target(nn.Linear(4, 3), CustomLoss(steep, "steep"))
    row = one(
        rows_of(subject_of(target, inputs=inputs, labels=labels)), "input_f_bounded", "(model)"
    )
    assert (row.status, "not finite" in (row.reason or "")) == ("failed", True)


def test_integers_without_an_embedding_cannot_vary() -> None:
    class Counts(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.weight.dtype))

    target = Target(Counts(3, 2), CrossEntropy())
    rows = rows_of(
        subject_of(target, inputs=torch.tensor([[1, 2, 3], [4, 5, 7]]), labels=torch.tensor([0, 1]))
    )
    row = one(rows, "input_f_bounded", "(model)")
    assert (row.status, "no embedding" in (row.reason or "")) == ("skipped", True)
    assert one(rows, "label_f", "(model)").status == "measured"


def test_the_model_is_exactly_as_before() -> None:
    case = next(case for case in CASES if case.id == "residual")
    model = case.make_model().train()
    model.conv1.weight.grad = torch.ones_like(model.conv1.weight)
    before = copy.deepcopy(model.state_dict())
    generator = torch.get_rng_state()
    subject = subject_of(Target(model, case.loss), inputs=case.inputs, labels=case.labels)
    rows_of(subject)
    rows_of(subject, probes=8)
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.conv1.weight.grad, torch.ones_like(model.conv1.weight))
    assert model.fc.weight.grad is None
    assert torch.equal(torch.get_rng_state(), generator)


def test_listing_the_audit_does_not_import_torch() -> None:
    code = "import sys, gradaudit.audits.sensitivity; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
