"""A user's loss sees what the model returns and the labels whole, and every engine follows it.

Gradients are tested against a loop of plain autograd over the records, in float64.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradaudit
from gradaudit.config import SubjectSettings
from gradaudit.data.common.user_data import records_of
from gradaudit.errors import AuditError, UsageError
from gradaudit.federation.federated_training import train_rounds
from gradaudit.federation.settings import TrainingOptions
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import CrossEntropy, Loss, ModelLoss
from gradaudit.run.opening import open_subject
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject

N = 6
generator = torch.Generator().manual_seed(3)
X, OTHER, THIRD = (torch.randn(N, 5, generator=generator) for _ in range(3))
PICTURES = torch.rand(N, 1, 6, 6, generator=generator)
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])
MASKS = torch.randint(0, 3, (N, 6, 6), generator=generator)
BOXES = torch.rand(N, 4, generator=generator)
TIGHT = {"rtol": 1e-9, "atol": 1e-11}


class Outputs(NamedTuple):
    code: Tensor
    scores: Tensor


@dataclass
class Named:
    logits: Tensor
    hidden: Tensor
    cache: object = None


class Heads(nn.Module):
    """Segmentation with an auxiliary head, as torchvision returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out, self.aux = (nn.Conv2d(i, o, 3, padding=1) for i, o in _CONVS)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x).tanh()
        return {"out": self.out(features), "aux": self.aux(features)}


_CONVS = ((1, 4), (4, 3), (4, 3))


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 4), nn.Linear(2, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + (0.5 * log_variance).exp()), mean, log_variance


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.net(x)
        return embedded


class Three(Embedding):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Outputs:  # type: ignore[override]
        return Outputs(self.net(a) - self.net(b), (self.net(c) ** 2).sum(1))


class Masked(Embedding):
    """Reconstructs its own input, and returns that beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Named:  # type: ignore[override]
        hidden = self.net(x)
        return Named(self.back(hidden), torch.cat([x, hidden], dim=1), cache=object())


def segmentation(returned: Mapping[str, Tensor], masks: Tensor) -> Tensor:
    return F.cross_entropy(returned["out"], masks) + 0.4 * F.cross_entropy(returned["aux"], masks)


def evidence(returned: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    rebuilt, mean, log_variance = returned
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
    return (rebuilt - x).square().sum(1) + divergence


def of_three(outputs: Outputs, _: object) -> Tensor:
    return (outputs.code.square().sum(1) + outputs.scores.exp()).mean()


def of_itself(outputs: Named, _: object) -> Tensor:
    return (outputs.logits - outputs.hidden[:, :5]).square().mean()


def unused_target(outputs: Tensor, _: object) -> Tensor:
    return outputs.square().sum(1)


def gaussian(returned: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    rebuilt, _, log_variance = returned
    return F.gaussian_nll_loss(rebuilt, x, log_variance.exp().mean(1, keepdim=True).expand_as(x))


class Inside(Embedding):
    """Returns its own loss."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(self.net(x), labels)


class SeveralInside(Embedding):
    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        code = self.net(x)
        return {"classes": F.cross_entropy(code, labels), "size": code.square().mean()}


class ThreeInside(Embedding):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        loss = F.triplet_margin_loss(self.net(a), self.net(b), self.net(c))
        return {"loss": loss, "twice": 2 * loss}


class RealInside(Embedding):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor, box: Tensor) -> Tensor:  # type: ignore[override]
        return F.mse_loss(self.last(self.net(x)), box)


class Case(NamedTuple):
    """A model, its loss, data as a user's function returns it, and how to call both plainly."""

    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor] | Loss
    data: Any
    plain: Callable[[nn.Module, Any, slice], Tensor]


TRIPLETS = {"a": X, "b": OTHER, "c": THIRD}


def rows(tensor: Tensor, part: slice) -> Tensor:
    return tensor[part].double() if tensor.is_floating_point() else tensor[part]


