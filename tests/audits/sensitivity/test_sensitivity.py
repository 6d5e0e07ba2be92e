"""Sensitivity: every row against dense Jacobians and closed forms, and what it says beside it."""

import copy
import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from subjects import one, rows_by
from torch import Tensor, nn

from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions
from gradaudit.audits.sensitivity import jacobian_sensitivity as sensitivity
from gradaudit.core.text import UNBOUNDED
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import CrossEntropy, Loss
from gradaudit.models.target import Mode, Target, choose_layers, layers_of
from gradaudit.report import estimate
from gradaudit.subject import Subject
from tests.cases import CASES, Case
from tests.gradients.dense import jacobians as dense_jacobians

Array = NDArray[np.float64]
NORMS = ("f", "1", "inf")
REACTING = ("input", "label")
QUANTILES = {"median": 0.5, "decile": 0.9}
ENDS = {"input": "_bounded", "label": ""}
"""Of the metrics over range and ψ."""


def subject_of(*targets: Target, inputs: Tensor, labels: Tensor, **settings: Any) -> Subject:
    records = Records(inputs=inputs, labels=labels)
    return Subject(targets, records, targets[-1].layers, **settings)


def of_model(
    model: nn.Module, inputs: Tensor, *labels: int, loss: Loss | None = None, mode: Mode = "eval"
) -> Subject:
    """A model with records of these labels."""
    target = Target(model, loss or CrossEntropy(), mode=mode)
    return subject_of(target, inputs=inputs, labels=torch.tensor(labels))


rows_of = rows_by(Sensitivity)


def of_case(case: Case, **settings: Any) -> Subject:
    return subject_of(case.target(), inputs=case.inputs, labels=case.labels, **settings)


@cache
def jacobian(case: Case, record: int, parameter: str, by: str) -> tuple[Tensor, Tensor]:
    """One record's gradient by one parameter, and its dense Jacobian."""
    of = case.inputs[record], case.labels[record]
    return dense_jacobians(case.target(), *of, (parameter,), by=by)


def expected(case: Case, by: str, **how: bool) -> dict[tuple[str, str], tuple[Array, Array]]:
    """Every record's number by layer and norm, as it is and over range and ψ, from dense ones."""
    numbers: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for layer in layers_of(case.make_model(), **how):
        for record in range(len(case.inputs)):
            parts = [jacobian(case, record, name, by) for name in layer.parameter_names]
            gradient, dense = (torch.cat(part) for part in zip(*parts, strict=True))
            spread, size = float(gradient.max() - gradient.min()), len(gradient)
            for norm, number, psi in (
                ("f", float(dense.norm()), math.sqrt(size)),
                ("1", float(dense.abs().sum()), size),
                ("inf", float(dense.abs().max()), 1),
            ):
                bounded = number / psi / spread if number > 1e-14 * psi else 0.0
                numbers.setdefault((layer.name, norm), []).append((number, bounded))
    return {key: (np.array(of)[:, 0], np.array(of)[:, 1]) for key, of in numbers.items()}


FEW = [
    case
    for case in CASES
    if case.id in ("mlp-tanh", "mlp-relu-mse", "conv-grouped-dilated", "text", "lstm", "attention")
]


@pytest.mark.parametrize("case", FEW, ids=str)
def test_values_are_means_of_dense_norms(case: Case) -> None:
    """The input's own norms are divided by nothing; biases count where they are asked for."""
    how = {"with_bias": case.id == "mlp-tanh"}
    rows, layers = rows_of(of_case(case), **how), layers_of(case.make_model())
    assert len(rows) == len(layers) * (3 * 3 * 2 + 2 * 2)
    for by, metric, which in (
        ("input", "input_{}", 0),
        ("input", "input_{}_bounded", 1),
        ("label", "label_{}", 1),
    ):
        numbers = {key: both[which] for key, both in expected(case, by, **how).items()}
        for norm in NORMS:
            total = sum(numbers[layer.name, norm].mean() for layer in layers)
            for layer in layers:
                mean = numbers[layer.name, norm].mean()
                near = partial(pytest.approx, rel=1e-7, abs=1e-12)
                row = one(rows, metric.format(norm), layer.name)
                assert row.value == near(mean)
                assert row.details["median"] == near(np.median(numbers[layer.name, norm]))
                assert (row.interval, row.n, row.details["undefined"]) == (None, 3, 0)
                assert row.unit == f"{('gradient', '1')[which]}/{by}"
                share = one(rows, f"{metric.format(norm)}_share", layer.name)
                assert share.value == near(mean / total)


def test_the_headline_has_limits_and_their_reasons() -> None:
    flagged = [metric for metric in Sensitivity.metrics if metric.warning is not None]
    assert all(metric.why and metric.riskier == "higher" for metric in flagged)
    assert {metric.id for metric in flagged} == set(Sensitivity.headline)


