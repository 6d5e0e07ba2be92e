"""What a report says of ranks: the weakest method and the closest call."""

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
from gradaudit.ranks.linear_system import SpectralGap
from gradaudit.ranks.observe import plain_convolutions

CLEAR = SpectralGap(rank=3, smallest=0.2, largest_dropped=1e-16, tolerance=1e-14)
CLOSE = SpectralGap(rank=2, smallest=3e-10, largest_dropped=8e-11, tolerance=1e-10)
EXACT = GroupRank(8, 8, "exact", bound=8, touched=9, filters=CLEAR, deltas=CLEAR)
DENSE = replace(EXACT, method="dense", spectrum=CLOSE)
STRUCTURED = replace(EXACT, method="structured")
BOUND = replace(EXACT, low=5, method="bound")


def test_the_weakest_group_names_the_method() -> None:
    assert weakest_method([LayerRank((EXACT, STRUCTURED)), LayerRank((EXACT, DENSE))]) == "dense"
    facts = account([LayerRank((EXACT, STRUCTURED)), LayerRank((EXACT, BOUND))])
    assert facts["method"] == "bound"
    assert "upper bound only" in str(facts["meaning"])
    assert facts["methods"] == {"bound": 1, "structured": 1, "exact": 2}
    assert "methods" not in account([LayerRank((EXACT,))])
    assert facts["by_record"] == [[16, 16], [13, 16]]
    assert facts["bound"] == 16
    assert facts["inputs_read"] == 18


def test_singular_values_without_a_gap_are_pointed_out() -> None:
    facts: Any = account([LayerRank((DENSE,))])
    assert "no clear gap" in facts["singular_values"]["caution"]
    assert "caution" not in facts["filters"]


def test_every_number_of_an_account_is_of_the_weakest() -> None:
    """Two records, of two groups each, that differ in all that is told."""
    other = replace(BOUND, low=6, bound=9)
    narrow = replace(EXACT, filters=SpectralGap(1, 0.5, 1e-15, 2e-14), deltas=CLOSE)
    facts: Any = account([LayerRank((STRUCTURED, EXACT)), LayerRank((other, narrow))])
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


@pytest.mark.parametrize(
    ("smallest", "dropped", "cautious"),
    [(1.0, 1e-14, False), (1e-12, 1e-14, False), (9.9e-12, 1.1e-14, True), (1e-9, 1e-12, False)],
)
def test_a_gap_is_clear_from_a_thousandfold_on_or_above_rounding(
    smallest: float, dropped: float, cautious: bool
) -> None:
    gap = SpectralGap(1, smallest, dropped, tolerance=1e-13)
    facts: Any = account([LayerRank((replace(EXACT, filters=gap),))])["filters"]
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
        **{"method": "auto", "flops": 1e12, "advance": done.append, **options},
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
