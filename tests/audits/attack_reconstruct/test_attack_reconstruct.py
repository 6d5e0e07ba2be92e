"""The reconstruction audit: rows, captured updates, defenses in front, what it refuses."""

import copy
import json
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from subjects import rows_by, subject_of
from torch import Tensor, nn

from gradaudit.attacks.reconstruction import reconstructions
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates, Execution
from gradaudit.attacks.reconstruction.campaign import Campaign
from gradaudit.attacks.reconstruction.observing import AttackedBatch, ThreatModel
from gradaudit.audits.attack_reconstruct import AttackReconstruct, ReconstructOptions
from gradaudit.audits.attack_reconstruct.measure import NO_PICTURE
from gradaudit.audits.attack_reconstruct.options import (
    PACKAGE,
    default_steps_in_words,
    names_in_words,
)
from gradaudit.core.parts import declared
from gradaudit.core.user_code import load_callable
from gradaudit.data.records import Feature, Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.losses import MeanSquaredError
from gradaudit.report import Measurement
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject, defended_target
from tests.attacks.reconstruction.scenes import certain_of_zero, cnn, mlp, records
from tests.attacks.reconstruction.scenes import observed as scene_observed
from tests.command_line import run

PICTURES = records(1, 12, 12, labels=[0, 1, 2, 1, 0, 2, 2, 1])
TABLE = records(6, labels=[0, 1, 2, 3, 3, 2, 1, 0])


CLOSED: dict[str, Any] = {"method": ("closed-form",), "batches": 1}
DLG: dict[str, Any] = {"method": ("dlg",), "iterations": 1, "restarts": 1, "batches": 1}


def rows_of(at: Subject, **options: Any) -> dict[str, Measurement]:
    """Headline rows by metric."""
    return {row.metric: row for row in every_row(at, **options) if not row.variant}


def of_two_rounds(model: nn.Module, data: Records = TABLE) -> Subject:
    at = subject_of(model, data)
    return Subject((at.target, at.target), data, at.layers)


def update_of(at: Subject, row: int) -> dict[str, Tensor]:
    one = TABLE.inputs[row : row + 1], TABLE.labels[row : row + 1]
    return share(at.target, *one, SharingProtocol(), torch.Generator(), dtype=torch.float64)


every_row = partial(rows_by(AttackReconstruct), solved=1)


def picture_model() -> nn.Module:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=2, padding=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 3)
        )

    torch.manual_seed(0)
    return build().double()


def test_every_metric_has_a_row_with_what_the_attacker_knew() -> None:
    rows = rows_of(
        subject_of(picture_model(), PICTURES), method=("idlg",), iterations=2, restarts=2, batches=2
    )
    assert set(rows) == {metric.id for metric in AttackReconstruct.metrics} - {"certainty"}
    for row in rows.values():
        assert (row.status, row.audit, row.n) == ("measured", "attack", 2)
        knowledge: Any = row.details["knowledge"]
        assert (knowledge["labels"], knowledge["range"]) == ("unknown", [0.0, 1.0])
    assert rows["label_accuracy"].value == 1
    restarts: Any = rows["mse"].details["restarts"]
    assert restarts["count"] == 4
    assert restarts["best"] <= restarts["mean"]


def test_the_value_is_the_mean_of_the_answers_and_the_interval_needs_five() -> None:
    at = subject_of(mlp(), TABLE)
    few, many = (rows_of(at, **{**CLOSED, "batches": count})["mse"] for count in (4, 6))
    assert few.interval is None
    answers = np.array(many.details["answers"], dtype=float)
    assert many.value == pytest.approx(answers.mean())
    assert many.interval is not None
    assert 0 <= many.interval[0] <= many.value <= many.interval[1]  # type: ignore[operator]