CASES = {
    "segmentation with an auxiliary head": Case(
        Heads, segmentation, (PICTURES, MASKS), lambda m, f, i: f(m(rows(PICTURES, i)), MASKS[i])
    ),
    "a VAE's tuple": Case(Vae, evidence, (X, X), lambda m, f, i: f(m(rows(X, i)), rows(X, i))),
    "a model of three inputs": Case(
        Three,
        of_three,
        {"inputs": TRIPLETS, "labels": None},
        lambda m, f, i: f(m(*(rows(x, i) for x in TRIPLETS.values())), None),
    ),
    "self-supervised": Case(
        Masked,
        of_itself,
        {"inputs": X, "labels": None},
        lambda m, f, i: f(m(rows(X, i)), None),
    ),
    "a target that is not used": Case(
        Embedding,
        unused_target,
        {"inputs": X, "labels": None},
        lambda m, f, i: f(m(rows(X, i)), None),
    ),
}
CASES |= {
    "a variance that must not be negative": Case(
        Vae,
        gaussian,
        (X, X),
        lambda m, f, i: f(m(rows(X, i)), rows(X, i)),
    ),
    "a loss inside the model": Case(
        Inside, ModelLoss(), (X, CLASSES), lambda m, _, i: m(rows(X, i), CLASSES[i])
    ),
    "losses by name inside the model": Case(
        SeveralInside,
        ModelLoss(),
        (X, CLASSES),
        lambda m, _, i: sum(m(rows(X, i), CLASSES[i]).values()),
    ),
    "a loss inside a model of three inputs": Case(
        ThreeInside,
        ModelLoss(),
        {"inputs": TRIPLETS, "labels": None},
        lambda m, _, i: m(*(rows(x, i) for x in TRIPLETS.values()))["loss"],
    ),
    "real targets of a loss inside the model": Case(
        RealInside, ModelLoss(), (X, BOXES), lambda m, _, i: m(rows(X, i), rows(BOXES, i))
    ),
}
EVERY = pytest.mark.parametrize("name", CASES)


def subject_of(case: Case, function: Callable[..., Tensor] | None = None) -> Subject:
    torch.manual_seed(0)
    given = function or case.loss
    loss = given if isinstance(given, Loss) else CustomLoss(given, "losses.py:loss")
    records = records_of(case.data, "data.py:make")
    settings = SubjectSettings(device="cpu")
    return open_subject(settings, model=case.model(), records=records, loss=loss)