@pytest.mark.parametrize("by", REACTING)
def test_quantiles_have_exact_intervals_by_order_statistics(by: str) -> None:
    """The ranks are those of sums over exact fractions of the binomial law of 40 records."""
    subject = many_records(40)
    rows = rows_of(subject)
    for layer, values in dense_f_norms(subject, by).items():
        for name, (below, above) in {"median": (14, 27), "decile": (32, 40)}.items():
            row = one(rows, f"{by}_f{ENDS[by]}_{name}", layer)
            assert row.value == pytest.approx(np.quantile(values, QUANTILES[name]), rel=1e-6)
            expected = np.sort(values)[[below - 1, above - 1]]
            assert row.interval == pytest.approx(expected, rel=1e-6)
            assert (row.n, row.confidence, row.imprecise) == (40, 0.95, False)


def many_records(count: int, width: int = 5) -> Subject:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = 2 * torch.randn(count, width).double()
    target = Target(model, CrossEntropy())
    return subject_of(target, inputs=inputs, labels=torch.arange(count) % 3)


def dense_f_norms(subject: Subject, by: str) -> dict[str, NDArray[np.float64]]:
    """The bounded F norm of every record by layer, in the order of records."""
    norms: dict[str, list[float]] = {}
    records = subject.records
    for layer in subject.layers:
        for of in zip(records.inputs, records.labels, strict=True):
            gradient, dense = dense_jacobians(subject.target, *of, layer.parameter_names, by=by)
            spread = float(gradient.max() - gradient.min())
            number = float(dense.norm()) / math.sqrt(len(gradient)) / spread
            norms.setdefault(layer.name, []).append(number)
    return {layer: np.array(values) for layer, values in norms.items()}


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


def test_the_interval_of_a_share_redraws_the_records_of_all_layers_together() -> None:
    """It is near that of the ratio's linear terms, though it is a bootstrap's in logarithms."""
    subject = many_records(60)
    rows, norms = rows_of(subject), dense_f_norms(subject, "input")
    together = np.sum(list(norms.values()), axis=0)
    for layer, values in norms.items():
        share = values.mean() / together.mean()
        error = (values - share * together).std() / together.mean() / 60**0.5
        low, high = one(rows, "input_f_bounded_share", layer).interval or (0.0, 0.0)
        assert low < share < high
        assert (high - low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.3)


def test_the_mean_is_of_the_records_that_were_looked_at() -> None:
    """No interval holds a heavy-tailed mean over others, so none is judged."""
    row = one(rows_of(many_records(12)), "label_f", "0")
    assert row.interval is None
    low, high = row.details["known_to"]  # type: ignore[misc]
    assert low < (row.value or 0) < high
    probed = one(rows_of(many_records(12, 20), probes=8), "input_f", "0")
    assert probed.interval is None
    assert isinstance(estimated := probed.details["estimate"], dict)
    low, high = probed.details["known_to"]  # type: ignore[misc]
    assert low < estimated["interval"][0] < estimated["interval"][1] < high


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
    alone = one(rows_of(one_layer), "label_f_share", "2")
    assert (alone.value, alone.interval) == (pytest.approx(1), None)
    rows = rows_of(subject)
    shares = [row for row in rows if row.metric == "input_1_bounded_share"]
    assert sum(row.value or 0 for row in shares) == pytest.approx(1)
    assert {row.details["of"] for row in shares} == {"the sum over 2 shown layers"}
    assert not {row.layer for row in rows_of(one_layer)} - {"2"}


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
    blank = of_model(model, torch.zeros(2, 1, 3, 3), 0, 1)
    row = one(rows_of(blank), "input_f_bounded", "0")
    assert (row.status, row.value) == ("failed", None)
    assert "range zero" in (row.reason or "")
    assert row.details["undefined"] == 2
    share = one(rows_of(blank), "input_f_bounded_share", "0")
    assert (share.status, share.details["undefined"]) == ("failed", 2)


def test_layers_of_one_element_are_skipped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.PReLU(), nn.Linear(1, 1), nn.Linear(1, 2))
    rows = rows_of(of_model(model, torch.rand(3, 3), 0, 1, 1))
    for layer in ("1", "2"):
        assert one(rows, "input_f", layer).status == "measured"
        for metric in ("input_f_bounded", "input_f_bounded_share", "label_1", "label_inf_share"):
            row = one(rows, metric, layer)
            why = "its gradient has one element, which has no range to divide by"
            assert (row.status, row.reason) == ("skipped", why)
    assert one(rows, "input_f_bounded", "0").value
    shares = [one(rows, "input_f_bounded_share", layer).value or 0 for layer in ("0", "3")]
    assert sum(shares) == pytest.approx(1)