def test_the_certainty_of_an_attack_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the restart that is handed in, averaged over records and updates."""
    attack = reconstructions()["closed-form"]
    run_plain, given = attack.run, iter([0.2, 0.4, 0.9])

    def certain(self: Any, view: AttackerView, execution: Execution) -> Candidates:
        made = run_plain(self, view, execution)
        sure = torch.zeros(made.inputs.shape[:2])
        sure[made.answer] = next(given)
        return replace(made, certainty=sure)

    monkeypatch.setattr(attack, "run", certain)
    at = subject_of(mlp(), TABLE)
    row = rows_of(at, method=("closed-form",), batches=3)["certainty"]
    assert (row.value, row.n, row.interval) == (pytest.approx(0.5), 3, None)


def test_an_attacker_knows_a_tables_ranges_and_one_hot_groups() -> None:
    columns = (
        Feature("age", (0,), range=(-1.0, 2.0)),
        Feature("job", (1, 2, 3), values=("a", "b", "c")),
        Feature("town", (4,), values=("x", "y"), coded=True),
        Feature("height", (5,), range=(0.0, 1.0)),
    )
    at = subject_of(mlp(), replace(TABLE, features=columns))
    threat = ThreatModel(at.target, SharingProtocol(), at.layers)
    view = threat.observed(at.records.take(np.arange(2)), torch.Generator()).view
    assert view.columns == columns
    assert view.one_hot_groups == ((1, 2, 3),)
    assert view.knowledge["columns"] == "ranges and one-hot groups"


def test_an_attacker_who_knows_the_columns_rounds_one_hot_groups() -> None:
    """Under noise, as ten lines do it: the largest element of each group, all else untouched."""
    columns = (Feature("age", (0,), range=(-1.0, 2.0)), Feature("job", (1, 2, 4), values=(*"abc",)))
    records = torch.rand(20, 6, generator=torch.Generator().manual_seed(3))
    records[:, [1, 2, 4]] = torch.eye(3)[torch.arange(20) % 3]
    at = subject_of(mlp(), replace(TABLE, inputs=records.to(TABLE.inputs.dtype), features=columns))
    at = replace(at, defenses=(parse_defense("dp:clip=1,sigma=0.02,per=release"),))
    threat = ThreatModel(at.target, SharingProtocol(defenses=at.defenses), at.layers)
    view = threat.observed(at.records.take(np.arange(1)), torch.Generator().manual_seed(1)).view
    candidates = reconstructions()["closed-form"](box=False).run(view, Execution()).inputs[0, 0]
    expected = candidates.clone()
    expected[[1, 2, 4]] = torch.eye(3).to(expected)[int(candidates[[1, 2, 4]].argmax())]
    assert not torch.equal(candidates, expected)
    answer = reconstructions()["closed-form"]().run(view, Execution()).inputs[0, 0]
    assert torch.equal(answer, expected)


@pytest.mark.parametrize(
    ("batches", "solved", "method", "updates"),
    [(1, 5, "closed-form", 5), (7, 5, "closed-form", 7), (2, 5, "dlg", 2)],
)
def test_attacks_without_an_optimiser_solve_more_updates(
    batches: int, solved: int, method: str, updates: int
) -> None:
    rows = rows_of(
        subject_of(mlp(), TABLE),
        **{**(DLG if method == "dlg" else CLOSED), "batches": batches, "solved": solved},
    )
    assert rows["relative_error"].n == updates
    assert len(rows["relative_error"].details["closest"]) == updates  # type: ignore[arg-type]


def test_the_closest_record_of_each_update_is_listed() -> None:
    """Of a batch of two, the smaller error of its records in their best order, not the mean."""
    rows = rows_of(subject_of(mlp(), TABLE), **{**DLG, "batch_size": 2, "batches": 2})
    row = rows["relative_error"]
    closest: Any = row.details["closest"]
    answers: Any = row.details["answers"]
    assert all(near < mean for near, mean in zip(closest, answers, strict=True))


@pytest.mark.parametrize(("samples", "batches"), [(100, 3), (2, 2), (None, 3)])
def test_samples_only_lower_the_number_of_batches(samples: int | None, batches: int) -> None:
    at = subject_of(mlp(), TABLE, samples=samples)
    assert rows_of(at, **{**CLOSED, "batches": 3})["mse"].n == batches


def test_tables_skip_picture_scores_and_real_targets_label_accuracy() -> None:
    rows = rows_of(subject_of(mlp(), TABLE), **CLOSED)
    for metric in ("psnr", "ssim"):
        assert "no pictures" in str(rows[metric].reason)
    assert rows["mse"].status == "measured"
    generator = torch.Generator().manual_seed(0)
    data = Records(torch.rand(4, 6, generator=generator), torch.rand(4, 4, generator=generator))
    rows = rows_of(subject_of(mlp(), data, loss=MeanSquaredError()), **DLG)
    assert (rows["mse"].status, rows["label_accuracy"].status) == ("measured", "skipped")


def test_methods_are_variants_and_the_headline_is_all_of_the_closest() -> None:
    found = every_row(
        subject_of(mlp(), TABLE),
        method=("dlg:iterations=1", "dlg:iterations=10", "idlg"),
        iterations=2,
        restarts=1,
        batches=1,
        batch_size=2,
    )
    errors = {row.variant.get("method"): row for row in found if row.metric == "relative_error"}
    near, far = errors["dlg:iterations=10"], errors["dlg:iterations=1"]
    assert near.value is not None
    assert far.value is not None
    assert near.value < far.value
    assert errors[None].value == near.value
    methods = {r.details.get("method") for r in found if not r.variant and r.status == "measured"}
    assert methods == {"dlg:iterations=10"}
    assert "riskiest_by" not in errors[None].details
    closest = [errors[m].details["closest"] for m in ("dlg:iterations=1", "dlg:iterations=10")]
    assert errors[None].details["closest"] == [min(*pair) for pair in zip(*closest, strict=True)]
    assert errors["idlg"].status == "skipped"
    assert "one record, not of 2" in str(errors["idlg"].reason)


def test_without_a_method_the_closed_form_and_dlg_are_tried() -> None:
    found = every_row(subject_of(mlp(), TABLE), restarts=1, batches=1, iterations=1)
    assert {row.variant.get("method") for row in found} == {None, "closed-form", "dlg"}
    (headline,) = [r for r in found if r.metric == "relative_error" and not r.variant]
    assert headline.value == pytest.approx(0, abs=1e-9)
    assert headline.details["method"] == "closed-form"


def test_a_method_that_does_not_apply_is_told_why() -> None:
    with pytest.raises(NotApplicable, match="one record, not of 2"):
        rows_of(subject_of(mlp(), TABLE), method=("idlg",), batch_size=2)


def test_updates_that_show_nothing_leave_the_others_attacked() -> None:
    rows = rows_of(subject_of(certain_of_zero(), TABLE), batches=8, iterations=1)
    row = rows["relative_error"]
    assert row.value == pytest.approx(0, abs=1e-9)
    assert row.n == 6
    assert row.details["updates_refused"] == 2
    assert "zero" in str(row.details["refused_because"])
    with pytest.raises(NotApplicable, match="zero"):
        rows_of(subject_of(certain_of_zero(), TABLE), records=(0, 7), iterations=1)


def test_layers_that_are_left_out_are_not_seen() -> None:
    at = subject_of(mlp(), TABLE, show=("2",))
    row = rows_of(at, method=("idlg",), iterations=3, restarts=1, batches=1)["mse"]
    assert isinstance(row.details["knowledge"], dict)
    assert row.details["knowledge"]["layers"] == ["2"]
    hidden = subject_of(mlp(), TABLE, show=("0",), hidden=("2",))
    with pytest.raises(NotApplicable, match=r"last layer \(2\) is hidden"):
        rows_of(hidden, method=("idlg",), batches=1)


def test_a_defense_in_front_hurts_the_attack_and_is_named() -> None:
    plain = rows_of(subject_of(mlp(), TABLE), **CLOSED)["relative_error"]
    noise = parse_defense("dp:clip=1,sigma=0.5")
    defended = rows_of(subject_of(mlp(), TABLE, defenses=(noise,)), **CLOSED)["relative_error"]
    assert plain.value < 0.01 < 0.2 < defended.value  # type: ignore[operator]
    knowledge: Any = defended.details["knowledge"]
    assert knowledge["defense"] == [str(noise)]


def test_fedavgs_update_is_attacked_through_the_local_steps() -> None:
    rows = rows_of(
        subject_of(mlp(), TABLE),
        **{**DLG, "iterations": 40, "restarts": 2},
        algorithm="fedavg",
        epochs=2,
        rate=0.1,
    )
    error = rows["relative_error"]
    assert error.value is not None
    assert error.value < 0.01
    assert "FedAvg: 2 epochs" in str(error.details["knowledge"])


def test_a_captured_update_is_attacked_as_the_simulated_one(tmp_path: Path) -> None:
    """Without its records it has the attacker's score alone."""
    at, path = subject_of(mlp(), TABLE), tmp_path / "update.safetensors"
    save_file(update_of(at, 5), path)
    simulated = rows_of(at, records=(5,), **DLG)
    captured = rows_of(at, records=(5,), update=str(path), **DLG)
    assert {m: row.value for m, row in captured.items()} == {
        m: row.value for m, row in simulated.items()
    }
    assert isinstance(captured["mse"].details["update"], dict)
    unknown = rows_of(at, update=str(path), **DLG)
    assert unknown["attacker_score"].status == "measured"
    for metric in ("mse", "relative_error", "psnr", "ssim"):
        assert "no truth" in str(unknown[metric].reason)


