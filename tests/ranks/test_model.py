"""What a report says of ranks: the weakest method, the closest call, the union of certificates."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradaudit.errors import AuditError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.ranks.convolution import GroupRank, LayerRank
from gradaudit.ranks.copa_metric import LayerRanks, account, copa_metric, ranks_of, weakest_method
from gradaudit.ranks.matrix_free import ALPHA, Nullity
from gradaudit.ranks.observe import plain_convolutions
from gradaudit.ranks.operator import SpectralGap

CLEAR = SpectralGap(rank=3, smallest=0.2, largest_dropped=1e-16, tolerance=1e-14)
CLOSE = SpectralGap(rank=2, smallest=3e-10, largest_dropped=8e-11, tolerance=1e-10)
LOOK = Nullity("rows", 0, 0, looks=2, probes=9, iterations=5, residual=1e-7, smallest=1e-4)
EXACT = GroupRank(8, 8, "exact", bound=8, touched=9, filters=CLEAR, deltas=CLEAR)
DENSE = replace(EXACT, method="dense", spectrum=CLOSE)
CRAIG = replace(EXACT, method="craig", search=LOOK)
BRACKET = replace(CRAIG, low=5, method="bracket", search=replace(LOOK, high=3, smallest=None))


def test_the_weakest_group_names_the_method() -> None:
    assert weakest_method([LayerRank((EXACT, CRAIG)), LayerRank((EXACT, DENSE))]) == "craig"
    facts = account([LayerRank((EXACT, CRAIG)), LayerRank((EXACT, BRACKET))], seed=3)
    assert facts["method"] == "bracket"
    assert facts["methods"] == {"bracket": 1, "craig": 1, "exact": 2}
    assert facts["by_record"] == [[16, 16], [13, 16]]
    assert facts["bound"] == 16
    assert facts["inputs_read"] == 18


def test_an_exact_rank_needs_no_certificate() -> None:
    facts = account([LayerRank((EXACT,))], seed=0)
    assert "certificate" not in facts
    assert "methods" not in facts


def test_certificates_add_up_over_looks_and_groups() -> None:
    certificate: Any = account([LayerRank((CRAIG, CRAIG, EXACT))], seed=3)["certificate"]
    assert certificate["error_probability"] == pytest.approx(4 * ALPHA)
    assert certificate["smallest_singular_value_at_least"] == 1e-4
    assert certificate["smallest_singular_value_probability"] == pytest.approx(0.998)
    assert certificate["seed"] == 3


def test_a_bracket_states_no_smallest_singular_value() -> None:
    certificate: Any = account([LayerRank((BRACKET,))], seed=0)["certificate"]
    assert "smallest_singular_value_at_least" not in certificate


def test_singular_values_without_a_gap_are_pointed_out() -> None:
    facts: Any = account([LayerRank((DENSE,))], seed=0)
    assert "no clear gap" in facts["singular_values"]["caution"]
    assert "caution" not in facts["filters"]


def test_every_number_of_an_account_is_of_the_weakest() -> None:
    """Two records, of two groups each, that differ in all that is told."""
    far = replace(LOOK, side="inputs", looks=3, probes=4, iterations=9, residual=1e-9, smallest=2.0)
    other = replace(CRAIG, low=6, bound=9, search=far)
    narrow = replace(EXACT, filters=SpectralGap(1, 0.5, 1e-15, 2e-14), deltas=CLOSE)
    facts: Any = account([LayerRank((CRAIG, EXACT)), LayerRank((other, narrow))], seed=4)
    assert facts["by_record"] == [[16, 16], [14, 16]]
    assert facts["bound"] == [16, 17]
    assert facts["inputs_read"] == 18
    assert facts["filters"] == {
        "rank": [1, 3],
        "smallest_kept": 0.2,
        "largest_dropped": 1e-15,
        "tolerance": 2e-14,
    }
    assert "no clear gap" in facts["output_gradients"]["caution"]
    assert facts["certificate"] == {
        "error_probability": pytest.approx(5e-9),
        "probes": 9,
        "iterations": 9,
        "residual": 1e-7,
        "full_rank_of": "inputs, rows",
        "smallest_singular_value_at_least": 1e-4,
        "smallest_singular_value_probability": pytest.approx(1 - 2e-3),
        "seed": 4,
    }


@pytest.mark.parametrize(
    ("smallest", "dropped", "cautious"),
    [(1.0, 1e-14, False), (1e-12, 1e-14, False), (9.9e-12, 1.1e-14, True), (1e-9, 1e-12, False)],
)
def test_a_gap_is_clear_from_a_thousandfold_on_or_above_rounding(
    smallest: float, dropped: float, cautious: bool
) -> None:
    gap = SpectralGap(1, smallest, dropped, tolerance=1e-13)
    facts: Any = account([LayerRank((replace(EXACT, filters=gap),))], seed=0)["filters"]
    assert ("caution" in facts) is cautious


def test_rank_deficiency_weighs_what_comes_first_most() -> None:
    """Of three convolutions with deficits 2, 3 and 6: 2 + 3 · 2/3 + 6/3; none in the other."""
    ranks = [[8, 10], [7, 10], [4, 10]]
    assert copa_metric(ranks, [10, 10, 10]) == pytest.approx([-6.0, 0.0])
    assert copa_metric([], []) == []


class Picky(nn.Module):
    """One convolution for each way to be used, of which some have no rank."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.twice = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.first, self.last = nn.Conv2d(2, 3, 2, stride=2), nn.Conv2d(3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.first(self.twice(self.twice(x))).tanh())
        return outputs.flatten(1)[:, :2]


