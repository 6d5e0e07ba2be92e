"""What is read off an update, against the records that it was made of."""

import math
from collections.abc import Mapping

import pytest
import torch
from report_builder import make_report, row
from torch import Tensor, nn

from gradaudit.attacks.reading import ReadingValue, reading_units
from gradaudit.attacks.reading.labels import estimated_counts
from gradaudit.attacks.reading.sketched_span import sketched_rank
from gradaudit.judging import gate
from gradaudit.sharing.named import NamedUpdate, named_update


def told_of(update: NamedUpdate, share: float = 1.0) -> dict[tuple[str, str | None], ReadingValue]:
    told = [each for piece in reading_units(update) for each in piece.look(share)]
    assert len({(each.metric, each.layer) for each in told}) == len(told)
    return {(each.metric, each.layer): each for each in told}


def gradient(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    loss = nn.functional.cross_entropy(model(inputs), labels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def network(classes: int = 5) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(30, 200), nn.ReLU(), nn.Linear(200, classes))


def stepped(model: nn.Module, update: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    return {name: p.detach() - rate * update[name] for name, p in model.named_parameters()}


@pytest.mark.parametrize("leaves", ["gradient", "weights"])
@pytest.mark.parametrize("count", [1, 2, 4, 64])
def test_rows_of_lone_records_are_found_and_no_others(count: int, leaves: str) -> None:
    """A row holds one record where a single one passes its rectifier: by the activations."""
    model = network()
    draws = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 30, generator=draws)
    found = gradient(model, inputs, torch.arange(count) % 5)
    if leaves == "gradient":
        update = named_update(None, found, kind="gradient")
    else:
        update = named_update(dict(model.named_parameters()), stepped(model, found, 0.5))
    told = told_of(update)["record_share", "0"]
    active = model[0](inputs) > 0
    lone = active.sum(dim=0) == 1
    energies = found["0.weight"].square().sum(dim=1)
    owners = active.float().argmax(dim=0)
    shares = [
        float(energies[lone & (owners == record)].sum() / energies.sum())
        for record in range(count)
        if int((lone & (owners == record)).sum()) > 1
    ]
    assert told.details["records_alone"] == len(shares)
    assert told.value == pytest.approx(max(shares, default=0.0), abs=1e-4)


def test_smooth_activations_leave_no_record_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 400), nn.Tanh(), nn.Linear(400, 5))
    for seed in range(20):
        inputs = torch.randn(8, 30, generator=torch.Generator().manual_seed(seed))
        found = gradient(model, inputs, torch.arange(8) % 5)
        told = told_of(named_update(None, found, kind="gradient"))
        assert told["record_share", "0"].value == 0.0
        assert told["record_share", "2"].value == 0.0


def test_two_outputs_tell_nothing_by_agreeing() -> None:
    """Their rows are each other's negatives, whoever is behind them."""
    found = gradient(network(2), torch.randn(8, 30), torch.arange(8) % 2)
    told = told_of(named_update(None, found, kind="gradient"))
    assert told["record_share", "0"].value is told["record_share", "2"].value is None
    assert "mean record" in told["record_share", "0"].reason
    alone = told_of(named_update(None, found, kind="gradient", records=1))
    assert alone["record_share", "2"].value == pytest.approx(1.0)


def test_what_rounding_hides_is_not_told() -> None:
    model = network().to(torch.bfloat16)
    found = gradient(model, torch.randn(1, 30).to(torch.bfloat16), torch.tensor([2]))
    update = named_update(dict(model.named_parameters()), stepped(model, found, 1e-2))
    assert "rounding" in told_of(update)["record_share", "0"].reason


def test_a_cut_looks_at_the_largest_rows_and_says_so() -> None:
    found = gradient(network(), torch.randn(1, 30), torch.tensor([2]))
    told = told_of(named_update(None, found, kind="gradient"), share=0.1)["record_share", "0"]
    assert told.value == pytest.approx(1.0, abs=1e-5)
    assert str(told.details["rows_looked_at"]).startswith("20 of")


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_named_labels_were_there(optimiser: type[torch.optim.Optimizer], steps: int) -> None:
    for seed in range(5):
        model, draws = network(10), torch.Generator().manual_seed(seed)
        inputs = torch.randn(6, 30, generator=draws)
        labels = torch.randint(10, (6,), generator=draws)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        stepping = optimiser(model.parameters(), lr=0.01)
        for _ in range(steps):
            stepping.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            stepping.step()
        update = named_update(before, dict(model.named_parameters()), kind="weights", records=6)
        details = told_of(update)["labels_named", None].details
        assert set(details["classes"]) == set(labels.tolist())  # type: ignore[arg-type]
        assert sum(details["counts"]) == 6  # type: ignore[arg-type]