def test_examples_are_written_on_demand_only_and_by_round(tmp_path: Path) -> None:
    at = of_two_rounds(picture_model(), PICTURES)
    options = {**DLG, "method": ("idlg",), "batches": 2}
    folder = tmp_path / "examples"
    rows_of(at, **options)
    assert not folder.exists()
    rows_of(at, every_round=True, save_examples=folder, **options)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"{of}idlg-0{n}.png" for of in ("", "round-1-") for n in (1, 2)]
    sheet = np.asarray(Image.open(folder / "idlg-01.png"))
    assert sheet.shape[1] > 2 * 120  # original and reconstruction side by side


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({}, ["{}"]),
        ({"every_round": True}, ["{}", "{'round': 1}"]),
        ({"joint_rounds": True}, ["{}"]),
        ({"joint_rounds": True, "every_round": True}, ["{}", "{'round': 1}", "{'round': 2}"]),
    ],
    ids=str,
)
def test_rounds_are_attacked_alone_or_together_on_demand(
    options: dict[str, Any], rounds: list[str]
) -> None:
    rows = every_row(of_two_rounds(mlp()), **CLOSED, **options)
    assert {str(row.variant) for row in rows} == set(rounds)
    known: Any = next(r for r in rows if r.metric == "mse" and not r.variant).details["knowledge"]
    assert known.get("rounds", 1) == (2 if "joint_rounds" in options else 1)