def ranked(model: nn.Module, **options: Any) -> tuple[dict[str, LayerRanks], dict[str, str], int]:
    inputs = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    functional = FunctionalModel.of(Target(model.double(), CrossEntropy()))
    done: list[int] = []
    found, reasons = ranks_of(
        functional,
        plain_convolutions(model),
        inputs,
        torch.tensor([0, 1, 0]),
        **{"method": "auto", "flops": 1e12, "seed": 0, "advance": done.append, **options},
    )
    return found, reasons, sum(done)


def test_every_convolution_has_a_rank_for_each_record_or_a_reason() -> None:
    """The first reads every input once: all rows of its 3 filters and gradients are independent."""
    found, reasons, done = ranked(Picky())
    assert list(found) == ["first", "last"]
    assert [layer.inputs for layer in found.values()] == [2 * 36, 3 * 9]
    first = found["first"]
    assert first.layer == "first"
    assert first.low == first.high == [3 * 9 + 3 * (8 - 3)] * 3
    assert reasons == {
        "spare": "not used in the forward pass",
        "twice": "used 2 times a record: its gradients add up",
    }
    assert done == 2 * 3


def test_a_layer_that_sees_a_record_as_several_has_no_rank() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_halves = nn.Conv2d(2, 2, 2)

        def forward(self, x: Tensor) -> Tensor:
            halves = torch.cat(x.chunk(2, dim=3))
            outputs: Tensor = self.of_halves(halves).reshape(len(x), -1)[:, :2]
            return outputs

    found, reasons, done = ranked(Cut())
    assert (found, done) == ({}, 0)
    assert reasons == {
        "of_halves": "applied to an input of shape (2, 2, 6, 3) for one record",
    }


def test_a_layer_that_one_record_has_no_rank_of_has_none() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(108, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradaudit.ranks.convolution.MOST_ELEMENTS", 10)
        found, reasons, done = ranked(model, method="dense")
    assert (found, done) == ({}, 0)
    assert "as a dense matrix" in reasons["0"]


@pytest.mark.parametrize("where", ["weight", "gradient"])
def test_what_is_not_finite_is_refused(where: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 1, 6), nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        (model[0] if where == "weight" else model[2]).weight.view(-1)[0] = torch.nan
    with pytest.raises(AuditError, match="0: its weights or the gradient at its output are not"):
        ranked(model)


@pytest.mark.slow
def test_seeds_are_of_the_record_and_the_layer() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(72, 2))
    (first, again, other) = (
        ranked(model, method="structured", seed=seed)[0]["0"].records for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert [rank.groups[0].search is None for rank in first] == [False] * 3