def test_of_smoothed_labels_none_is_named_as_absent_ones_have_negative_gradients_too() -> None:
    """Softmax (0.9, 0.1 − 2e-3, 1e-3, 1e-3) and the label 0: g_2 = 1e-3 − s/4 < 0."""
    head = nn.Sequential(nn.Linear(3, 4))
    with torch.no_grad():
        head[0].weight.zero_()
        head[0].bias.copy_(torch.tensor([0.9, 0.098, 1e-3, 1e-3]).log())
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)(head(torch.randn(5, 3)), torch.zeros(5).long())
    loss.backward()
    gradients = {name: p.grad for name, p in head.named_parameters() if p.grad is not None}
    assert float(gradients["0.bias"][2]) == pytest.approx(1e-3 - 0.1 / 4, rel=1e-4)
    update = named_update(None, gradients, kind="gradient", smoothing=0.1)
    told = told_of(update)["labels_named", None]
    assert told.value is None
    assert "smoothed by 0.1: an absent class's bias" in told.reason
    assert "of up to 0.025 for each record" in told.reason


def test_counts_are_exact_of_a_model_that_knows_nothing() -> None:
    """g_c = 1/C − n_c/k up to a factor, where a class is absent."""
    counts = [0, 3, 1, 0, 4]
    exact = torch.tensor([1 / 5 - n / 8 for n in counts], dtype=torch.float64)
    assert estimated_counts(0.3 * exact, 8) == counts


def test_tokens_are_the_rows_that_moved() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(24, 4))
    ids = torch.tensor([[3, 7, 7], [41, 3, 0]])
    told = told_of(named_update(None, gradient(model, ids, torch.tensor([0, 1])), kind="gradient"))
    assert told["tokens_named", "0"].value == 4
    assert told["tokens_named", "2"].value is None


@pytest.mark.parametrize("rank", [1, 5, 40])
@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_the_rank_of_a_sketch_is_that_of_the_matrix(rank: int, noise: float) -> None:
    draws = torch.Generator().manual_seed(rank)
    left, right = (torch.randn(n, rank, generator=draws) for n in (300, 120))
    matrix = left @ right.T + noise * torch.randn(300, 120, generator=draws)
    assert sketched_rank(matrix, noise) == rank


def test_the_span_of_a_batch_is_its_records() -> None:
    model = nn.Sequential(nn.Linear(200, 150), nn.Tanh(), nn.Linear(150, 5))
    inputs, labels = torch.randn(7, 200), torch.arange(7) % 5
    told = told_of(named_update(None, gradient(model, inputs, labels), kind="gradient"))
    assert told["span_share", "0"].value == 7 / 200
    many = gradient(model, torch.randn(80, 200), torch.arange(80) % 5)
    reason = told_of(named_update(None, many, kind="gradient"))["span_share", "0"].reason
    assert "56 dimensions or more of 200" in reason


def test_sizes_and_what_did_not_move() -> None:
    found = gradient(network(), torch.randn(3, 30), torch.tensor([0, 1, 2]))
    found["2.bias"] = torch.zeros(5)
    told = told_of(named_update(None, found, kind="gradient"))
    exact = math.hypot(float(found["0.weight"].norm()), float(found["0.bias"].norm()))
    assert told["norm", "0"].value == pytest.approx(exact, rel=1e-6)
    moved = int(found["2.weight"].count_nonzero())
    assert told["moved_share", "2"].value == pytest.approx(moved / (1000 + 5))
    assert told["moved_share", "2"].details == {"untouched": ["2.bias"]}
    elements = sum(array.numel() for array in found.values())
    every = sum(int(array.count_nonzero()) for array in found.values())
    assert told["update_moved_share", None].value == pytest.approx(every / elements)


def test_an_update_that_did_not_move_fails_the_default_policy() -> None:
    """As where an accountant counts steps of an optimizer that holds other parameters."""
    still = {name: torch.zeros_like(p) for name, p in network().named_parameters()}
    value = told_of(named_update(None, still, kind="gradient"))["update_moved_share", None].value
    report = make_report(
        row("observe.update_moved_share", None, value), row("observe.norm", "0", 0.0)
    )
    (finding,) = (f for f in gate(report).findings if f.metric == "observe.update_moved_share")
    assert (finding.outcome, finding.level) == ("failed", "error")