def test_joint_rounds_ask_for_several_checkpoints_and_no_captured_update() -> None:
    with pytest.raises(UsageError, match="--joint-rounds: needs several rounds"):
        rows_of(subject_of(mlp(), TABLE), joint_rounds=True)
    with pytest.raises(UsageError, match="--update holds one update"):
        rows_of(of_two_rounds(mlp()), joint_rounds=True, update="u.safetensors")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": ("dlgg",)}, "no such method.*did you mean 'dlg'"),
        ({"method": ("dlg:speed=3",)}, "unknown option 'speed'"),
        ({"method": ("dlg:iterations=no",)}, "iterations"),
        ({"method": ("dlg", "dlg")}, "named twice"),
        ({"method": ("r-gap",), "tv": 0.1}, "--tv: is no option of r-gap"),
        ({"method": ("r-gap",), "learning_rate": 0.1}, "--learning-rate: is no option"),
        ({"method": ("dlg",), "box": True}, "L-BFGS takes no box"),
        ({"records": (99,)}, "--records 99: the data has 8 records"),
        ({"records": (0, 1, 2), "batch_size": 2}, "no whole batches"),
        ({"save_examples": Path("/dev/null/x")}, "cannot be made"),
    ],
    ids=str,
)
def test_wrong_requests_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rows_of(subject_of(mlp(), TABLE), **options)


@pytest.mark.parametrize("options", [{"batch_size": 9}, {"batch_size": 3, "others": 2}], ids=str)
def test_too_few_records_for_an_update_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(NotApplicable, match="--batch-size 9: the data has only 8"):
        rows_of(subject_of(mlp(), TABLE), **options)


def test_the_command_line_attacks_and_reports() -> None:
    done = run(
        *("attack", "reconstruct", "-m", "zoo:mlp", "-d", "digits", "-q"),
        *("--method", "closed-form", "--batches", 2, "-f", "json"),
    )
    assert done.status == 0, done.err
    rows = {row["metric"]: row for row in json.loads(done.out)["measurements"]}
    assert rows["relative_error"]["value"] < 1e-3
    assert rows["relative_error"]["audit"] == "attack"


