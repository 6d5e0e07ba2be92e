import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.matching.unknowns import (
    UnknownLabels,
    infer_counts,
    infer_label,
    last_layer,
)
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import MeanSquaredError
from tests.attacks.reconstruction.scenes import cnn, drawn, mlp, records, view


def hidden(seen: AttackerView, *names: str) -> AttackerView:
    return replace(seen, update={n: g for n, g in seen.update.items() if n not in names})


def tanh_net(classes: int) -> nn.Module:
    """Features of both signs, and no bias."""
    return drawn(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, classes, bias=False))
    )


@pytest.mark.parametrize(
    ("model", "shape", "classes", "unseen"),
    [
        (mlp(), (6,), 4, ()),
        (mlp(bias=False), (6,), 4, ()),
        (tanh_net(4), (6,), 4, ()),
        (cnn(), (1, 6, 6), 3, ("3.bias",)),
        (mlp(classes=2, bias=False), (6,), 2, ()),
    ],
    ids=["bias", "no bias", "features of both signs", "bias hidden", "two classes"],
)
def test_signs_or_rows_tell_the_label(
    model: nn.Module, shape: tuple[int, ...], classes: int, unseen: tuple[str, ...]
) -> None:
    for label in range(classes):
        seen = hidden(view(model, records(*shape, labels=[label])), *unseen)
        assert infer_label(seen).tolist() == [label]


def test_two_classes_without_bias_and_features_of_both_signs_are_refused() -> None:
    with pytest.raises(NotApplicable, match="do not tell the label"):
        infer_label(view(tanh_net(2), records(6, labels=[1])))


def test_signs_are_refused_for_a_batch_and_other_losses() -> None:
    with pytest.raises(NotApplicable, match=r"one record, not of 2.*--known-labels"):
        infer_label(view(mlp(), records(6, labels=[1, 2])))
    seen = view(mlp(), records(6, labels=[1]), loss=MeanSquaredError())
    with pytest.raises(NotApplicable, match="the loss is mse"):
        infer_label(seen)


def test_a_hidden_last_layer_is_refused() -> None:
    seen = hidden(view(mlp(), records(6, labels=[1])), "2.weight", "2.bias")
    with pytest.raises(NotApplicable, match=r"last layer \(2\) is hidden"):
        last_layer(seen)


def test_a_model_that_ends_in_something_else_is_refused() -> None:
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 4), nn.Softplus()))
    with pytest.raises(NotApplicable, match="does not end in one"):
        infer_label(view(model, records(6, labels=[1])))


def test_the_layer_that_gives_the_logits_is_found_whatever_the_order_of_modules() -> None:
    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 4)
            self.first = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x).tanh())  # type: ignore[no-any-return]

    model = drawn(Swapped)
    seen = view(model, records(6, labels=[1]))
    assert last_layer(seen).name == "last"
    assert not any(module._forward_hooks for module in model.modules())


def test_counts_are_exact_where_the_mean_output_is_known() -> None:
    """A model that says the same of every record: n_c = k (p_c − ∇b_c) without error."""
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 4)))
    with torch.no_grad():
        model[2].weight.zero_()  # type: ignore[index]
    batch = records(6, labels=[3, 1, 1, 3, 3, 0])
    found = infer_counts(view(model, batch), torch.Generator().manual_seed(0))
    assert found.tolist() == [0, 1, 1, 3, 3, 3]


def test_counts_of_a_fresh_model_are_close() -> None:
    batch = records(6, labels=[3, 1, 1, 3, 2, 0, 1, 1])
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 4)))
    found = infer_counts(view(model, batch), torch.Generator().manual_seed(0))
    assert found.tolist() == sorted(batch.labels.tolist())


@pytest.mark.parametrize("labels", [[3, 1, 1, 3, 3, 0], [2, 2, 2, 2, 0]])
def test_rows_count_classes_exactly_where_all_features_are_alike(labels: list[int]) -> None:
    """Constant features h: ∇W_c = (p_c − n_c / k) h without error."""
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 4)))
    with torch.no_grad():
        model[0].weight.zero_()  # type: ignore[index]
    seen = hidden(view(model, records(6, labels=labels)), "2.bias")
    assert infer_counts(seen, torch.Generator()).tolist() == sorted(labels)


@pytest.mark.parametrize("bias", [True, False])
def test_counts_of_more_records_than_classes_are_those_of_plain_torch(bias: bool) -> None:
    batch = records(6, labels=[3, 1, 1, 3, 2, 0, 1, 1, 3, 3, 3, 3, 0, 0, 2, 1, 1, 1, 3, 3])
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 4)))
    seen = view(model, batch) if bias else hidden(view(model, batch), "2.bias")
    found = infer_counts(seen, torch.Generator(), batch.inputs)
    model.double()
    features = model[:2](batch.inputs.double())  # type: ignore[index]
    outputs = model[2](features)  # type: ignore[index]
    torch.nn.functional.cross_entropy(outputs, batch.labels).backward()
    slope, mean = model[2].bias.grad, features.mean(dim=0).detach()  # type: ignore[index]
    if not bias:
        slope = model[2].weight.grad @ mean / (mean @ mean)  # type: ignore[index]
    expected = len(batch) * (outputs.softmax(1).mean(0).detach() - slope)
    counts = torch.bincount(found, minlength=4)
    assert (counts - expected).abs().max() < 1
    truth = torch.bincount(batch.labels, minlength=4)
    assert int((counts - truth).abs().sum()) <= (0 if bias else 2)


def test_counts_need_the_last_layer() -> None:
    seen = hidden(view(mlp(), records(6, labels=[1, 2])), "2.weight", "2.bias")
    with pytest.raises(NotApplicable, match=r"last layer \(2\) is hidden"):
        infer_counts(seen, torch.Generator())


def test_the_weight_is_asked_where_the_bias_was_cut_away() -> None:
    seen = view(mlp(), records(6, labels=[3]))
    cut = {**seen.update, "2.bias": torch.zeros(4, dtype=torch.float64)}
    assert infer_label(replace(seen, update=cut)).tolist() == [3]
    cut["2.weight"] = torch.zeros_like(cut["2.weight"])
    assert infer_label(replace(seen, update=cut)).tolist() == [0]


@pytest.mark.parametrize(
    ("otherwise", "said"),
    [
        ("", "none; give the attacker the labels with --known-labels"),
        ("wait", "none; wait, or give the attacker the labels with --known-labels"),
    ],
)
def test_a_remedy_that_is_the_answer_can_be_left_out(otherwise: str, said: str) -> None:
    """And an error that a worker sends says the same."""
    error = pickle.loads(pickle.dumps(UnknownLabels("none", otherwise)))
    assert str(error) == said
    assert error.why == said.split(";" if not otherwise else ", or")[0]
