"""Which layers a sample has, and what is said of the others."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest
from dp_subject import model, subject
from fake_audit import Counting
from torch import nn

from gradaudit.audits import AuditCost, Metric
from gradaudit.audits.sizes import Size
from gradaudit.models.target import Layer, layers_of
from gradaudit.progress import Silent
from gradaudit.run.parallel import sample_of, sampled
from gradaudit.run.runner import Outcome, measured, of_sample
from gradaudit.run.schedule import in_turn
from gradaudit.run.survey import NO_TIME, SAMPLE_ALONE, Survey
from gradaudit.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Sequence


class Block(nn.Module):
    """A norm and two linear layers, of which the second is as wide as is told."""

    def __init__(self, wide: int = 4) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, wide), nn.Linear(wide, 4)


class Deep(nn.Module):
    """Twenty blocks, the fourteenth the widest, between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(Block(64 if n == 13 else 8) for n in range(20))
        self.head = nn.Linear(4, 2)


def names(layers: "Sequence[Layer]") -> list[str]:
    return [layer.name for layer in layers]


def test_a_sample_has_the_first_the_last_the_widest_and_one_of_each_kind_in_a_block() -> None:
    layers = layers_of(Deep())
    few = names(sample_of(layers, 5))
    assert few == ["words", "blocks.10.norm", "blocks.10.down", "blocks.13.up", "head"]
    more = names(sample_of(layers, 12))
    assert len(more) == 12
    assert {*few} < {*more}
    assert more == [name for name in names(layers) if name in more]


@pytest.mark.parametrize("count", [3, 7, 62, 100])
def test_a_sample_has_as_many_layers_as_are_asked_for_or_all(count: int) -> None:
    layers = layers_of(Deep())
    chosen = sample_of(layers, count)
    assert len({*names(chosen)}) == min(count, len(layers))
    assert {"words", "head"} <= {*names(chosen)}


def test_a_layer_that_outweighs_the_others_is_left_to_larger_sizes() -> None:
    """Unless there are no others."""
    sizes = (100, 2, 3, 4, 5)
    layers = [
        Layer(
            name=f"layer {k}", kind="Linear", parameter_names=(f"{k}",), parameters=size, position=k
        )
        for k, size in enumerate(sizes)
    ]
    assert [layer.parameters for layer in sample_of(layers, 3)] == [2, 4, 5]
    assert [layer.parameters for layer in sample_of(layers, 4)] == [2, 3, 4, 5]
    assert sample_of(layers, 5) == tuple(layers)
    assert len(sample_of(layers[:3], 2)) == 2


class Sampled(Counting):
    """Takes long for all layers, and tells of the whole model too."""

    metrics = (
        *Counting.metrics,
        Metric(id="share", title="Share"),
        Metric(id="all", title="All", per_layer=False),
    )
    sample: ClassVar[dict[str, float]] = {"scale": 2.0, "layers": 2}

    ran: ClassVar[list[int]] = []

    def run(self, subject: Subject, progress: object):  # type: ignore[no-untyped-def]
        self.ran.append(len(subject.layers))
        for row in super().run(subject, Silent()):
            yield row
            yield row.model_copy(update={"metric": "share"})
        yield row.model_copy(update={"metric": "all", "layer": None})

    def cost(self, subject: Subject) -> AuditCost:
        return AuditCost(passes=1e-9, seconds=0.1 if len(subject.layers) == 2 else 1e5)


def deep() -> Subject:
    """Six layers."""
    target = replace(subject().target, model=model(depth=5))
    return replace(subject(), targets=(target,), layers=target.layers)


def sizes() -> list[Size]:
    audit = Sampled(Sampled.Options(scale=1.0))
    return [Size("sample", audit, layers=2), Size("least", audit)]


def test_where_there_is_time_for_a_sample_alone_other_layers_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = deep()
    monkeypatch.setattr(Sampled, "ran", [])
    survey = Survey(about, [sizes()], lambda: 0.0 if Sampled.ran else 6e2)
    survey.go(Silent())
    report = survey.report({})
    numbers = [row.layer for row in report.select("counting.count") if row.number is not None]
    assert numbers == names(sample_of(about.layers, 2))
    (written,) = [row for row in report.measurements if row.status != "measured"]
    assert (written.reason, written.left_out) == (SAMPLE_ALONE, True)
    assert written.details["model_metrics"] == ["all"]
    assert len(report.rows) == 2 * len(about.layers) + 1
    assert report.provenance["plan"]["sizes"] == {"counting": "sample"}
    assert report.provenance["plan"]["rougher"] == ["counting"]


def test_where_there_is_time_all_layers_take_the_place_of_the_sample() -> None:
    survey = Survey(deep(), [sizes()], lambda: 1e9)
    survey.go(Silent())
    report = survey.report({})
    assert {row.status for row in report.measurements} == {"measured"}
    assert report.provenance["plan"]["sizes"] == {"counting": "least"}


def test_a_sample_of_as_many_layers_as_there_are_is_no_size_of_its_own() -> None:
    about = subject()
    assert len(about.layers) == 2
    survey = Survey(about, [sizes()], lambda: 1e5)
    assert [size.name for size, _ in survey.plan()] == ["least"]
    survey = Survey(about, [sizes()], lambda: 0.0)
    survey.go(Silent())
    assert {row.reason for row in survey.report({}).rows} == {NO_TIME}


def test_what_does_not_apply_to_a_sample_is_said_of_all_layers() -> None:
    about = deep()
    audit = Sampled(Sampled.Options(trouble="nothing"))
    part = sampled({False: about}, Size("sample", audit, layers=2))
    outcome = of_sample(measured(part, audit, Silent()), about, SAMPLE_ALONE)
    assert {row.reason for row in outcome.part.rows} == {"there is nothing to count"}
    assert not any(row.left_out for row in outcome.part.rows)
    layers = {row.layer for row in outcome.part.rows if row.metric == "count"}
    assert layers == {*names(about.layers)}
    assert isinstance(outcome, Outcome)


class Cheap(Counting):
    """Answers a question that another answers too."""

    name: ClassVar[str] = "cheap"
    priority: ClassVar[int] = 90
    metrics = (Metric(id="count", title="", question="labels"),)


class DearOne(Cheap):
    name: ClassVar[str] = "dear"
    priority: ClassVar[int] = 10


class RefusedValue(Cheap):
    name: ClassVar[str] = "proxy"
    priority: ClassVar[int] = 95
    proxy: ClassVar[bool] = True


class Idle(Cheap):
    name: ClassVar[str] = "idle"
    priority: ClassVar[int] = 99


def test_the_cheapest_of_each_question_and_kind_comes_first() -> None:
    told = {"counting": 1.0, "cheap": 2.0, "dear": 50.0, "proxy": 60.0, "idle": 0.0}
    kinds = (Counting, DearOne, Cheap, RefusedValue, Idle)
    ladders = [[Size("least", kind(kind.Options()))] for kind in kinds]
    turns = in_turn(ladders, lambda size: told[size.audit.name])
    assert [size.audit.name for (size,) in turns] == ["cheap", "proxy", "dear", "idle", "counting"]
