"""vinfo: planted attributes, the null, refusals, variants, and the command."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from subjects import one, rows_by
from torch import Tensor, nn

from gradaudit.audits.vinfo import Vinfo, VinfoOptions, measure
from gradaudit.audits.vinfo.attribute import LayerPoint, correlation_rows
from gradaudit.audits.vinfo.cases import drawn_cases, why_no_correlation
from gradaudit.audits.vinfo.v_information import UsableInformation
from gradaudit.cli.commands.scan import sample_folder
from gradaudit.data.records import Attribute, Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.families.forest import ceiling
from gradaudit.models.losses import MeanSquaredError
from gradaudit.models.target import Target
from gradaudit.report import Measurement
from gradaudit.subject import SINGLE, Subject
from tests.command_line import Result, run

QUICK: dict[str, Any] = {"batch_size": 2, "batches": 20, "repeats": 3, "family": ("logistic",)}


class Branches(nn.Module):
    """The sum of two linear functions, each of its own half of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 1, bias=False)
        self.right = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(self.left.weight)
        nn.init.zeros_(self.right.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x[:, :3]) + self.right(x[:, 3:])


def planted(
    records: int = 400, *, shift: float = 6.0, values: int = 2, seed: int = 0
) -> tuple[Tensor, np.ndarray]:
    """Inputs whose last column is shifted by the value of an attribute."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(records) % values)
    inputs = rng.normal(size=(records, 6))
    inputs[:, 5] += shift * codes
    return torch.tensor(inputs, dtype=torch.float32), codes.astype(np.int64)


def subject_of(
    inputs: Tensor,
    attributes: dict[str, np.ndarray],
    *,
    asked: tuple[str, ...] | None = None,
    targets: int = 1,
    users: np.ndarray | None = None,
    members: np.ndarray | None = None,
    **settings: Any,
) -> Subject:
    """Branches with weights of zero, so that a gradient is minus the mean input of its batch."""
    target = Target(Branches(), MeanSquaredError())
    records = Records(
        inputs=inputs,
        labels=torch.full((len(inputs), 1), 0.5),
        attributes={
            name: Attribute(codes, tuple(f"value {v}" for v in range(int(codes.max()) + 1)))
            for name, codes in attributes.items()
        },
        users=users,
        members=members,
    )
    names = tuple(attributes) if asked is None else asked
    return Subject((target,) * targets, records, target.layers, attributes=names, **settings)


def trait(
    records: int = 400, *, shift: float = 6.0, values: int = 2, seed: int = 0, **settings: Any
) -> Subject:
    """A subject with the planted attribute, which is called so."""
    inputs, codes = planted(records, shift=shift, values=values, seed=seed)
    return subject_of(inputs, {"trait": codes}, **settings)


def right_of(subject: Subject) -> Subject:
    """Of which the right half alone is looked at."""
    return replace(subject, layers=subject.layers[1:])


rows_of = rows_by(Vinfo, **QUICK)


@pytest.fixture(scope="module")
def plain() -> list[Measurement]:
    """Rows of the planted attribute."""
    return rows_of(trait(), repeats=5)


def test_what_one_layer_holds_is_found_in_that_layer_only(plain: list[Measurement]) -> None:
    right, left = one(plain, "vinfo", "right"), one(plain, "vinfo", "left")
    assert right.value == pytest.approx(np.log(2), abs=0.05)
    assert one(plain, "vinfo_fraction", "right").value == pytest.approx(1, abs=0.07)
    assert one(plain, "auroc", "right").value == pytest.approx(1, abs=0.01)
    assert left.value is not None
    assert left.interval is not None
    assert left.value < 0.03
    assert left.interval[0] <= 0 <= left.interval[1]


def test_rare_values_are_merged_where_that_is_asked_for() -> None:
    inputs, codes = planted()
    codes = np.where(np.arange(400) < 4, 2 + np.arange(400) % 2, codes)
    with pytest.raises(NotApplicable):
        rows_of(subject_of(inputs, {"trait": codes}))
    rows = rows_of(subject_of(inputs, {"trait": codes}), merge_rare=100)
    row = one(rows, "vinfo", "right")
    assert row.details["merged_values"] == ["value 0", "value 2", "value 3"]
    assert row.details["values"] == 2
    assert row.value == pytest.approx(np.log(2), abs=0.1)


def test_a_permuted_attribute_stands_beside_every_row_and_is_nothing(
    plain: list[Measurement],
) -> None:
    for layer in ("left", "right"):
        for metric in ("vinfo", "vinfo_fraction", "auroc"):
            floor = one(plain, metric, layer, attribute_permuted=True)
            beside = one(plain, metric, layer).details["permuted"]
            assert floor.interval is not None
            kept = {key: floor.details[key] for key in ("roc", "aurocs") if metric == "auroc"}
            assert beside == {"value": floor.value, "interval": list(floor.interval), **kept}
            chance = 0.5 if metric == "auroc" else 0
            assert floor.interval[0] <= chance <= floor.interval[1]
        null = one(plain, "vinfo", layer, attribute_permuted=True).value
        assert null is not None
        assert null < 0.02


def test_an_auroc_keeps_its_curve_and_the_area_of_each_repetition(
    plain: list[Measurement],
) -> None:
    for row in plain:
        if row.metric == "auroc":
            areas, curve = row.details["aurocs"], np.array(row.details["roc"])
            assert row.value == pytest.approx(np.mean(areas), abs=1e-4)  # type: ignore[arg-type]
            assert curve[0, 0] == 0
            assert curve[-1].tolist() == [1, 1]
            assert np.trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(row.value, abs=0.03)
        else:
            assert not {"roc", "aurocs"} & set(row.details)


def test_the_same_seed_gives_the_same_rows_whatever_the_workers() -> None:
    options = {"family": ("forest",), "repeats": 2, "batches": 10}
    alone, together, other = (
        rows_of(right_of(trait(200, **settings)), **options)
        for settings in ({}, {"jobs": 2}, {"seed": 1})
    )
    assert alone == together
    assert alone != other


@pytest.fixture(scope="module")
def both() -> list[Measurement]:
    """Rows of the planted attribute and of a random one, with three repetitions."""
    return rows_of(two())


def two(**settings: Any) -> Subject:
    """A subject with the planted attribute and a random one."""
    inputs, codes = planted()
    random = np.random.default_rng(3).integers(0, 2, len(inputs))
    return subject_of(inputs, {"random": random, "trait": codes}, **settings)


def test_of_several_attributes_each_has_its_own_numbers_and_the_headline_is_the_worst(
    both: list[Measurement],
) -> None:
    alone = one(rows_of(two(asked=("trait",))), "vinfo", "right")
    headline = one(both, "vinfo", "right")
    assert headline.value == one(both, "vinfo", "right", attribute="trait").value == alone.value
    assert headline.details["attribute"] == "trait"
    assert headline.details["worst_of"] == ["random", "trait"]
    assert headline.details["riskiest_by"] == ["attribute"]
    floor = one(both, "vinfo", "right", attribute_permuted=True)
    beside = one(both, "vinfo", "right", attribute="trait", attribute_permuted=True)
    assert floor.value == beside.value
    keys = {row.model_dump_json(include={"metric", "layer", "variant"}) for row in both}
    assert len(keys) == len(both)


def test_the_value_is_the_mean_of_repetitions_or_nought(both: list[Measurement]) -> None:
    for row in both:
        if row.metric == "vinfo" and row.variant.get("attribute") == "random":
            mean = row.details["mean"]
            assert isinstance(mean, float)
            assert row.interval is not None
            assert row.value == max(0.0, mean)
            assert row.interval[0] <= mean
            assert row.interval[0] <= (row.value or 0.0) <= row.interval[1]


def test_the_empirical_prior_has_less_to_tell() -> None:
    inputs, _ = planted(600, shift=0)
    codes = (np.arange(600) % 5 == 0).astype(np.int64)
    inputs[:, 5] += torch.from_numpy(12.0 * codes).float()
    rows = rows_of(subject_of(inputs, {"trait": codes}), prior="empirical")
    entropy = -(0.2 * np.log(0.2) + 0.8 * np.log(0.8))
    assert one(rows, "vinfo", "right").value == pytest.approx(entropy, abs=0.05)
    assert one(rows, "vinfo_fraction", "right").value == pytest.approx(1, abs=0.1)


def test_the_papers_softmax_says_its_ceiling() -> None:
    rows = rows_of(trait(), paper=True, family=(), repeats=2)
    row = one(rows, "vinfo", "right")
    assert row.value is not None
    assert 0.3 < row.value <= ceiling(2)
    assert row.details["ceiling"] == pytest.approx(0.3799, abs=1e-4)
    assert row.details["families"] == ["forest", "prior"]
    assert row.details["learners"] == {"forest": "50 trees"}


def test_membership_is_asked_about_where_no_attribute_is() -> None:
    inputs, codes = planted()
    rows = rows_of(subject_of(inputs, {}, members=codes == 1))
    row = one(rows, "vinfo", "right")
    assert row.details["attribute"] == "member"
    assert row.value == pytest.approx(np.log(2), abs=0.07)


def test_older_checkpoints_are_rounds() -> None:
    rows = rows_of(trait(200, targets=2))
    assert one(rows, "vinfo", "right").value == one(rows, "vinfo", "right", round=1).value


def test_users_are_kept_together() -> None:
    users = np.array([f"u{i // 10}" for i in range(1200)])
    records = trait(1200, users=users).records
    ((case,), _) = drawn_cases(records, VinfoOptions(**QUICK), 0, keep=True)
    for each in (*case.real, *case.permuted, *case.independent):
        names = [set(users[part]) for part in each.parts]
        assert sum(map(len, names)) == len(set.union(*names))
    kept, measured = (set(users[each.adversary]) for each in (case.independent[0], case.real[0]))
    assert not kept & measured


def test_few_repetitions_are_warned_of(plain: list[Measurement], both: list[Measurement]) -> None:
    assert "only 3 repetitions" in str(one(both, "vinfo", "right").details["warning"])
    assert "warning" not in one(plain, "vinfo", "right").details


def test_the_interval_is_that_for_new_records() -> None:
    """Wider than the one over repetitions by Nadeau and Bengio's factor."""
    row = one(rows_of(trait(400, shift=1.5), repeats=6), "vinfo", "right")
    assert row.interval is not None
    low, high = row.details["interval_over_repetitions"]  # type: ignore[misc,union-attr]
    scored, fitted = 120, 280
    wider = np.sqrt((1 / 6 + scored / fitted) / (1 / 6))
    assert row.interval[0] == pytest.approx(row.details["mean"] - wider * (high - low) / 2)  # type: ignore[operator]
    assert row.details["reduction"] == "none"


