"""Which layers a sample has, and what is said of the others."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from dp_subject import model, subject
from fake_audit import Counting
from torch import nn

from gradaudit.audits import Metric
from gradaudit.audits.presets import Preset
from gradaudit.models.target import Layer, layers_of
from gradaudit.progress import Silent
from gradaudit.run.runner import measured, of_sample
from gradaudit.run.scan_plan import at_preset, sample_of
from gradaudit.run.survey import SAMPLE_ALONE, Survey
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


def test_a_layer_that_outweighs_the_others_is_left_aside() -> None:
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
    """Tells of the whole model too."""

    metrics = (
        *Counting.metrics,
        Metric(id="share", title="Share"),
        Metric(id="all", title="All", per_layer=False),
    )

    def run(self, subject: Subject, progress: object):  # type: ignore[no-untyped-def]
        for row in super().run(subject, Silent()):
            yield row
            yield row.model_copy(update={"metric": "share"})
        yield row.model_copy(update={"metric": "all", "layer": None})

    def gradients(self, subject: Subject) -> float:
        return 1.0 if len(subject.layers) == 2 else 1e20


def deep() -> Subject:
    """Six layers."""
    target = replace(subject().target, model=model(depth=5))
    return replace(subject(), targets=(target,), layers=target.layers)


def test_where_all_layers_are_too_much_work_a_sample_is_measured_and_it_is_said() -> None:
    about, audit = deep(), Sampled(Sampled.Options(scale=1.0))
    presets = [Preset("least", audit, layers=2), Preset("quick", audit)]
    survey = Survey(about, [presets], 60, lambda audit, metric: True)
    survey.go(Silent())
    report = survey.report({})
    numbers = [row.layer for row in report.select("counting.count") if row.number is not None]
    assert numbers == names(sample_of(about.layers, 2))
    others = [row for row in report.measurements if row.status != "measured"]
    assert {(row.reason, row.left_out) for row in others} == {(SAMPLE_ALONE, True)}
    assert (others[-1].metric, others[-1].layer) == ("all", None)
    assert len(report.rows) == 2 * len(about.layers) + 1
    assert report.provenance["plan"]["smaller"] == ["counting"]
    assert report.provenance["plan"]["audits"]["counting"]["layers"] == 2


def test_what_does_not_apply_to_a_sample_is_said_of_all_layers() -> None:
    about = deep()
    audit = Sampled(Sampled.Options(trouble="nothing"))
    part = at_preset(about, Preset("least", audit, layers=2))
    outcome = of_sample(measured(part, audit, Silent()), about, SAMPLE_ALONE)
    assert {row.reason for row in outcome.part.rows} == {"there is nothing to count"}
    assert not any(row.left_out for row in outcome.part.rows)
    layers = {row.layer for row in outcome.part.rows if row.metric == "count"}
    assert layers == {*names(about.layers)}
