"""The inference attacks as audits: rows, headlines, adversaries, knowledge, bad requests."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from audits.attack_inference.people import people, subject, with_users
from subjects import one
from torch import nn

from gradaudit.audits import audits
from gradaudit.audits.attack_inference.distribution import bin_names
from gradaudit.core.latest import Latest
from gradaudit.data.records import Records
from gradaudit.errors import GradauditError, NotApplicable, UsageError
from gradaudit.executors import workers
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.sharing.context import Context
from gradaudit.subject import SINGLE, Subject

SMALL: dict[str, Any] = {
    "batch_size": 8,
    "trials": 80,
    "batches": 80,
    "shadow": 200,
    "family": "logistic",
    "repeats": 1,
    "rounds": 1,
}
"""One round, the only one or the last."""
LOOKING = ("attribute", "distribution")
SCORES = {"asr", "auroc", "advantage", "tpr_at_1pct_fpr"}


def attack(name: str, audited: Subject, **options: Any) -> list[Measurement]:
    audit = audits()[f"attack {name}"]
    return list(audit(audit.Options.model_validate({**SMALL, **options})).run(audited, Silent()))


def test_games_of_a_scan_look_once_at_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made, begin = [], Context.__init__

    def counted(self: Context, *of: Any, **how: Any) -> None:
        made.append(of)
        begin(self, *of, **how)

    monkeypatch.setattr(Context, "__init__", counted)
    audited, few = subject(people(), "sex"), {"repeats": 2, "batches": 20}
    alone = [attack(name, replace(audited, latest=Latest()), **few) for name in LOOKING]
    assert len(made) == 2
    together = [attack(name, audited, **few) for name in LOOKING]
    assert len(made) == 3
    assert together == alone


def value(rows: list[Measurement], metric: str, layer: str | None = None, **variant: Any) -> float:
    found = one(rows, metric, layer, **variant).value
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plain() -> list[Measurement]:
    return attack("attribute", subject(people(), "sex", rounds=2), rounds=2)


def test_every_layer_and_the_whole_update_are_measured(plain: list[Measurement]) -> None:
    for layer in (None, "0", "2"):
        for metric in (*SCORES, "fano_bound"):
            row = one(plain, metric, layer)
            assert (row.status, row.audit) == ("measured", "attack")
            assert row.interval is not None
            assert 0 <= row.interval[0] <= (row.value or 0) <= row.interval[1] <= 1
            assert one(plain, metric, layer, round=0).value is not None
            assert one(plain, metric, layer, round=1).value is not None
    assert len({row.key for row in plain}) == len(plain)


def test_the_same_seed_gives_the_same_rows_for_any_number_of_workers(
    plain: list[Measurement],
) -> None:
    two = replace(subject(people(), "sex", rounds=2), jobs=2)
    assert attack("attribute", two, rounds=2) == plain


@pytest.mark.processes
@pytest.mark.parametrize("repeats", [1, 2])  # fits are shared out, or whole repetitions
def test_workers_share_in_what_is_played(repeats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    shipped: list[object] = []
    ship = workers.pickled
    monkeypatch.setattr(workers, "pickled", lambda task: shipped.append(task) or ship(task))
    about, options = subject(people(), "sex"), {"repeats": repeats, "trials": 80 * repeats}
    alone = attack("attribute", about, **options)
    assert not shipped
    assert attack("attribute", replace(about, jobs=2), **options) == alone
    tried = 1  # whether a task can be shipped at all
    assert len(shipped) == tried + 2 if repeats == 2 else len(shipped) > tried + 2


def test_a_column_of_the_inputs_is_found_and_a_shuffled_one_is_not(
    plain: list[Measurement],
) -> None:
    assert value(plain, "auroc") > 0.95
    assert value(plain, "advantage") > 0.7
    floor = one(plain, "auroc", attribute_permuted=True)
    assert floor.interval is not None
    assert floor.interval[0] < 0.6
    beside = one(plain, "auroc").details["permuted"]
    assert beside == {"value": floor.value, "interval": list(floor.interval)}


@pytest.mark.parametrize("layer", [None, "0", "2"])
def test_advantage_and_gains_follow_from_success_and_the_same_of_a_shuffled_secret(
    plain: list[Measurement], layer: str | None
) -> None:
    row, blind = one(plain, "auroc_gain", layer), one(plain, "asr").details["blind_guess"]
    assert isinstance(blind, float)
    assert row.details["learners"] == {"logistic": "linear"}
    rate = value(plain, "asr", layer)
    auroc, chance = (value(plain, m, layer, attribute_permuted=True) for m in ("auroc", "asr"))
    assert row.value == pytest.approx(value(plain, "auroc", layer) - auroc)
    assert row.interval is not None
    assert row.interval[0] < (row.value or 0) < row.interval[1]
    assert value(plain, "advantage_gain", layer) == pytest.approx((rate - chance) / (1 - blind))
    assert value(plain, "advantage", layer) == pytest.approx(max(rate - blind, 0) / (1 - blind))


def test_few_separate_batches_widen_intervals_and_are_judged(plain: list[Measurement]) -> None:
    enough = attack("attribute", subject(people(), "sex"), batch_size=1)
    few, many = (one(rows, "auroc", attribute_permuted=True) for rows in (plain, enough))
    assert not few.imprecise
    assert few.interval is not None
    assert many.interval is not None
    assert few.interval[1] - few.interval[0] > many.interval[1] - many.interval[0]


def test_repetitions_play_on_other_splits_and_share_the_trials() -> None:
    rows = attack("attribute", subject(people(), "sex"), trials=160, repeats=3)
    assert one(rows, "asr").n == 160
    assert one(rows, "asr").details["repetitions"] == 3
    reads = one(rows, "auroc").details["reads"]
    assert isinstance(reads, dict)
    assert set(reads) <= {"all layers", "0", "2"}
    assert sum(reads.values()) == pytest.approx(1)  # type: ignore[arg-type]


def test_rare_values_are_merged_on_demand() -> None:
    audited = subject(people(), "race")
    with pytest.raises(NotApplicable, match="--merge-rare 200"):
        attack("attribute", audited, batch_size=80)
    fewest = int(np.bincount(audited.records.attributes["race"].codes).min())
    rows = attack("attribute", audited, batch_size=20, shadow=400, merge_rare=fewest + 1)
    details = one(rows, "asr").details
    assert details["values"][-1] == "other"  # type: ignore[index]
    assert len(details["merged_values"]) >= 2  # type: ignore[arg-type]


def test_the_headline_says_what_the_adversary_was_given(plain: list[Measurement]) -> None:
    given = one(plain, "asr").details
    assert given["blind_guess"] == pytest.approx(max(given["prior"]), abs=1e-6)  # type: ignore[type-var, arg-type]
    told = {
        "batch_size": 8,
        "defense": "none",
        "labels_of_the_batch": "not known",
        "rounds": 2,
        "secret": "sex",
        "shadow_records": 160,
    }
    assert told.items() <= given.items()
    bound = one(plain, "fano_bound")
    assert (bound.value, bound.details["vacuous"]) == (1, True)
    assert "noise" in str(bound.details["because"])


def test_a_property_is_not_read_from_its_own_column(plain: list[Measurement]) -> None:
    """Sex goes with the label alone (by construction), and its own column says nothing."""
    rows = attack("property", subject(people(), "sex"), repeats=2, trials=200)
    assert one(rows, "asr").details["column"]
    assert value(rows, "auroc", "0") < value(plain, "auroc", "0", round=1)


def test_a_share_is_found_from_a_column_of_the_inputs() -> None:
    rows = attack("distribution", subject(people(), "sex"), batch_size=20, batches=120)
    assert value(rows, "auroc") > value(rows, "auroc", attribute_permuted=True) + 0.1
    assert one(rows, "asr").details["values"] == list(bin_names(6))
    assert one(rows, "asr").details["blind_guess"] == pytest.approx(1 / 6)


def test_users_are_found_by_other_records_of_theirs() -> None:
    rows = attack("user", subject(with_users(20)), shadow=1000, rounds=1)
    assert value(rows, "asr") > 0.4  # one in five by chance
    assert value(rows, "asr", attribute_permuted=True) < 0.4
    assert one(rows, "asr").details["attacked_users"] == 7
    assert one(rows, "asr").details["learners"] == {"encoder": "128 hidden units"}


def test_the_adaptive_adversary_sees_through_the_sign_and_the_static_one_is_beside_it() -> None:
    rows = attack("attribute", subject(people(), "sex", defense="sign"), repeats=2, trials=200)
    headline = one(rows, "auroc")
    assert headline.details["adversary"] == "adaptive"
    assert headline.details["defense"] == "sign"
    static = value(rows, "auroc", adversary="static")
    assert value(rows, "auroc") > static
    only = attack("attribute", subject(people(), "sex", defense="sign"), adaptive=False)
    assert one(only, "auroc").details["adversary"] == "static"
    assert not [row for row in only if "adversary" in row.variant]


def test_noise_that_drowns_all_bounds_every_adversary() -> None:
    audited = subject(people(), "sex", rounds=2, defense="dp:clip=0.1,sigma=20,per=sum")
    rows = attack("attribute", audited, rounds=2)
    for layer in (None, "0", "2"):
        bound = one(rows, "fano_bound", layer)
        assert bound.details["is_a_bound"] is True
        assert (bound.value or 0) < 0.5
        low = one(rows, "advantage", layer).interval
        assert low is not None
        assert low[0] <= (bound.value or 0)
        assert (bound.value or 0) >= value(rows, "fano_bound", layer, round=0)


def test_noise_on_one_layer_bounds_that_layer_alone() -> None:
    audited = subject(people(), "sex", defense="dp:clip=0.1,sigma=20,per=sum,layers=0")
    rows = attack("attribute", audited)
    assert value(rows, "fano_bound", "0") < 1
    assert value(rows, "fano_bound", "2") == 1
    assert "some layers" in str(one(rows, "fano_bound").details["because"])


def test_known_columns_have_a_baseline_of_their_own() -> None:
    rows = attack("attribute", subject(people(), "sex"), knows="label,age", family="logistic")
    baseline = value(rows, "auroc", knowledge="imputation")
    assert baseline > 0.6
    assert value(rows, "auroc") > 0.9
    assert one(rows, "asr").details["knows"] == ["label", "age"]
    assert one(rows, "asr").details["labels_of_the_batch"] == "known"


def test_several_attributes_and_the_worst_of_them() -> None:
    rows = attack("attribute", subject(people(), "race", "sex"), batch_size=4)
    each = [value(rows, "auroc", attribute=name) for name in ("race", "sex")]
    assert value(rows, "auroc") == max(each)
    assert one(rows, "auroc").details["riskiest_by"] == ["attribute"]


def test_a_model_without_checkpoints_is_trained_in_rounds_and_left_as_it_was() -> None:
    audited = subject(people(), "sex", defense="dp:clip=1,sigma=0.1")
    before = {name: p.clone() for name, p in audited.target.model.state_dict().items()}
    rows = attack("attribute", audited, rounds=3, adaptive=False)
    given = one(rows, "asr").details
    assert (given["rounds"], given["rounds_from"]) == (3, "own training")
    assert given["test_accuracy"]["n"] == 80  # type: ignore[index, call-overload]
    assert one(rows, "asr", round=2).value is not None
    for name, parameter in audited.target.model.state_dict().items():
        assert torch.equal(parameter, before[name])


def test_several_families_are_believed_as_far_as_held_out_batches_bear_them_out() -> None:
    rows = attack("attribute", subject(people(), "sex"), family="logistic,prior", batch_size=4)
    headline = one(rows, "asr").details
    assert list(headline["learners"]) == ["logistic", "prior"]  # type: ignore[arg-type]
    assert str(headline["family"]).startswith("logistic")
    assert sum(headline["reads"].values()) == pytest.approx(1)  # type: ignore[union-attr, arg-type]
    assert set(headline["reads"]) <= {"0", "2", "all layers"}  # type: ignore[arg-type]
    assert one(rows, "log_loss").status == "measured"
    estimate = one(rows, "fano_bound", information="estimate")
    assert estimate.details["is_a_bound"] is False


def test_a_layer_that_cannot_know_is_blind() -> None:
    """A model of the age alone: its gradient tells nothing of a race that goes with nothing."""

    class Age(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x[:, :1])

    torch.manual_seed(0)
    target = Target(Age(), CrossEntropy())
    audited = Subject((target,), people(600), target.layers, attributes=("race",), seed=1)
    rows = attack("attribute", audited, prior="uniform")
    interval = one(rows, "auroc").interval
    assert interval is not None
    assert interval[0] <= 0.5


def numbered(records: Records) -> Records:
    return replace(records, users=np.array([f"{i}" for i in range(len(records))]))


@pytest.mark.parametrize(
    ("name", "audited", "options", "error", "words"),
    [
        ("attribute", subject(people()), {}, NotApplicable, "--attribute"),
        ("property", subject(people()), {}, NotApplicable, "--attribute"),
        ("distribution", subject(people()), {}, NotApplicable, "--attribute"),
        ("user", subject(people()), {}, NotApplicable, "user=COL"),
        ("user", subject(numbered(people())), {}, NotApplicable, "0 of 400 users"),
        ("attribute", subject(people(), "sox"), {}, UsageError, "no such attribute"),
        ("attribute", subject(people(), "sex"), {"knows": "agge"}, UsageError, "no column 'agge'"),
        ("attribute", subject(people(), "sex"), {"knows": "sex"}, UsageError, "guessed"),
        ("attribute", subject(people(), "race"), {"trials": 2}, UsageError, "--trials 2"),
        ("attribute", subject(people(), "sex"), {"batch_size": 200}, NotApplicable, "200"),
        ("attribute", subject(people(), "sex", rounds=2), {"rounds": 3}, UsageError, "2 check"),
        ("attribute", subject(people(), "sex"), {"family": "tree"}, UsageError, "tree"),
    ],
)
def test_wrong_requests(
    name: str, audited: Subject, options: Any, error: type[GradauditError], words: str
) -> None:
    with pytest.raises(error, match=words):
        attack(name, audited, **options)


WRONG: dict[str, object] = {"knows": "a,,b", "family": "", "held_out": 1.0, "prior": "flat"}
WRONG |= {"reduce": "maxpool:0", "trials": 1, "batch_size": 0, "rounds": 0, "learning_rate": 0}


@pytest.mark.parametrize(("option", "value"), WRONG.items())
def test_options_out_of_range(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        audits()["attack attribute"].Options.model_validate({option: value})


def test_what_a_dry_run_says() -> None:
    audit = audits()["attack attribute"]
    assert audit(audit.Options()).gradients(subject(people())) == 0
    asked = subject(people(), "sex")
    assert audit(audit.Options()).gradients(asked) == SINGLE * 5 * 3 * 2 * 400


def test_a_perturbed_update_fools_only_those_who_do_not_know() -> None:
    """Li et al. 2024, figure 5: the perturbation helps an adversary who knows of it."""
    audited = subject(people(), "sex", defense="perturb:bound=0.5,step=0.2")
    rows = attack("attribute", audited)
    assert value(rows, "auroc") > 0.9
    assert value(rows, "auroc", adversary="static") < 0.1  # worse than guessing


@pytest.mark.parametrize("options", [{"reduce": "pca:5"}, {"reduce": "maxpool:3"}, {"others": 2}])
def test_other_ways_of_looking(options: dict[str, Any]) -> None:
    pruned = subject(people(), "sex", defense="prune:0.5")
    rows = attack("attribute", pruned, **options)
    assert {row.status for row in rows if row.metric in SCORES} == {"measured"}
    assert value(rows, "auroc") > 0.5