def gradient(case: Case, model: nn.Module, part: slice) -> dict[str, Tensor]:
    """Of the mean loss of some records, by plain autograd in float64."""
    model.double().zero_grad()
    case.plain(model, case.loss, part).mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    return {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


@EVERY
def test_gradients_of_single_records(name: str) -> None:
    case = CASES[name]
    subject = subject_of(case)
    target, records = subject.target, subject.records
    found: dict[str, list[Tensor]] = {}
    layers = target.layers
    for chunk in per_sample_gradients(
        target, records.inputs, records.labels, layers, dtype=torch.float64
    ):
        for layer, gradients in chunk.items():
            found.setdefault(layer, []).append(gradients)
    model = case.model()
    model.load_state_dict(target.model.state_dict())
    for index in range(N):
        expected = gradient(case, model, slice(index, index + 1))
        for layer in layers:
            whole = torch.cat([expected[k].flatten() for k in layer.parameter_names])
            torch.testing.assert_close(torch.cat(found[layer.name])[index], whole, **TIGHT)


@EVERY
def test_the_update_of_a_batch(name: str) -> None:
    case = CASES[name]
    subject = subject_of(case)
    records = subject.records
    shared = share(
        subject.target,
        records.inputs,
        records.labels,
        SharingProtocol(),
        torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    model = case.model()
    model.load_state_dict(subject.target.model.state_dict())
    expected = gradient(case, model, slice(0, N))
    assert shared.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(shared[key], expected[key], **TIGHT)


@EVERY
def test_a_loss_travels_to_workers(name: str) -> None:
    case = CASES[name]
    if "lambda" in repr(case.loss):
        pytest.skip("not picklable")
    subject = subject_of(case)
    target = replace(subject.target, loss=pickle.loads(pickle.dumps(subject.target.loss)))
    view = FunctionalModel.of(target)
    records = view.cast(subject.records.inputs), view.cast(subject.records.labels)
    before = FunctionalModel.of(subject.target).losses({}, *records)
    torch.testing.assert_close(view.losses({}, *records), before)


def test_a_loss_that_couples_records_is_told() -> None:
    def similar(outputs: Outputs, _: object) -> Tensor:
        return F.cross_entropy(outputs.code @ outputs.code.T, torch.arange(len(outputs.code)))

    subject = subject_of(CASES["a model of three inputs"], similar)
    view = FunctionalModel.of(subject.target)
    records = view.cast(subject.records.inputs), view.cast(subject.records.labels)
    view.check(*records)
    assert "is no mean over its records" in (view.coupling(*records) or "")
    model = subject.target.model.double()
    whole = similar(model(*(x.double() for x in TRIPLETS.values())), None)
    torch.testing.assert_close(view.batch_loss({}, *records), whole)


def test_a_function_of_the_prediction_alone_is_told_what_it_gets() -> None:
    case = CASES["segmentation with an auxiliary head"]
    view = FunctionalModel.of(subject_of(case, F.cross_entropy).target)
    with pytest.raises(AuditError, match=r"fails on outputs of shapes out .*, aux"):
        view.check(view.cast(PICTURES), MASKS)
    taken = subject_of(case, lambda returned, masks: F.cross_entropy(returned["out"], masks))
    FunctionalModel.of(taken.target).check(view.cast(PICTURES), MASKS)


def test_a_built_in_loss_is_refused_without_labels() -> None:
    records = records_of({"inputs": X, "labels": None}, "data.py:make")
    with pytest.raises(UsageError, match=r"no labels; name a function .* --loss FILE\.py:NAME"):
        open_subject(
            SubjectSettings(device="cpu"), model=Embedding(), records=records, loss=CrossEntropy()
        )


def test_a_defense_that_appends_to_the_outputs_is_refused_for_several() -> None:
    case = CASES["a VAE's tuple"]
    records = records_of(case.data, "data.py:make")
    loss = CustomLoss(case.loss, "losses.py:loss")
    settings = SubjectSettings(device="cpu", defense=("vib",))
    subject = open_subject(settings, model=Vae(), records=records, loss=loss)
    view = FunctionalModel.of(subject.target)
    with pytest.raises(AuditError, match=r"vib: adds a column .* takes whole the tuple"):
        view.check(view.cast(records.inputs), view.cast(records.labels))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"out": torch.ones(2, 3), "aux": torch.tensor(1.0)}, r"aux \(\)"),
        ({"out": torch.ones(2, 3), "aux": torch.ones(3, 3)}, r"aux \(3, 3\)"),
        ({"out": None}, "no tensor"),
        (object(), "returns object"),
    ],
)
def test_outputs_that_are_not_of_the_records_are_refused(returned: Any, says: str) -> None:
    with pytest.raises(AuditError, match=says):
        CustomLoss(segmentation, "l.py:f").taken(returned)


def test_a_loss_that_returns_a_mapping_is_told() -> None:
    loss = CustomLoss(lambda o, _: {"loss": o.mean()}, "l.py:f")  # type: ignore[arg-type,return-value]
    with pytest.raises(AuditError, match="returned dict; return a tensor"):
        loss.check(torch.ones(2, 3), torch.ones(2))


@EVERY
def test_training_follows_the_whole_loss(name: str) -> None:
    case = CASES[name]
    subject = subject_of(case)
    model = case.model()
    model.load_state_dict(subject.target.model.state_dict())
    model.double()
    for _ in range(2):
        moves = gradient(case, model, slice(0, N))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter -= 0.05 * moves[key]
    target = replace(subject.target, model=subject.target.model.double())
    records = replace(subject.records, inputs=subject.records.inputs.double())
    options = TrainingOptions(algorithm="fedsgd", clients=1, rounds=2, rate=0.05)
    *_, last = train_rounds(target, records, options, scored=False)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(last.state[key], parameter.detach(), rtol=1e-6, atol=1e-8)


def test_the_parts_of_a_loss_inside_the_model_are_named() -> None:
    notes = subject_of(CASES["losses by name inside the model"]).target.notes
    assert notes == ("the loss is the sum of classes, size",)
    assert subject_of(CASES["a loss inside the model"]).target.notes == ()


class Summed(Embedding):
    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(self.net(x), labels, reduction="sum")


