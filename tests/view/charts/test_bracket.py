"""The bars from floors to the best attacks."""

import re
from typing import Any

from report_builder import make_report, row, skipped_row

from gradaudit.formats.html import Html
from gradaudit.report import Measurement
from gradaudit.view.charts.bracket import brackets_of

ENDS = {"floor": 0.25, "attack": 0.5, "attack_low": 0.45, "attack_high": 0.55}


def gap(layer: str | None, **details: float) -> Measurement:
    return row("floor.gap", layer, 0.25, interval=(0.2, 0.3), details={**ENDS, **details})


def test_a_bar_goes_from_the_floor_to_the_best_attack() -> None:
    (found,) = brackets_of(make_report(gap("conv1")))
    assert (found.layer, found.says) == ("conv1", "0.250 to 0.500 [0.450, 0.550]")
    assert 'class="floor" x="26.0%" width="24.0%"' in found.bar
    assert 'cx="50.0%"' in found.bar
    assert "hollow" not in found.bar
    reversed_ends = brackets_of(make_report(gap("conv1", floor=0.6)))[0]
    assert 'class="floor" x="50.0%" width="9.6%"' in reversed_ends.bar


def test_where_there_is_none_the_page_says_why() -> None:
    report = make_report(gap("conv1"), skipped_row("floor.gap", "fc1", "no floor: a <kink>"))
    assert [each.says for each in brackets_of(report)][1] == "no floor: a <kink>"
    page = Html().render(report)
    assert "What is unknown of each layer" in page
    assert "no floor: a &lt;kink&gt;" in page
    alone = make_report(skipped_row("floor.gap", "fc1", "no floor"))
    assert brackets_of(alone) == ()
    assert "What is unknown of each layer" not in Html().render(alone)


def whole(**options: dict[str, Any]) -> str:
    share = row("floor.mse_share", None, 0.25, details={"mse": 0.5})
    report = make_report(gap(None), share, row("attack.mse", None, 1.4))
    report = report.model_copy(update={"provenance": {**report.provenance, "audits": options}})
    (found,) = brackets_of(report)
    assert ("hollow" in found.bar) == ("reconstruct" in found.says)
    return found.says


def test_what_was_rebuilt_of_the_data_is_beside_it_where_the_update_is_the_same() -> None:
    """An error of 1.4 where 0.5 is a share of 0.25, so 0.7."""
    floor, rebuilding = {"batch_size": 1, "sigma": 0.0}, {"batch_size": 1, "algorithm": "fedsgd"}
    alike = {"floor": floor, "attack reconstruct": rebuilding}
    assert re.search(r"attack reconstruct on the data 0\.700$", whole(**alike))
    for other in (
        {"floor": floor},
        {**alike, "floor": {**floor, "sigma": 0.1}},
        {**alike, "attack reconstruct": {**rebuilding, "batch_size": 4}},
        {**alike, "attack reconstruct": {**rebuilding, "algorithm": "fedavg"}},
        {**alike, "floor": {**floor, "others": 3}},
    ):
        assert "reconstruct" not in whole(**other)
    trained = {"algorithm": "fedavg", "local_steps": 3}
    both = {name: {**options, **trained} for name, options in alike.items()}
    assert "reconstruct" in whole(**both)