def test_dry_runs_know_what_it_costs() -> None:
    at = subject_of(mlp(), TABLE)
    costs = [
        AttackReconstruct(ReconstructOptions(method=("dlg",), iterations=n)).gradients(at)
        for n in (10, 20)
    ]
    assert costs[1] > costs[0]
    assert costs[0] > 0
    assert cnn().training is False


def test_the_closed_forms_rows_hold_its_noise_conditions() -> None:
    options: dict[str, Any] = {"method": ("closed-form",), "records": (3, 5)}
    at = subject_of(mlp(), TABLE, defenses=(parse_defense("dp:clip=1,sigma=0.02"),))
    row = rows_of(at, **options)["relative_error"]
    found: Any = row.details["noise"]
    errors: Any = row.details["answers"]
    for one, record, error in zip(found, (3, 5), errors, strict=True):
        update = update_of(at, record)
        length = torch.cat([part.flatten() for part in update.values()]).norm()
        bias = (update["0.bias"] / length.clamp_min(1)).abs()
        assert one["layer"] == "0"
        assert one["all_rows"]["kappa"] == pytest.approx(float(bias.max() / bias.min()), rel=1e-5)
        assert one["best_row"]["kappa"] == 1.0
        assert one["all_rows"]["ratio"] == pytest.approx(float(bias.norm() / 0.02 / 4), rel=0.6)
        assert error <= one["least_squares_bound"]
    assert "noise" not in rows_of(subject_of(mlp(), TABLE), **options)["relative_error"].details


def test_clipping_alone_is_no_noise() -> None:
    at = subject_of(mlp(), TABLE, defenses=(parse_defense("dp:clip=0.01,sigma=0"),))
    row = rows_of(at, **CLOSED)["relative_error"]
    (found,) = row.details["noise"]  # type: ignore[misc]
    assert found["all_rows"]["r"] == pytest.approx(0, abs=1e-12)
    assert row.value == pytest.approx(0, abs=1e-12)


def test_a_secret_branch_is_noise_that_the_closed_form_does_not_mind() -> None:
    spn = parse_defense("spn:bits=8,alpha=0.5")
    at = subject_of(mlp(), TABLE)
    at = Subject((defended_target(at.target, (spn,), 0),), TABLE, at.layers, defenses=(spn,))
    row = rows_of(at, **CLOSED)["relative_error"]
    (found,) = row.details["noise"]  # type: ignore[misc]
    assert found["all_rows"]["r"] > 0.1
    assert row.value == pytest.approx(0, abs=1e-9)


@pytest.mark.processes
def test_worker_processes_change_no_number() -> None:
    options = {**DLG, "restarts": 2, "batches": 2}
    alone, spread = (every_row(subject_of(mlp(), TABLE, jobs=jobs), **options) for jobs in (1, 2))
    assert spread == alone


def test_a_model_that_cannot_be_shipped_is_attacked_in_this_process() -> None:
    model = mlp()
    vars(model)["locked"] = threading.Lock()
    at = subject_of(model, TABLE, jobs=2)
    row = rows_of(at, **{**CLOSED, "batches": 2})["relative_error"]
    assert row.value == pytest.approx(0, abs=1e-9)