def test_few_disjoint_batches_widen_the_interval_and_are_judged() -> None:
    row = one(rows_of(trait(200), batch_size=8), "auroc", "right")
    assert not row.imprecise
    assert row.interval is not None
    quantile, trials = float(stats.t.ppf(0.975, 23)), 1.9 * 12.5
    assert row.interval[0] <= trials / (trials + quantile**2), "12.5 batches, 1.9 trials each"


def test_permuted_repetitions_are_half_as_many_but_five() -> None:
    asked = {VinfoOptions(repeats=count).permuted_repeats for count in (20, 21)}
    assert asked == {10}
    assert [VinfoOptions(repeats=count).permuted_repeats for count in (2, 5, 8)] == [2, 5, 5]


def test_from_few_records_none_are_kept_for_an_attack_unless_asked_for() -> None:
    inputs, codes = planted(3000)
    for count, asked, kept in ((3000, None, True), (2999, None, False), (2999, True, True)):
        subject = subject_of(inputs[:count], {"trait": codes[:count]}, targets=3)
        why = why_no_correlation(subject, VinfoOptions(correlation=asked))
        assert (why == "") == kept
    assert "2999 records" in why_no_correlation(subject, VinfoOptions())
    fewer = replace(subject, samples=2000)
    assert "2000 records" in why_no_correlation(fewer, VinfoOptions())