def test_a_dead_network_reacts_to_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].bias.fill_(-100)
    rows = rows_of(of_model(model, torch.rand(3, 4), 0, 1, 0))
    for by in REACTING:
        for norm in NORMS:
            assert one(rows, f"{by}_{norm}{ENDS[by]}", "0").value == 0
            share = one(rows, f"{by}_{norm}{ENDS[by]}_share", "0")
            assert (share.status, "reacts" in (share.reason or "")) == ("skipped", True)


def test_one_record_that_carries_the_mean_is_pointed_out() -> None:
    model, record = softmax_regression(30.0)
    inputs = torch.stack([record, -0.1 * record, 0.05 * record])
    rows = rows_of(of_model(model, inputs, 0, 0, 0))
    row = one(rows, "label_f", "(model)")
    assert "one record makes up 100% of the mean" in str(row.details["warning"])
    assert row.details["confident_share"] == pytest.approx(1 / 3)
    assert "warning" not in one(rows_of(of_case(CASES[0])), "input_f_bounded", "0").details


@pytest.mark.parametrize("by", REACTING)
def test_probes_are_never_silent(by: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 4), nn.Tanh(), nn.Linear(4, 20))
    subject = of_model(model, torch.rand(5, 30), *range(5))
    exact, probed = rows_of(subject), rows_of(subject, probes=10)
    metrics = {norm: f"{by}_{norm}{ENDS[by]}" for norm in NORMS}
    for norm in ("f", "1"):
        row, true = (one(rows, metrics[norm], "0") for rows in (probed, exact))
        estimate = row.details["estimate"]
        assert isinstance(estimate, dict)
        assert estimate["probes"] == 10
        of = "10 directions" if norm == "f" else f"10 of {30 if by == 'input' else 20} columns"
        assert f"estimated from {of}" in str(row.details["method"])
        assert "all columns" in str(true.details["method"])
        low, high = estimate["interval"]
        assert low < (true.value or 0) < high
        assert row.value != true.value
    skipped = one(probed, metrics["inf"], "0")
    assert skipped.status == one(probed, f"{metrics['inf']}_share", "0").status == "skipped"
    reason = "10 probes do not show the largest entry; --probes 0 measures it"
    assert skipped.reason == reason
    without = rows_of(subject, probes=10, one_norm=False)
    assert one(without, metrics["f"], "0").value == one(probed, metrics["f"], "0").value
    reason = "the 1-norm was not estimated beside 10 probes; --one-norm does"
    assert one(without, metrics["1"], "0").reason == reason
    assert one(rows_of(subject, probes=0, one_norm=False), metrics["1"], "0").value
    again = rows_of(subject, probes=10)
    assert [(r.value, r.interval) for r in again] == [(r.value, r.interval) for r in probed]


def test_what_is_not_affordable_is_estimated_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sensitivity, "AFFORDABLE", 1)
    monkeypatch.setattr(sensitivity, "PROBES", 9)
    torch.manual_seed(0)
    subject = of_model(nn.Linear(12, 3), torch.rand(2, 12), *range(2))
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


def test_a_loss_without_a_second_derivative_is_measured_by_differences() -> None:
    def margin(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.multi_margin_loss(outputs, targets, reduction="none")

    model, loss = nn.Sequential(nn.Linear(3, 3)), CustomLoss(margin, "my.py:margin")
    rows = rows_of(of_model(model, torch.rand(2, 3), 0, 1, loss=loss))
    row = one(rows, "input_f", "0")
    assert row.status == "measured"
    assert "cannot be differentiated twice (torch: " in str(row.details["method"])
    label = one(rows, "label_f", "0")
    assert label.status == "skipped"
    assert "a loss of real targets" in str(label.reason)


def test_records_that_are_normalised_together_are_refused() -> None:
    case = next(case for case in CASES if case.id == "batch-norm")
    target = replace(case.target(), mode="train")
    subject = subject_of(target, inputs=case.inputs, labels=case.labels)
    with pytest.raises(NotApplicable, match="normalises by its batch's statistics; use --mode"):
        rows_of(subject)


def test_numbers_that_are_not_finite_are_told() -> None:
    broken = nn.Linear(4, 3)
    with torch.no_grad():
        broken.weight[0, 0] = torch.nan
    data = torch.rand(3, 4), 0, 1, 2
    with pytest.raises(AuditError, match="outputs are not finite"):
        rows_of(of_model(broken, *data))

    def steep(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.square() - outputs.square().detach()).sqrt().sum(dim=1)

    rows = rows_of(of_model(nn.Linear(4, 3), *data, loss=CustomLoss(steep, "steep")))
    row = one(rows, "input_f_bounded", "(model)")
    assert (row.status, "not finite" in (row.reason or "")) == ("failed", True)


def test_integers_without_an_embedding_cannot_vary() -> None:
    class Counts(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.weight.dtype))

    rows = rows_of(of_model(Counts(3, 2), torch.tensor([[1, 2, 3], [4, 5, 7]]), 0, 1))
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