@pytest.mark.processes
def test_a_model_of_the_users_own_file_is_shipped(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("from torch import nn\nActivation = nn.Sigmoid\n")
    (tmp_path / "mine.py").write_text(
        dedent("""
            from neighbour import Activation
            from torch import nn

            class Mine(nn.Sequential):
                def forward(self, x):
                    return super().forward(x) + Activation()(x).sum() * 0

            def model():
                return Mine(nn.Linear(6, 4)).double()
        """)
    )

    def process_of(
        each: AttackedBatch, number: int, execution: Execution
    ) -> tuple[int, int, Tensor]:
        return number, os.getpid(), each.view.model.module(each.records).detach()

    model = load_callable(f"{tmp_path / 'mine.py'}:model", "--model")()
    batches = [scene_observed(model, TABLE.take(np.array([i]))) for i in range(2)]
    campaign = Campaign(batches, scored=True, facts={}, workers=2)
    found = campaign.outcomes(process_of, "")
    assert [number for number, _, _ in found] == [0, 1]
    assert os.getpid() not in {process for _, process, _ in found}
    for each, (_, _, outputs) in zip(batches, found, strict=True):
        assert torch.equal(outputs, model(each.records))


def test_lengths_are_not_compared_where_the_learning_rate_is_unknown(tmp_path: Path) -> None:
    for bias in (True, False):
        model = mlp(bias=bias)
        at, after = subject_of(model, TABLE), copy.deepcopy(model)
        update = update_of(at, 5)
        with torch.no_grad():
            for name, parameter in after.named_parameters():
                parameter -= 0.01 * update[name]
        old, new = tmp_path / f"old-{bias}.safetensors", tmp_path / f"new-{bias}.safetensors"
        save_file(model.state_dict(), old)
        save_file(after.state_dict(), new)
        given: dict[str, Any] = {"update": f"{old},{new}", "records": (5,), "restarts": 2}
        with pytest.raises(NotApplicable, match="give --rate, or compare directions"):
            rows_of(at, method=("idlg",), **given)
        known = rows_of(at, method=("r-gap",), rate=0.01, **given)["relative_error"]
        assert known.value == pytest.approx(0, abs=1e-6)
        if bias:
            by = rows_of(at, method=("idlg:objective=cosine",), iterations=20, **given)
            assert by["relative_error"].value == pytest.approx(0, abs=1e-4)
            assert "unknown" in str(by["mse"].details["knowledge"]["length"])  # type: ignore[index, call-overload]
        else:
            with pytest.raises(NotApplicable, match=r"has no bias.*give --rate"):
                rows_of(at, method=("r-gap",), **given)


def test_the_details_hold_what_the_attack_says_of_every_batch() -> None:
    options = {**DLG, "restarts": 2, "adaptive": True}
    three, one = (
        rows_of(subject_of(mlp(), TABLE), **{**options, "batches": batches})["mse"].details[
            "attack"
        ]
        for batches in (3, 1)
    )
    three, one = cast("Any", three), cast("Any", one)
    assert set(three) == {"options", "labels_from", "batches"}
    assert [len(each["evaluations"]) for each in three["batches"]] == [2, 2, 2]
    assert set(one) == {"options", "labels_from", "evaluations"}
    assert one["options"]["adaptive"] is True


@pytest.mark.parametrize("records", ["5,2", ("5", "2"), ["5,2"], (5, 2), [5, "2"]])
def test_records_are_named_one_by_one_or_together(records: Any) -> None:
    assert ReconstructOptions(records=records).records == (5, 2)


def test_records_that_are_no_numbers_are_told_in_one_line() -> None:
    done = run("attack", "reconstruct", "--records", "1,x")
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert line.startswith("gradaudit: --records:")
    assert "'x'" in line


def test_declarations_are_those_of_the_classes_and_of_their_options() -> None:
    for name, attack in reconstructions().items():
        iterations = attack.Options.model_fields.get("iterations")
        default = None if iterations is None else iterations.default
        assert declared(PACKAGE)[name].get("default_steps") == attack.default_steps == default


def test_lists_are_told_in_words() -> None:
    assert names_in_words() == "closed-form, copa, dlg, idlg, inverting-gradients or r-gap"
    assert default_steps_in_words() == "300 for dlg and idlg, 2400 for inverting-gradients"


def test_picture_scores_are_of_the_batches_that_lie_in_the_range_of_pictures() -> None:
    inputs = PICTURES.inputs.clone()
    inputs[3] *= 2
    data = replace(PICTURES, inputs=inputs)
    options = {**DLG, "method": ("idlg",), "restarts": 2}
    rows = rows_of(subject_of(picture_model(), data), records=(0, 3), **options)
    alone = rows_of(subject_of(picture_model(), PICTURES), records=(0,), **options)
    assert rows["mse"].n == 2
    for metric in ("psnr", "ssim"):
        assert (rows[metric].n, rows[metric].value) == (1, alone[metric].value)
        assert rows[metric].details["restarts"] == alone[metric].details["restarts"]
        assert rows[metric].details["left_out"] == "1 of 2 batches: " + NO_PICTURE
        assert "left_out" not in alone[metric].details
