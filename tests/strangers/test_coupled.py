"""Records that see each other are found on opening, and their updates are those of plain torch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from gradaudit.audits.sensitivity import Sensitivity
from gradaudit.config import SubjectSettings
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import mean_gradient
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import CrossEntropy, Loss
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject
from gradaudit.sharing.context import Context
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject

N = 64


class Experts(nn.Module):
    """An expert takes no more records of a batch than its capacity."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.gate, self.capacity = nn.Linear(6, 2), capacity
        self.each = nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 5)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = F.one_hot(self.gate(x).argmax(1), 2)
        kept = (chosen * (chosen.cumsum(0) <= self.capacity)).to(x)
        outputs = torch.stack([expert(x) for expert in self.each], dim=1)
        return (outputs * kept[..., None]).sum(1)


class Routed(nn.Module):
    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.experts, self.head = Experts(capacity), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.experts(x).tanh())


def contrastive(outputs: Tensor, labels: Tensor) -> Tensor:
    """Supervised contrastive loss of a batch (Khosla et al. 2020); 0 of one record."""
    features = F.normalize(outputs, dim=1)
    itself = torch.eye(len(outputs), dtype=torch.bool)
    scores = (features @ features.T / 0.5).masked_fill(itself, -1e9)
    positive = (labels[:, None] == labels[None]) & ~itself
    log = scores.log_softmax(1)
    return -((log * positive).sum(1) / positive.sum(1).clamp(min=1)).mean()


def cox(outputs: Tensor, times: Tensor) -> Tensor:
    """Cox's negative partial likelihood without censoring."""
    order = times.flatten().argsort(descending=True)
    scores = outputs[order, 0]
    return (scores.logcumsumexp(0) - scores).mean()


def cox_by_record(outputs: Tensor, times: Tensor) -> Tensor:
    """Cox's terms, one a record: each is a function of those who are still at risk."""
    order = times.flatten().argsort(descending=True)
    scores = outputs[order, 0]
    return (scores.logcumsumexp(0) - scores)[order.argsort()]


def plain(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels)


class Weighted:
    """A weighted mean, which couples nothing."""

    WEIGHT = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, self.WEIGHT)

    def weights(self, labels: Tensor) -> Tensor:
        return self.WEIGHT[labels]


def gradient_only(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean of the records' losses in value, but not in its gradient."""
    pairs = (outputs @ outputs.T).mean()
    return F.cross_entropy(outputs, labels) + pairs - pairs.detach()


def subject_of(
    model: nn.Module, loss: Loss, *, mode: str = "eval", real: bool = False, records: int = N
) -> Subject:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(records, 6, generator=generator)
    labels = torch.rand(records, 1, generator=generator) if real else torch.arange(records) % 3
    data = Records(inputs, labels, () if real else ("a", "b", "c"))
    settings = SubjectSettings(mode=mode)
    return open_subject(settings, model=model, records=data, loss=loss)


def mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs))