class Beside(Embedding):
    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": self.net(x), "size": self.net(x).mean()}


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Summed, r"of 6 records the model returns .* alone is .*; return the mean"),
        (Beside, r"the model returns dict of logits, size; return the batch's loss as one number"),
    ],
)
def test_what_is_no_loss_of_records_is_refused(model: type[nn.Module], says: str) -> None:
    subject = subject_of(CASES["a loss inside the model"]._replace(model=model))
    view = FunctionalModel.of(subject.target)
    with pytest.raises(AuditError, match=says):
        view.check(view.cast(subject.records.inputs), view.cast(subject.records.labels))


def test_labels_have_no_place_behind_inputs_by_name() -> None:
    records = records_of({"inputs": {"x": X}, "labels": CLASSES}, "data.py:make")
    with pytest.raises(UsageError, match="return the labels among the inputs, by the name"):
        open_subject(
            SubjectSettings(device="cpu"), model=Inside(), records=records, loss=ModelLoss()
        )
    named = records_of({"inputs": {"x": X, "labels": CLASSES}, "labels": None}, "data.py:make")
    settings = SubjectSettings(device="cpu")
    opened = open_subject(settings, model=Inside(), records=named, loss=ModelLoss())
    view = FunctionalModel.of(opened.target)
    expected = F.cross_entropy(opened.target.model.double().net(X.double()), CLASSES)
    torch.testing.assert_close(view.outputs({}, view.cast(named.inputs)).mean(), expected)


def test_a_loss_of_three_arguments_says_how_it_is_called() -> None:
    with pytest.raises(AuditError, match=r"loss\(outputs, labels\) fails on .* missing 1 required"):
        CustomLoss(nn.GaussianNLLLoss(), "l.py:f").check(torch.ones(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), CrossEntropy()])
def test_a_target_takes_a_loss_as_it_is(loss: Any) -> None:
    model = Embedding()
    subject = gradaudit.Target(model, (X, CLASSES), loss=loss).subject
    view = FunctionalModel.of(subject.target)
    losses = view.losses({}, view.cast(subject.records.inputs), subject.records.labels)
    expected = F.cross_entropy(model.double().net(X.double()), CLASSES, reduction="none")
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, 3])
def test_a_target_refuses_what_is_no_loss(loss: Any) -> None:
    with pytest.raises(UsageError, match=r"give a function of \(outputs, labels\) or an instance"):
        _ = gradaudit.Target(Embedding(), (X, CLASSES), loss=loss).subject


def test_a_loss_that_leaves_torch_is_told() -> None:
    def squares(outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.tensor(float((outputs.detach().numpy()[:, 0] - labels.numpy()).std()))

    reason = CustomLoss(squares, "l.py:f").coupling(torch.randn(4, 3), torch.randn(4))
    assert (reason or "").startswith("--loss l.py:f cannot be")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forward", "attack malicious-server", "attack record"])
def test_audits_of_a_loss_inside_the_model_are_those_of_the_same_loss_outside(name: str) -> None:
    """Layers' inputs and outputs are looked at while the model runs on one record at a time."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(160, 5, generator=generator)
    labels = torch.randint(0, 3, (160,), generator=generator)
    options: dict[str, Any] = {"attack record": {"batch_size": 2, "others": 2}}.get(name, {})
    found = []
    for kind, loss in ((Inside, ModelLoss()), (Embedding, CrossEntropy())):
        torch.manual_seed(0)
        target = gradaudit.Target(kind(), (inputs, labels), loss=loss)
        report = gradaudit.audit(target, audits={name: options})
        measured = [m for m in report.measurements if m.layer == "net.0"]
        rows = ((m.metric, m.layer, str(m.variant), m.value) for m in measured)
        found.append({tuple(key): value for *key, value in rows if value is not None})
    inside, outside = found
    assert any(inside.values())
    assert inside == pytest.approx(outside, rel=1e-6, abs=1e-6)


def test_rows_of_a_table_beside_the_labels_are_not_rebuilt() -> None:
    target = gradaudit.Target(Inside(), (X, CLASSES), loss=ModelLoss())
    report = gradaudit.audit(target, audits={"attack table": {"batches": 1}})
    reasons = {m.reason for m in report.measurements}
    assert reasons == {"the model takes 2 inputs, and rows are rebuilt of one table"}
