"""Membership (recovery of labels) and tracing, as audits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from subjects import rows_by, subject_of
from torch import nn

from gradaudit.audits.attack_labels import AttackLabels
from gradaudit.audits.attack_tracing import AttackTracing, TracingOptions
from gradaudit.core.statistics.intervals import clopper_pearson
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import MeanSquaredError
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject
from tests.attacks.reconstruction.scenes import certain_of_zero, mlp, records
from tests.command_line import run

TABLE = records(6, labels=[0, 1, 2, 3, 3, 2, 1, 0, 1, 1])


def subject(model: nn.Module | None = None, data: Records = TABLE, **settings: Any) -> Subject:
    return subject_of(model or mlp(), data, **settings)


membership = rows_by(AttackLabels)


def tracing(at: Subject, **options: Any) -> dict[str, Measurement]:
    rows = AttackTracing(TracingOptions(**options)).run(at, Silent())
    return {str(row.variant.get("identity")): row for row in rows}


def test_every_label_is_read_off_single_gradients() -> None:
    (row,) = membership(subject(), method=("idlg",), batches=10)
    assert (row.value, row.n) == (0, 10)
    assert row.interval == pytest.approx(clopper_pearson(0, 10), abs=0.01)


def test_methods_stand_beside_each_other_and_the_closest_is_the_headline() -> None:
    rows = {r.variant.get("method"): r for r in membership(subject(), batches=2, iterations=1)}
    assert set(rows) == {None, "dlg", "idlg"}
    assert rows[None].value == min(rows["dlg"].value or 0, rows["idlg"].value or 0)


def test_more_records_than_classes_are_counted() -> None:
    """A batch of 10 records of 4 classes; guessing by frequency names 4 of 10."""
    rows = membership(subject(), batches=1, batch_size=10, iterations=1)
    counted = next(row for row in rows if row.variant.get("method") == "inverting-gradients")
    assert (counted.status, counted.n) == ("measured", 10)
    assert counted.value is not None
    assert counted.value <= 0.2


def test_a_batch_has_no_signs_but_optimised_labels() -> None:
    rows = {
        row.variant.get("method"): row
        for row in membership(
            subject(), method=("dlg", "idlg"), batches=1, batch_size=2, iterations=10, restarts=2
        )
    }
    assert rows["idlg"].status == "skipped"
    assert (rows["idlg"].reason or "").endswith("optimise them with --method dlg")
    assert rows["dlg"].n == 2
    assert rows["dlg"].value < 0.75  # what four classes give by chance is more


def test_an_update_of_zeros_names_no_label_and_is_traced_to_nobody() -> None:
    (row,) = membership(subject(certain_of_zero()), method=("dlg",), records=(0, 1), iterations=1)
    assert row.n == 2
    assert row.value >= 0.5
    row = tracing(subject(certain_of_zero()), participants=5, updates=2, iterations=1)["None"]
    assert row.details["method"] == "closed-form"
    assert row.details["diverged"] == 2
    assert row.value == pytest.approx(0.2)


def test_noise_hides_labels() -> None:
    noise = parse_defense("dp:clip=1,sigma=10")
    (row,) = membership(subject(defenses=(noise,)), method=("idlg",), batches=10)
    assert row.value > 0.3


def test_labels_of_a_captured_update_are_named(tmp_path: Path) -> None:
    at, path = subject(), tmp_path / "update.safetensors"
    one = TABLE.inputs[3:4], TABLE.labels[3:4]
    save_file(share(at.target, *one, SharingProtocol(), torch.Generator()), path)
    rows = {row.metric: row for row in membership(at, method=("idlg",), update=str(path))}
    assert rows["labels_named"].details["labels"] == [3]
    assert rows["membership_distance"].status == "skipped"
    (row,) = membership(at, method=("idlg",), update=str(path), records=(3,))
    assert (row.metric, row.value) == ("membership_distance", 0)


def test_real_targets_are_refused() -> None:
    data = Records(torch.rand(4, 6), torch.rand(4, 4))
    with pytest.raises(NotApplicable, match="no class to recover"):
        membership(subject(data=data, loss=MeanSquaredError()), batches=1)


def test_records_are_traced_to_their_participants() -> None:
    rows = tracing(subject(), method="closed-form", participants=3, updates=2)
    row = rows["None"]
    assert (row.value, row.n) == (0, 6)
    assert row.details["by_guessing"] == pytest.approx(2 / 3)
    assert rows["item"].value == 0
    assert row.interval == pytest.approx(clopper_pearson(0, 6), abs=0.01)


def test_the_closed_form_is_tried_first_and_dlg_where_it_does_not_apply() -> None:
    at, defended = subject(), subject(defenses=(parse_defense("prune:0.1"),))
    found = {
        name: tracing(where, participants=2, iterations=1, batch_size=size)["None"]
        for name, where, size in (("one", at, 1), ("two", at, 2), ("defended", defended, 1))
    }
    methods = {name: row.details["method"] for name, row in found.items()}
    assert methods == {"one": "closed-form", "two": "dlg", "defended": "dlg"}
    assert found["one"].value == 0


def test_noise_hides_participants_and_items_are_harder_than_participants() -> None:
    noise = parse_defense("dp:clip=1,sigma=10")
    hidden = subject(defenses=(noise,))
    rows = tracing(hidden, method="closed-form", participants=2, updates=4)
    assert 0.2 < rows["None"].value <= rows["item"].value


def test_repetitions_draw_other_records() -> None:
    row = tracing(subject(), participants=2, repeats=5, iterations=1)["None"]
    shares: Any = row.details["repetitions"]
    assert len(shares) == 5
    assert row.value == pytest.approx(sum(shares) / 5)
    assert row.n == 10


def test_too_few_records_are_refused() -> None:
    with pytest.raises(NotApplicable, match="--participants 6: their updates take 12 records"):
        tracing(subject(), participants=6, updates=2)


def test_the_help_says_what_membership_means() -> None:
    text = " ".join(run("attack", "membership", "--help").out.split())
    assert "what Fan et al. 2020 call membership" in text
    assert "attack record" in text


def test_the_command_line_traces() -> None:
    done = run(
        *("attack", "tracing", "-m", "zoo:mlp", "-d", "digits", "-q", "-f", "json"),
        *("--method", "closed-form", "--participants", 3),
    )
    assert done.status == 0, done.err
    headline = next(row for row in json.loads(done.out)["measurements"] if not row["variant"])
    assert headline["metric"] == "tracing_distance"
    assert headline["value"] == 0