def routed(capacity: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return Routed(capacity)


COUPLED: dict[str, tuple[Callable[[], Subject], str]] = {
    "experts": (lambda: subject_of(routed(), CrossEntropy()), "the module `experts` is a function"),
    "contrastive": (
        lambda: subject_of(mlp(), CustomLoss(contrastive, "f.py:supcon")),
        "--loss f.py:supcon is a function",
    ),
    "cox": (
        lambda: subject_of(mlp(1), CustomLoss(cox, "f.py:cox"), real=True),
        "--loss f.py:cox is a function",
    ),
    "cox by record": (
        lambda: subject_of(mlp(1), CustomLoss(cox_by_record, "f.py:terms"), real=True),
        "--loss f.py:terms is a function",
    ),
    "gradient": (
        lambda: subject_of(mlp(), CustomLoss(gradient_only, "f.py:pairs")),
        "--loss f.py:pairs is a function",
    ),
    "batch norm": (
        lambda: subject_of(nn.Sequential(mlp(), nn.BatchNorm1d(3)), CrossEntropy(), mode="train"),
        "1 normalises by its batch's statistics",
    ),
}


@pytest.mark.parametrize("case", COUPLED)
def test_opening_finds_coupled_records_and_says_so(case: str) -> None:
    make, reason = COUPLED[case]
    target = make().target
    assert reason in str(target.coupled)
    assert target.notes == (f"updates are computed batch by batch: {target.coupled}",)


def test_an_older_checkpoint_couples_too(tmp_path: Path) -> None:
    """Experts that were all but one idle in an early round fill their capacity there alone."""
    paths = [tmp_path / f"round-{i}.safetensors" for i in range(2)]
    for path, bias in zip(paths, (100.0, 0.0), strict=True):
        model = routed(18)
        model.experts.gate.bias.data[:] = torch.tensor([bias, 0.0])
        save_file(model.state_dict(), path)
    data = subject_of(routed(18), CrossEntropy()).records
    for given, reason in ((paths, "the module `experts`"), (paths[1:], "None")):
        settings = SubjectSettings(checkpoint=[*map(str, given)])
        targets = open_subject(settings, model=routed(18), records=data).targets
        assert all(reason in str(target.coupled or None) for target in targets)


@pytest.mark.parametrize("case", COUPLED)
def test_audits_of_single_records_are_skipped_with_the_reason(case: str) -> None:
    make, reason = COUPLED[case]
    with pytest.raises(NotApplicable, match="no gradients of their own: .*" + reason[:12]):
        list(Sensitivity().run(make(), Silent()))


@pytest.mark.parametrize("case", COUPLED)
def test_updates_are_those_of_plain_torch(case: str) -> None:
    subject = COUPLED[case][0]()
    target, batch = subject.target, torch.arange(N).flip(0)[:16]
    context = Context(target, subject.records, SharingProtocol(), torch.float64, 1 << 30)
    assert context.engine is None
    assert context.note.startswith("updates are computed batch by batch: ")
    layers = list(context.parameters.values())
    rows = dict.fromkeys(context.parameters, torch.empty(0))
    for _, layer, piece in context.client_rows(batch[None, None], 0).pieces(layers):
        rows[layer.name] = piece[0]
    view = FunctionalModel.of(target)
    given = view.cast(subject.records.inputs[batch]), view.cast(subject.records.labels[batch])
    model = target.model.double().train(target.mode == "train")
    loss = target.loss.function if isinstance(target.loss, CustomLoss) else F.cross_entropy
    names = list(context.parameters)
    expected = torch.autograd.grad(
        loss(model(given[0]), given[1]).mean(),
        [model.get_parameter(name) for name in names],
        materialize_grads=True,
    )
    found = mean_gradient(view, names, *given)
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(rows[name], gradient.flatten(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (mlp, CrossEntropy()),
        (mlp, CustomLoss(plain, "f.py:plain")),
        (mlp, CustomLoss(Weighted(), "f.py:weighted")),
        (lambda: routed(N), CrossEntropy()),
        (lambda: nn.Sequential(mlp(), nn.BatchNorm1d(3)), CrossEntropy()),
        (lambda: nn.Sequential(mlp(), nn.Dropout()), CrossEntropy()),
    ],
    ids=["mlp", "mean", "weighted mean", "room for all", "frozen norm", "dropout"],
)
def test_independent_records_are_told_from_coupled_ones(
    make: Callable[[], nn.Module], loss: Loss
) -> None:
    target = subject_of(make(), loss).target
    assert (target.coupled, target.notes) == ("", ())


@pytest.mark.parametrize(("size", "couples"), [(32, False), (64, True)])
def test_a_capacity_that_binds_in_larger_batches_alone_is_found_there(
    size: int, couples: bool
) -> None:
    capacity = 30
    subject = subject_of(routed(capacity), CrossEntropy(), records=128)
    target, batch = subject.target, np.arange(128)[::-1][:size].reshape(1, size).copy()
    assert target.coupled == ""
    observed = Interceptor(
        target, subject.records, subject.layers, reduce="none", dtype=torch.float64
    )
    features = {layer.name: rows[0] for layer, rows in observed.features(batch)}
    named = "updates are computed batch by batch: the module `experts` is a function"
    assert (named in observed.note) == couples
    x, y = subject.records.inputs[batch[0]].double(), subject.records.labels[batch[0]]
    model = target.model.double()
    weights = [model.get_parameter(layer.parameter_names[0]) for layer in subject.layers]
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), weights, materialize_grads=True)
    for layer, expected in zip(subject.layers, gradients, strict=True):
        torch.testing.assert_close(features[layer.name], expected.flatten(), rtol=1e-6, atol=1e-12)
