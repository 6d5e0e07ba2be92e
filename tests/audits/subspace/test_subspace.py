"""The subspace audit: rows against dense gradients and plain loops, refusals, the command."""

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from subjects import one, rows_by, seeded
from torch import nn

from gradaudit.audits.subspace import Subspace, SubspaceOptions
from gradaudit.audits.subspace.comparing import DISTANCES
from gradaudit.audits.subspace.groups import orders_of
from gradaudit.data.records import Attribute, Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.judging.case import Case as Judged
from gradaudit.judging.case import ends_of
from gradaudit.judging.policy import Rule
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.subject import Subject
from tests.cases import CASES, Case
from tests.command_line import run

Array = NDArray[np.float64]
METRICS = {*DISTANCES, "grassmann_permuted", "p_value"}
RECORDS = 24
PERMUTATIONS = 19

SAMPLE = (
    *("-m", "sample_models/models.py:digits_cnn"),
    *("-c", "sample_models/digits/round-10.safetensors"),
    *("-d", "digits", "--device", "cpu", "--samples", "60", "--permutations", "19"),
)


def net(seed: int = 0) -> nn.Sequential:
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(2, 3, 2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
        ).double()


def attribute(*codes: int) -> Attribute:
    values = tuple("rgb?"[: max(codes) + 1])
    return Attribute(np.array(codes, dtype=np.int64), values)