def test_correlation_follows_an_independent_attack() -> None:
    inputs, codes = planted(400)
    half = inputs.clone()
    half[:, 2] += torch.from_numpy(1.0 * codes).float()
    random = np.random.default_rng(3).integers(0, 2, len(inputs))
    subject = subject_of(half, {"random": random, "trait": codes}, targets=2)
    rows = rows_of(subject, sensitivities=True, correlation=True, repeats=2, batches=10)
    row = one(rows, "correlation", None)
    assert row.value is not None
    assert row.value > 0.8
    assert row.n == 8
    assert row.interval is not None
    assert row.interval[0] < row.value < row.interval[1]
    p = row.details["p"]
    assert isinstance(p, float)
    assert p < 0.05
    assert not [r for r in rows if r.variant.get("pooled") is False]
    other = one(rows, "correlation", None, of="sensitivity.input_f")
    assert other.status == "measured" or "the same in every layer" in str(other.reason)
    attack = one(rows, "auroc", "right", attribute="trait", independent=True)
    assert attack.value == pytest.approx(1, abs=0.02)
    assert attack.details["families"] == ["extra-trees"]
    assert attack.details["learners"] == {"extra-trees": "50 trees"}


def test_the_independent_attack_sees_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise drowns the gradients; of one seed, both would see the same batches."""
    seen: list[np.ndarray] = []

    def keep(rows: np.ndarray, *_: object) -> UsableInformation:
        seen.append(rows)
        return UsableInformation(0.0, float(np.log(2)), 0.5, "prior", "prior")

    monkeypatch.setattr(measure, "estimate", keep)
    inputs, codes = planted()
    attributes = {"one": codes, "two": np.roll(codes, 1), "three": np.roll(codes, 2)}
    noise = parse_defense("dp:clip=1,sigma=1e6,per=release")
    rows_of(subject_of(inputs, attributes, defenses=(noise,)), repeats=2, correlation=True)
    assert len(seen) == 3 * 3 * 2 * 2  # attributes; real, permuted, attack; repetitions; layers
    first = np.stack([rows[0] for rows in seen])
    assert len(np.unique(first.round(-2), axis=0)) == len(seen)


def test_too_few_points_have_no_correlation(plain: list[Measurement]) -> None:
    row = one(plain, "correlation", None)
    assert row.status == "skipped"
    assert row.reason == "2 points of layers, checkpoints and attributes; 5 are needed"


def test_too_few_records_for_an_attack_of_their_own_measure_all_the_same() -> None:
    subject = trait(110, targets=3)
    rows = rows_of(subject, correlation=True)
    assert one(rows, "vinfo", "right").status == "measured"
    assert "do not suffice" in str(one(rows, "correlation", None).reason)


def test_no_attribute_is_refused_with_those_that_exist() -> None:
    inputs, codes = planted(200)
    with pytest.raises(NotApplicable, match="--attribute: trait, other"):
        rows_of(subject_of(inputs, {"trait": codes, "other": codes}, asked=()))
    with pytest.raises(NotApplicable, match="the data set has none"):
        rows_of(subject_of(inputs, {}))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros(200, dtype=np.int64), "every record looked at has the value 'value 0'"),
        (np.r_[np.ones(12), np.zeros(188)].astype(np.int64), "12 .* of trait, .* 10 in each set"),
    ],
)
def test_a_hopeless_attribute_is_refused(codes: np.ndarray, message: str) -> None:
    with pytest.raises(NotApplicable, match=message):
        rows_of(subject_of(planted(200)[0], {"trait": codes}))


def test_a_hopeless_attribute_does_not_stop_the_others() -> None:
    inputs, codes = planted(200)
    rows = rows_of(subject_of(inputs, {"trait": codes, "same": np.zeros(200, dtype=np.int64)}))
    assert one(rows, "vinfo", "right").status == "measured"
    assert one(rows, "vinfo", "right", attribute="same").status == "skipped"


def test_an_adversary_with_all_records_is_refused() -> None:
    with pytest.raises(UsageError, match="--shadow 200: only 200 records"):
        rows_of(trait(200), shadow=200)


def test_original_information_is_of_pictures() -> None:
    with pytest.raises(NotApplicable, match=r"--original.*no pictures"):
        rows_of(trait(200), original=True)


WRONG: dict[str, object] = {"repeats": 1, "batches": 9, "batch_size": 0, "shadow": 1}
WRONG |= {"family": "tree", "prior": "flat", "reduce": "half"}


@pytest.mark.parametrize(("option", "value"), WRONG.items())
def test_wrong_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=option):
        VinfoOptions(**{option: value})


def test_families_may_be_separated_by_commas() -> None:
    assert VinfoOptions(family="forest, mlp").members == ("forest", "mlp")


def test_the_work_grows_with_what_is_asked() -> None:
    """Principal components take a pass for every repetition, and the others one for eight."""
    subject = trait(200)

    def cost(audited: Subject, **options: Any) -> float:
        return Vinfo(VinfoOptions(**options)).gradients(audited)

    fits = {"family": ("logistic",), "repeats": 20, "correlation": False}
    passes = cost(subject, **fits, reduce="pca:2") - cost(subject, **fits, reduce="subset:2")
    assert passes == pytest.approx(SINGLE * 200 * 30 * 7 / 8)
    assert 0 < cost(subject, repeats=5) < cost(subject, repeats=20)
    assert cost(trait(200, asked=())) == 0


def test_the_attack_of_extra_trees_is_a_forest() -> None:
    assert VinfoOptions(family=("extra-trees",)).attacker == "forest"


Bundled = tuple[Result, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Bundled:
    """The bundled model by the command: how it went, and the report's rows."""
    report = tmp_path_factory.mktemp("bundled") / "report.json"
    folder = sample_folder()
    done = run(
        *("vinfo", "-m", f"{folder / 'models.py'}:diabetes_mlp", "-d", "diabetes?scale=standard"),
        *("-c", folder / "diabetes" / "round-20.safetensors", "-a", "sex", "-o", report),
        *("--repeats", 3, "--batches", 30, "--family", "forest"),
    )
    assert done.status == 0, done.err
    return done, json.loads(report.read_text())["measurements"]


