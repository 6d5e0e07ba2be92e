"""The audit on texts: a row or a reason for every layer, captured updates, defenses, rounds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from audits.attack_text.sentences import LENGTH, subject, texts, transformer
from language_models import Shelf
from safetensors.torch import save_file
from subjects import rows_by, subject_of
from torch import nn

from gradaudit.audits.attack_text import AttackText, TextOptions
from gradaudit.audits.attack_text.text_scores import ANSWERED, OF_LAYERS
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement, Report
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject
from tests.command_line import run

FEW = {"batch_size": 2, "batches": 2, "decoys": 6}

OF_MODEL = (*ANSWERED, "lora_predicted", "text_p_value")


every_row = rows_by(AttackText, **FEW)


def by_layer(rows: list[Measurement], metric: str) -> dict[str | None, Measurement]:
    return {row.layer: row for row in rows if row.metric == metric}


@pytest.mark.parametrize(("causal", "tied"), [(True, False), (True, True), (False, False)])
def test_every_layer_has_a_row_or_a_reason(causal: bool, tied: bool) -> None:
    at = subject(causal=causal, tied=tied)
    rows = every_row(at)
    assert {row.metric for row in rows if row.layer is None} == set(OF_MODEL)
    for metric in OF_LAYERS:
        assert [row.layer for row in rows if row.metric == metric] == [x.name for x in at.layers]
    for row in rows:
        assert (row.value is not None) != bool(row.reason), row
    told = by_layer(rows, "text_auroc")
    assert told["blocks.0.qkv"].value == told["words"].value == 1
    assert "no linear map" in str(told["blocks.0.before"].reason)
    assert by_layer(rows, "span_rank_share")["blocks.1.wide"].value == 1


def test_rows_tell_whole_answers_beside_those_for_another_batch() -> None:
    rows = every_row(subject())
    of_model = {row.metric: row for row in rows if row.layer is None}
    assert [of_model[metric].value for metric in ANSWERED] == [1, 1, 1, 1]
    assert of_model["sequences_recovered"].details["floor"] == 0
    assert 0 < of_model["rouge1"].details["floor"] < 0.8
    assert of_model["rouge1"].details["knowledge"]["batch_size"] == 2
    assert of_model["rouge1"].details["tokens"] == [2 * (LENGTH - 1)] * 2
    row = by_layer(rows, "text_auroc")["blocks.0.wide"]
    assert row.n == 4
    low, high = row.details["floor"]["interval"]
    assert low <= row.details["floor"]["value"] <= high


def test_the_same_seed_gives_the_same_rows() -> None:
    noisy = {"defenses": (parse_defense("dp:clip=1,sigma=0.02,per=release"),)}
    one, again = (every_row(replace(subject(), **noisy)) for _ in range(2))
    assert one == again


def test_layers_that_are_hidden_are_not_looked_at() -> None:
    at = subject()
    shown = tuple(layer for layer in at.layers if layer.name not in ("words", "blocks.0.qkv"))
    rows = every_row(replace(at, layers=shown, hidden=("words", "blocks.0.qkv")))
    assert {row.layer for row in rows} == {None, *(layer.name for layer in shown)}
    assert by_layer(rows, "text_auroc")["blocks.0.out"].value == 1


@pytest.mark.parametrize(
    ("defense", "least", "most"),
    [("prune:0.5", 0.8, 1.0), ("sign", 0.6, 1.0), ("dp:clip=1,sigma=1,per=release", 0.2, 0.8)],
)
def test_defenses_leave_what_they_leave(defense: str, least: float, most: float) -> None:
    rows = every_row(
        replace(subject(), defenses=(parse_defense(defense),)), batches=4, search=False
    )
    told = by_layer(rows, "text_auroc")
    found = [told[f"blocks.{k}.{name}"].value or 0.0 for k in (0, 1) for name in ("wide", "out")]
    assert least <= sum(found) / len(found) <= most
    assert all("--no-search" in str(row.reason) for row in rows if row.metric in ANSWERED)
    ranks = by_layer(rows, "span_rank")
    assert (ranks["blocks.0.wide"].value == 0) == defense.startswith("dp")


def test_local_training_gives_texts_away_too() -> None:
    rows = every_row(subject(), algorithm="fedavg", epochs=3, rate=0.01, local_batch=1)
    assert by_layer(rows, "text_auroc")["blocks.0.qkv"].value == 1
    knowledge = rows[0].details["knowledge"]
    assert isinstance(knowledge, dict)
    told = "FedAvg: 3 epochs at rate 0.01, minibatches of 1, their order unknown"
    assert knowledge["update"] == told


def captured(at: Subject, numbers: list[int], path: Path, *layers: str) -> Path:
    """The update of these records, or of some layers of it, in a file."""
    records = at.records
    made = share(
        at.target,
        records.inputs[numbers],
        records.labels[numbers],
        SharingProtocol(),
        torch.Generator(),
    )
    kept = {n: part for n, part in made.items() if not layers or n.startswith(layers)}
    save_file(kept, path)
    return path


def test_a_captured_update_is_scored_where_its_records_are_named(tmp_path: Path) -> None:
    at = subject()
    file = captured(at, [3, 5], tmp_path / "update.safetensors")
    rows = every_row(at, update=str(file), records=(3, 5))
    assert [row.value for row in rows if row.metric in ANSWERED] == [1, 1, 1, 1]
    unscored = every_row(at, update=str(file))
    reasons = {row.reason for row in unscored if row.metric in (*ANSWERED, "text_auroc")}
    assert len(reasons) == 1
    assert "--records" in str(reasons.pop())
    assert by_layer(unscored, "span_rank")["blocks.0.wide"].value == 2 * (LENGTH - 1)


def test_what_a_captured_update_lacks_is_not_shared(tmp_path: Path) -> None:
    at = subject()
    file = captured(at, [3, 5], tmp_path / "update.safetensors", "blocks.0", "words")
    rows = by_layer(every_row(at, update=str(file), records=(3, 5)), "text_auroc")
    assert rows["blocks.1.wide"].reason == "not shared"
    assert rows["blocks.0.wide"].value == 1


def test_older_checkpoints_are_attacked_where_every_round_is_asked_for() -> None:
    at = subject()
    older = Target(transformer(width=48), CrossEntropy())
    both = replace(at, targets=(older, at.target))
    assert all(row.variant == {} for row in every_row(both))
    rounds = every_row(both, every_round=True)
    by_round = [row for row in rounds if row.metric == "rouge1"]
    assert len(by_round) == 2
    assert len({str(row.variant) for row in by_round}) == 2


def test_void_layers_say_so() -> None:
    at = subject()
    target = Target(transformer(width=16), CrossEntropy())
    rows = every_row(subject_of(target, at.records), batch_size=3)
    told = by_layer(rows, "text_auroc")
    assert str(told["blocks.0.qkv"].reason) == "void: 18 tokens may fill its 16 dimensions"
    assert told["words"].value == 1
    tied = Target(transformer(width=16, tied=True), CrossEntropy())
    rows = every_row(subject_of(tied, at.records), batch_size=3)
    told = by_layer(rows, "text_auroc")
    assert str(told["words"].reason) == "void: 21 tokens may fill its 16 dimensions"


class Convolutional(nn.Module):
    """No linear map over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.windows = nn.Embedding(120, 16), nn.Conv1d(16, 16, 3)
        self.head = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(texts, positions) to (texts, 2)."""
        made: torch.Tensor = self.head(self.windows(self.words(ids).mT).relu().amax(2))
        return made


def test_a_model_without_maps_over_positions_gives_words_alone() -> None:
    data = texts(20, causal=False)
    target = Target(Convolutional().eval(), CrossEntropy())
    rows = every_row(subject_of(target, data))
    told = by_layer(rows, "text_auroc")
    assert told["words"].value == 1
    assert told["windows"].value is told["head"].value is None
    shares = {row.metric: row.value for row in rows if row.layer is None}
    assert (shares["tokens_recovered"] or 0) > 0.5
    assert shares["sequences_recovered"] == 0


@pytest.mark.parametrize("kind", ["equal", "all"])
def test_without_other_texts_there_are_no_decoys(kind: str) -> None:
    data = texts(4)
    if kind == "equal":
        data = replace(
            data, inputs=data.inputs[:1].expand(4, -1), labels=data.labels[:1].expand(4, -1)
        )
    target = Target(transformer(), CrossEntropy())
    rows = every_row(subject_of(target, data), batch_size=4)
    assert "no other text" in str(by_layer(rows, "text_auroc")["blocks.0.qkv"].reason)
    assert by_layer(rows, "span_rank")["blocks.0.qkv"].value


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_texts_may_be_short(length: int, causal: bool) -> None:
    data = texts(20, causal=causal)
    cut = data.labels[:, :length].clone() if causal else data.labels
    if causal:
        cut[:, -1] = -100
    at = subject(causal=causal)
    short = replace(at, records=replace(data, inputs=data.inputs[:, :length], labels=cut))
    if causal and length == 1:
        with pytest.raises(NotApplicable, match="no label"):
            every_row(short)
        return
    found = {row.metric: row.value for row in every_row(short) if row.layer is None}
    assert (found["tokens_recovered"] or 0) > 0.5


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("GPT2LMHeadModel", ""), ("BertForSequenceClassification", "&label=mood")],
)
def test_texts_of_several_lengths_come_back_from_models_of_transformers(
    architecture: str, options: str, shelf: Shelf, tmp_path: Path
) -> None:
    """Records are padded beyond the longest text of a batch."""
    report = tmp_path / "report.json"
    data = f"text:{shelf.texts(40)}?text=text&length=14{options}"
    size = ("--batch-size", 1, "--batches", 2, "--decoys", 4)
    made = run(
        "attack", "text", "--model", f"hf:{shelf.model(architecture)}", "--data", data, *size,
        "-o", report,
    )  # fmt: skip
    assert made.status == 0, made.err
    rows = Report.model_validate_json(report.read_text()).measurements
    assert [row.value for row in rows if row.metric in ANSWERED] == [1, 1, 1, 1]
    told = by_layer(rows, "text_auroc")
    first = [row.value for layer, row in told.items() if ".0." in str(layer) and row.value]
    assert len(first) >= 4
    assert set(first) == {1}
    ranks = by_layer(rows, "span_rank")
    assert all(row.n == 2 for row in ranks.values() if row.value)


def test_what_cannot_be_attacked_is_said() -> None:
    at = subject()
    numbers = replace(at, records=replace(at.records, inputs=at.records.inputs.float()))
    with pytest.raises(NotApplicable, match="no texts"):
        every_row(numbers)
    with pytest.raises(NotApplicable, match="--batch-size 25: the data has only 24 records"):
        every_row(at, batch_size=25)


def test_given_texts_are_told_from_others() -> None:
    """Those of the batch fit better than any decoy, others like any of them."""
    options = TextOptions(batch_size=3, decoys=19, records=(0, 1, 2), given=(0, 1, 2, 3))
    found = {
        row.variant["text"]: row.value
        for row in AttackText(options).run(subject(records=60), Silent())
        if row.metric == "text_p_value"
    }
    assert [found[number] for number in range(3)] == [pytest.approx(1 / 20)] * 3
    assert float(found[3] or 0) > 1 / 20