def subject_of(*models: nn.Module, codes: Iterable[int] | None = None, **settings: Any) -> Subject:
    """Pictures that are bright, and of another class, where the attribute is 1."""
    generator = torch.Generator().manual_seed(0)
    private = attribute(*(codes or [i % 2 for i in range(RECORDS)]))
    bright = torch.from_numpy(private.codes).double()
    inputs = torch.rand(RECORDS, 2, 4, 4, generator=generator, dtype=torch.float64)
    records = Records(
        inputs * (1 + bright)[:, None, None, None],
        torch.randint(3, (RECORDS,), generator=generator),
        attributes={"a": private, "b": attribute(*(i // 8 for i in range(RECORDS)))},
    )
    targets = tuple(Target(model, CrossEntropy()) for model in models or (net(),))
    settings = {"attributes": ("a",), **settings}
    return Subject(targets, records, targets[-1].layers, **settings)


rows_of = rows_by(Subspace, permutations=PERMUTATIONS)


def dense_gradients(model: nn.Module, records: Records, name: str) -> Array:
    """(records, elements) by a loop over ordinary backward passes."""
    weight = dict(model.named_parameters())[name]
    rows = []
    for record, label in zip(records.inputs, records.labels, strict=True):
        loss = nn.functional.cross_entropy(model(record[None]), label[None])
        rows.append(torch.autograd.grad(loss, weight)[0].flatten())
    return torch.stack(rows).numpy()


def dense_angles(groups: tuple[Array, Array], k: int) -> Array:
    """Angles between the k leading right singular directions of two matrices."""
    bases = [np.linalg.svd(group)[2][:k].T for group in groups]
    cosines = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    return np.arccos(np.minimum(cosines, 1))


def mean_angles(gradients: Array, member: NDArray[np.bool_], shape: tuple[int, int]) -> Array:
    means = [gradients[rows].mean(axis=0).reshape(shape) for rows in (member, ~member)]
    k = min(int(np.linalg.matrix_rank(mean, tol=1e-13)) for mean in means)
    return dense_angles((means[0], means[1]), k)


def sample_angles(gradients: Array, member: NDArray[np.bool_]) -> Array:
    energies = np.linalg.svd(gradients, compute_uv=False) ** 2
    k = int((np.cumsum(energies) < 0.95 * energies.sum()).sum()) + 1
    return dense_angles((gradients[member], gradients[~member]), k)


@pytest.mark.parametrize("reading", ["mean", "samples"])
@pytest.mark.parametrize(("layer", "shape"), [("0", (3, 8)), ("3", (3, 12))])
def test_rows_against_dense_gradients(reading: str, layer: str, shape: tuple[int, int]) -> None:
    model = net()
    subject = subject_of(model)
    rows = rows_of(subject, reading=reading)
    gradients = dense_gradients(model, subject.records, f"{layer}.weight")
    member = subject.records.attributes["a"].codes == 1

    def angles(rows: NDArray[np.bool_]) -> Array:
        return (
            mean_angles(gradients, rows, shape)
            if reading == "mean"
            else sample_angles(gradients, rows)
        )

    orders = orders_of("records", np.arange(RECORDS), PERMUTATIONS, 0)
    for name, distance in DISTANCES.items():
        expected = float(distance(angles(member)))
        permuted = np.array([float(distance(angles(member[order]))) for order in orders])
        row = one(rows, name, layer)
        assert row.value == pytest.approx(expected, rel=1e-6)
        assert row.details["permuted_mean"] == pytest.approx(permuted.mean(), rel=1e-6)
        p_value = (1 + int((permuted >= expected).sum())) / (1 + PERMUTATIONS)
        assert row.details["p_value_alone"] == pytest.approx(p_value)
        assert row.details["p_value"] >= p_value  # type: ignore[operator]
        assert (row.interval, row.n) == (None, RECORDS)
        if name == "grassmann":
            own = one(rows, "p_value", layer)
            assert own.details["p_value_alone"] == pytest.approx(p_value)
            assert (own.value or 0) >= p_value
            noise = one(rows, "grassmann_permuted", layer)
            assert noise.value == pytest.approx(permuted.mean(), rel=1e-6)
            assert noise.interval is None
            spanned = np.quantile(permuted, [0.025, 0.975])
            assert noise.details["range"] == pytest.approx(spanned, rel=1e-6)


@pytest.mark.parametrize("reading", ["mean", "samples"])
def test_memory_changes_nothing(reading: str) -> None:
    subject = subject_of(attributes=("a", "b"))
    rows = rows_of(subject, reading=reading)
    little = rows_of(replace(subject, memory=1 << 14), reading=reading)
    assert [row.key for row in rows] == [row.key for row in little]
    for row, other in zip(rows, little, strict=True):
        assert other.value == pytest.approx(row.value, rel=1e-6)


def test_the_seed_decides_the_permutations() -> None:
    subject = subject_of()
    first, again = rows_of(subject), rows_of(subject)
    other = rows_of(replace(subject, seed=1))
    assert first == again
    assert one(first, "grassmann", "0").value == pytest.approx(one(other, "grassmann", "0").value)
    assert (
        one(first, "grassmann_permuted", "0").value != one(other, "grassmann_permuted", "0").value
    )


def test_a_row_space_that_is_everything() -> None:
    with seeded(0):
        model = nn.Sequential(nn.Conv2d(2, 9, 2), nn.Tanh(), nn.Flatten(), nn.Linear(81, 3))
    subject = subject_of(model.double())
    rows = rows_of(subject, reading="mean")
    for metric in METRICS:
        row = one(rows, metric, "0")
        assert row.status == "skipped"
        assert row.reason == ("row space is everything: 9 rows of 8 columns; use --reading samples")
        assert one(rows, metric, "3").status == "measured"
        assert one(rows_of(subject, reading="samples"), metric, "0").status == "measured"


def test_several_values_are_variants_of_the_most_significant() -> None:
    subject = subject_of(attributes=("a", "b"))
    rows = rows_of(subject)
    variants = [{"attribute": "a"}, *({"attribute": "b", "value": v} for v in "rgb")]
    for layer in ("0", "3"):
        own = [one(rows, "grassmann", layer, **variant) for variant in variants]
        headline = one(rows, "grassmann", layer)
        assert headline.details["comparisons"] == 8
        (chosen,) = [row for row in own if row.value == headline.value]
        assert chosen.details.get("value") == headline.details.get("value")
        smallest = min(one(rows, "p_value", layer, **variant).value or 0 for variant in variants)
        corrected = one(rows, "p_value", layer).value
        assert corrected is not None
        assert smallest <= corrected <= 1
    alone = rows_of(subject_of(attributes=("a",)))
    for row in alone:
        same = one(rows, row.metric, str(row.layer), attribute="a")
        by_itself = row.details["p_value_alone"] if row.metric == "p_value" else row.value
        assert same.value == pytest.approx(by_itself)


@pytest.mark.parametrize("reading", ["mean", "samples"])
def test_users_are_permuted_and_the_rows_say_so(reading: str) -> None:
    subject = subject_of(codes=[i // 2 % 2 for i in range(RECORDS)])
    plain = rows_of(subject, reading=reading)
    users = np.array([str(i // 2) for i in range(RECORDS)])
    rows = rows_of(replace(subject, records=replace(subject.records, users=users)), reading=reading)
    for layer in ("0", "3"):
        row = one(rows, "p_value", layer)
        assert row.details["permuted"] == "labels of users"
        assert one(plain, "p_value", layer).details["permuted"] == "labels of records"
        assert one(rows, "grassmann", layer).value == one(plain, "grassmann", layer).value
    observed = {one(rows, "grassmann", layer).value for layer in ("0", "3")}
    assert len(observed) == 2


def test_row_spaces_that_every_group_spans_are_skipped() -> None:
    """Seven of eight inputs are alive: both groups' row spaces are those seven dimensions."""
    with seeded(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(32, 40), nn.Tanh(), nn.Linear(40, 3))
    subject = subject_of(model.double())
    inputs = subject.records.inputs.clone()
    inputs.flatten(1)[:, 7:] = 0
    subject = replace(subject, records=replace(subject.records, inputs=inputs))
    row = one(rows_of(subject, reading="mean"), "p_value", "1")
    why = "any two groups of these records, drawn at random or not, span the same 7 of 32 "
    assert (row.status, row.reason) == (
        "skipped",
        f"{why}dimensions: the subspaces cannot differ",
    )
    assert one(rows_of(subject), "p_value", "1").status == "measured"


def test_older_checkpoints_are_rounds() -> None:
    rows = rows_of(subject_of(net(0), net(1)))
    alone = rows_of(subject_of(net(0)))
    assert one(rows, "grassmann", "0", round=1).value == one(alone, "grassmann", "0").value
    assert one(rows, "grassmann", "0").value != one(alone, "grassmann", "0").value


def test_groups_too_small_are_refused_with_the_number_needed() -> None:
    few = [1, 1, 1, *[0] * (RECORDS - 3)]
    with pytest.raises(
        NotApplicable, match=r"one group of a has 3 of the 24 records .* 5 are need"
    ):
        rows_of(subject_of(codes=few))
    rows = rows_of(subject_of(codes=few, attributes=("a", "b")))
    refused = one(rows, "p_value", "0", attribute="a")
    assert (refused.status, refused.value) == ("skipped", None)
    assert one(rows, "p_value", "0").details["attribute"] == "b"


def test_without_an_attribute_there_is_nothing_to_do() -> None:
    subject = subject_of(attributes=())
    assert Subspace(SubspaceOptions()).gradients(subject) == 0
    with pytest.raises(NotApplicable, match="name one with --attribute"):
        rows_of(subject)


def test_the_plan_counts_gradients() -> None:
    subject = subject_of(net(), net(1))
    samples, means = (
        Subspace(SubspaceOptions(reading=r)).gradients(subject) for r in ("samples", "mean")
    )
    assert means == 2 * samples == 4 * RECORDS * max(1.0, RECORDS / 10)


@pytest.mark.parametrize("reading", ["mean", "samples"])
def test_gradients_that_are_not_finite_fail(reading: str) -> None:
    model = net()
    with torch.no_grad():
        model[3].weight[0, 0] = math.inf
    rows = rows_of(subject_of(model), reading=reading)
    assert {row.status for row in rows} == {"failed"}
    assert {row.reason for row in rows} == {
        "its gradients are not finite; look at the weights and the inputs"
    }


@pytest.mark.parametrize("reading", ["mean", "samples"])
def test_layers_that_never_run_span_nothing(reading: str) -> None:
    (case,) = [case for case in CASES if case.id == "unused-and-frozen"]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    private = attribute(*(i % 2 for i in range(12)))
    records = Records(inputs, case.labels.repeat(4), attributes={"a": private})
    target = case.target()
    rows = rows_of(Subject((target,), records, target.layers, attributes=("a",)), reading=reading)
    assert {row.status for row in rows if row.layer == "spare"} == {"skipped"}
    assert all("zero" in str(row.reason) for row in rows if row.layer == "spare")
    assert {row.status for row in rows if row.layer == "head"} == {"measured"}


def test_row_spaces_too_large_to_permute_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradaudit.audits.subspace import means

    monkeypatch.setattr(means, "_MOST_WORK", 2 * PERMUTATIONS * (6 * 8 + 20 * 3) * 9)
    rows = rows_of(subject_of(), reading="mean")
    assert one(rows, "p_value", "0").status == "measured"
    assert "use --reading samples, or fewer --permutations" in str(one(rows, "p_value", "3").reason)


def test_gradients_that_do_not_fit_have_no_mean_reading() -> None:
    """Of 24 records by 24 and 36 elements of 8 bytes."""
    rows = rows_of(subject_of(memory=8 * 24 * 30), reading="mean")
    assert one(rows, "p_value", "0").status == "measured"
    assert "36 elements take 6.9e+03 bytes of" in str(one(rows, "p_value", "3").reason)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_layer_of_every_model_has_a_row_or_a_reason(case: Case) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = case.inputs.repeat(4, *(1 for _ in case.inputs.shape[1:]))
    if inputs.is_floating_point():
        inputs = inputs + torch.randn(inputs.shape, generator=generator, dtype=torch.float64)
    labels = case.labels.repeat(4, *(1 for _ in case.labels.shape[1:]))
    records = Records(inputs, labels, attributes={"a": attribute(*(i % 2 for i in range(12)))})
    target = case.target()
    subject = Subject((target,), records, target.layers, attributes=("a",))
    rows = rows_of(subject, reading="mean" if CASES.index(case) % 2 else "samples")
    told = [row.layer for row in rows if row.metric == "p_value"]
    assert told == [layer.name for layer in target.layers]
    assert all(r.status == "measured" or (r.status == "skipped" and r.reason) for r in rows)


def test_coupled_records_have_no_gradients_of_their_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    subject = subject_of(model.double())
    coupled = replace(subject.target, mode="train")
    with pytest.raises(NotApplicable, match="--mode eval"):
        rows_of(replace(subject, targets=(coupled,)))


def test_rows_say_that_no_defense_was_applied() -> None:
    subject = replace(subject_of(), defenses=(parse_defense("prune:0.9"),))
    row = one(rows_of(subject), "grassmann", "0")
    assert row.value == one(rows_of(subject_of()), "grassmann", "0").value
    assert str(row.details["defenses"]).startswith("none applied")
    assert "defenses" not in one(rows_of(subject_of()), "grassmann", "0").details


@pytest.mark.parametrize("preset", [Subspace.quick, Subspace.plain, Subspace.thorough])
def test_presets_can_reach_the_limit(preset: dict[str, Any]) -> None:
    (limit,) = [metric.warning for metric in Subspace.metrics if metric.warning is not None]
    assert 1 / (SubspaceOptions(**preset).permutations + 1) < limit


@pytest.mark.slow
@pytest.mark.parametrize(("permutations", "outcome"), [(99, "unclear"), (100, "passed")])
def test_too_few_permutations_leave_the_attribute_undecided(
    permutations: int, outcome: str
) -> None:
    """Of 99 permutations no p-value is below 0.01, so that none could have been found."""
    rows = rows_by(Subspace, permutations=permutations)(subject_of())
    row = one(rows, "p_value", "0")
    assert row.number is not None
    assert row.number > 0.02
    case = Judged(0, Rule(metric="subspace.p_value", min=0.01), row, ends_of(row, row.number))
    assert case.outcome == outcome
    assert ("at least 100 permutations are needed" in case.words) is (outcome == "unclear")


def test_the_sample_model_on_the_command_line() -> None:
    done = run("subspace", "-a", "slant", *SAMPLE, "--reading", "mean", "-f", "json")
    assert done.status == 0, done.err
    rows = json.loads(done.out)["measurements"]
    assert len(rows) == len(METRICS) * 4
    skipped = {row["layer"] for row in rows if row["status"] == "skipped"}
    assert skipped == {"conv1"}
    p_values = [row["value"] for row in rows if row["metric"] == "p_value" and row["value"]]
    assert all(0.05 <= value <= 1 for value in p_values)


def test_rare_values_are_merged_where_that_is_asked_for() -> None:
    codes = [0] * 12 + [1] * 8 + [2, 2, 3, 3]
    rows = rows_of(subject_of(codes=codes), merge_rare=3)
    assert {row.variant.get("value") for row in rows} == {None, "r", "g", "other"}
    assert next(row for row in rows if row.status == "measured").details["merged_values"] == {
        "a": ["b", "?"]
    }