def test_the_command_measures_the_bundled_model(bundled: Bundled) -> None:
    done, rows = bundled
    assert "vinfo" in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 100
    measured = {(row["metric"], row["layer"]) for row in rows if not row["variant"]}
    for layer in ("fc1", "fc2"):
        assert {("vinfo", layer), ("vinfo_fraction", layer), ("auroc", layer)} <= measured


def test_a_permuted_attribute_of_real_records_is_nothing(bundled: Bundled) -> None:
    _, rows = bundled
    of = {(r["layer"], bool(r["variant"])): r for r in rows if r["metric"] == "vinfo"}
    for layer in ("fc1", "fc2"):
        null, real = of[layer, True], of[layer, False]
        assert null["value"] < 0.03
        assert null["interval"][0] <= 0 <= null["interval"][1]
        assert real["value"] > null["interval"][1]


def test_cases_with_enough_layers_have_a_correlation_of_their_own() -> None:
    case: dict[str, Any] = {"attribute": "a"}
    points = [
        LayerPoint(case, {"vinfo.vinfo": x}, 0.5 + x / 3 + (x > 0.2) * 0.1) for x in (0, 0.1, 0.3)
    ]
    other = [LayerPoint({"attribute": "b"}, p.metrics, p.auroc) for p in points * 2]
    rows = list(correlation_rows([*points, *other]))
    assert [row.variant for row in rows] == [{}, {"attribute": "b", "pooled": False}]
    assert [row.n for row in rows] == [9, 6]
