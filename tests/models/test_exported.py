"""Exported models against the originals."""

import copy
import pickle
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from cases import CASES, Case
from subjects import subject_of
from torch import Tensor, nn

from gradaudit.errors import AuditError, CheckpointError, UsageError
from gradaudit.models.building import load_model
from gradaudit.models.exported import ExportedModel, load_exported
from gradaudit.models.target import layers_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:`isinstance"),
]

SEVERAL = [
    case
    for case in CASES
    if case.id
    in {
        "conv-grouped-dilated",
        "conv-padding-modes",
        "batch-norm",
        "residual",
        "tied-weights",
        "reused-module",
        "own-parameters",
        "text",
        "lstm",
        "attention",
    }
]


class Dropping(nn.Module):
    """Batch norm and dropout: what differs between training and eval."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.norm(self.conv(x)).tanh()).flatten(1))  # type: ignore[no-any-return]


def save(model: nn.Module, inputs: tuple[Tensor, ...], file: Path, *, dynamic: bool = True) -> Path:
    batch = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in inputs)
    program = torch.export.export(model, inputs, dynamic_shapes=batch if dynamic else None)
    torch.export.save(program, file)
    return file


@pytest.fixture(scope="module")
def dropping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a model in eval mode."""
    file = tmp_path_factory.mktemp("exported") / "dropping.pt2"
    return save(Dropping().eval(), (torch.randn(4, 1, 5),), file)


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """Plain layers one after the other, and an archive of them."""
    file = tmp_path_factory.mktemp("exported") / "chain.pt2"
    return (model := chain()), save(model, (torch.rand(2, 2, 8, 8),), file)


def single(model: nn.Module) -> nn.Module:
    """The model as people export it, in float32."""
    return copy.deepcopy(model).float()


def exported(case: Case, file: Path) -> tuple[nn.Module, ExportedModel]:
    """A case's model, and the same after a round trip, both in float64."""
    original = case.make_model()
    inputs = case.inputs.float() if case.inputs.is_floating_point() else case.inputs
    back = load_exported(save(single(original), (inputs,), file))
    return single(original).double(), back.double().eval()


@pytest.mark.slow
@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_outputs_layers_and_per_sample_gradients_are_the_originals(
    case: Case, tmp_path: Path
) -> None:
    original, back = exported(case, tmp_path / "model.pt2")
    assert list(back.state_dict()) == list(original.state_dict())
    assert back.load_state_dict(original.state_dict()).missing_keys == []
    assert [(layer.name, layer.parameter_names) for layer in layers_of(back)] == [
        (layer.name, layer.parameter_names) for layer in layers_of(original)
    ]
    if case.id == "tied-weights":
        assert back.get_parameter("encoder.weight") is back.get_parameter("decoder.weight")
    outputs = back(case.inputs)
    assert outputs.dtype == torch.float64
    torch.testing.assert_close(outputs, original(case.inputs), rtol=1e-12, atol=1e-12)
    if case.id != "lstm":  # no vmap, of the original either
        compare_gradients(case, original, back)


def compare_gradients(case: Case, *models: nn.Module) -> None:
    def gradients(model: nn.Module) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = torch.func.functional_call(model, parameters, (x[None],))
            return case.loss.per_record(outputs, y[None])[0]

        own = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        return per_sample(own, case.inputs, case.labels)  # type: ignore[no-any-return]

    expected, found = map(gradients, models)
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_modules_are_called_as_the_original_types(dropping: Path) -> None:
    back = load_exported(dropping)
    assert [(layer.name, layer.kind) for layer in layers_of(back)] == [
        ("conv", "Conv1d"),
        ("norm", "BatchNorm1d"),
        ("fc", "Linear"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("exported_in_training", [True, False])
def test_train_and_eval_are_those_of_the_run(exported_in_training: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    original, x = Dropping(), torch.randn(6, 1, 5)
    original.norm.running_mean.normal_()  # type: ignore[union-attr]
    original.train(exported_in_training)
    back = load_exported(save(copy.deepcopy(original), (x,), tmp_path / "m.pt2"))
    for run_in_training in (False, True):
        before = copy.deepcopy(back.state_dict())
        outputs = []
        for model in (original, back):
            model.train(run_in_training)
            torch.manual_seed(1)
            outputs.append(model(x))
        torch.testing.assert_close(outputs[1], outputs[0])
        for name, value in original.state_dict().items():
            if name != "norm.num_batches_tracked":
                torch.testing.assert_close(back.state_dict()[name], value)
            if not run_in_training:
                assert torch.equal(back.state_dict()[name], before[name])


def test_an_export_for_one_record_runs_many(tmp_path: Path) -> None:
    model = single(CASES[0].make_model())
    inputs = CASES[0].inputs.float()
    back = load_exported(save(model, (inputs[:1],), tmp_path / "m.pt2", dynamic=False))
    assert back.input_shape == (1, 4)
    torch.testing.assert_close(back(inputs), model(inputs))


def test_functional_layers_go_through_torch_nn_functional(
    dropping: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 1, 5)
    back = load_exported(dropping)
    linear = Mock(wraps=torch.nn.functional.linear)
    monkeypatch.setattr("torch.nn.functional.linear", linear)
    back(x)
    linear.assert_called_once()
    assert linear.call_args.args[1] is back.get_parameter("fc.weight")


def test_copies_and_pickles_run_by_themselves(dropping: Path) -> None:
    x = torch.randn(4, 1, 5)
    back = load_exported(dropping).eval()
    for other in (copy.deepcopy(back), pickle.loads(pickle.dumps(back))):
        assert [layer.kind for layer in layers_of(other)] == ["Conv1d", "BatchNorm1d", "Linear"]
        assert torch.equal(other(x), back(x))
        with torch.no_grad():
            other.get_parameter("fc.bias").add_(1)
        torch.testing.assert_close(other(x), back(x) + 1)


def test_infinite_arguments_and_dtypes_survive(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.tensor([[False, True, False]])
            scores = self.fc(x).to(torch.float32).masked_fill(mask, -torch.inf)
            weights: Tensor = scores.softmax(1)
            return weights + torch.zeros(3, dtype=torch.float32)

    model, x = Masked(), torch.randn(4, 3)
    back = load_exported(save(model, (x,), tmp_path / "m.pt2")).double()
    expected = model.double().fc(x.double())[:, [0, 2]].softmax(1)
    torch.testing.assert_close(back(x.double())[:, [0, 2]], expected, rtol=1e-12, atol=1e-14)
    assert back(x.double())[:, 1].eq(0).all()


def test_records_of_another_shape_are_refused(dropping: Path) -> None:
    back = load_exported(dropping)
    with pytest.raises(AuditError, match=r"exported for records of shape 1x5, these have 1x6"):
        back(torch.randn(4, 1, 6))
    with pytest.raises(AuditError, match=r"shape 1x5, these have 5"):
        back(torch.randn(4, 5))


def test_load_model_takes_an_archive_and_no_options(dropping: Path, tmp_path: Path) -> None:
    assert isinstance(load_model(str(dropping)), ExportedModel)
    with pytest.raises(UsageError, match="unknown option 'classes'; it takes no options"):
        load_model(f"{dropping}?classes=3")
    with pytest.raises(UsageError, match=r"none\.pt2: no such file"):
        load_model(str(tmp_path / "none.pt2"))


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))  # type: ignore[no-any-return]


@pytest.mark.slow
def test_graphs_that_cannot_be_audited(tmp_path: Path) -> None:
    x, file = torch.randn(4, 3), tmp_path / "m.pt2"

    def refusal(model: nn.Module, *inputs: Tensor, dynamic: bool = True) -> str:
        save(model, inputs, file, dynamic=dynamic)
        with pytest.raises(CheckpointError) as caught:
            load_exported(file)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(f"{file}: ")
        return str(caught.value)

    assert "fixed to batches of exactly 4 records" in refusal(nn.Linear(3, 2), x, dynamic=False)
    assert "takes 2 input tensors" in refusal(Two(), x, x)
    assert "its graph runs cond, which is no plain operator" in refusal(Branching(), x)


@pytest.mark.slow
def test_decomposed_exports_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.pt2"
    batch = ({0: torch.export.Dim("batch", max=64)},)
    for model in (Dropping().eval(), Dropping()):
        program = torch.export.export(model, (torch.randn(4, 1, 5),), dynamic_shapes=batch)
        torch.export.save(program.run_decompositions(), file)
        with pytest.raises(CheckpointError, match="before run_decompositions"):
            load_exported(file)


def test_what_is_run_is_named_as_code_by_its_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights given for a model by mistake are never opened as a program."""
    monkeypatch.setattr("torch.export.load", Mock(side_effect=AssertionError("was run")))
    weights, text = tmp_path / "weights.pt", tmp_path / "text.pt2"
    torch.save({"weight": torch.zeros(2)}, weights)
    text.write_text("hello")
    with pytest.raises(UsageError, match="is no model; give it with --checkpoint"):
        load_model(str(weights))
    with pytest.raises(CheckpointError, match=r"is no torch\.export archive \(weights go to"):
        load_model(str(weights.rename(tmp_path / "weights.pt2")))
    with pytest.raises(CheckpointError, match="cannot be read as a zip"):
        load_model(str(text))


def test_a_damaged_archive_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "damaged.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("damaged/archive_format", "pt2")
    with pytest.raises(
        CheckpointError, match=r"damaged\.pt2: torch\.export\.load cannot"
    ) as caught:
        load_exported(file)
    assert "\n" not in str(caught.value)


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=1, groups=2),
        nn.Sigmoid(),
        nn.Conv2d(4, 3, (2, 1), padding="same", bias=False),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(48, 2),
    )


def test_plain_layers_are_modules_of_torch_nn_again(chained: tuple[nn.Module, Path]) -> None:
    original, back = chained[0], load_exported(chained[1])
    for name, layer in original.named_children():
        if not list(layer.parameters()):
            continue
        again = back.get_submodule(name)
        assert type(again) is type(layer)
        assert not isinstance(layer, nn.Conv2d) or again.extra_repr() == layer.extra_repr()
    assert {n: tuple(p.shape) for n, p in back.named_parameters()} == {
        n: tuple(p.shape) for n, p in original.named_parameters()
    }
    assert not [p for p in back.parameters() if p.is_meta]


def test_the_rank_of_an_exported_convolution_is_the_original_s(
    chained: tuple[nn.Module, Path],
) -> None:
    from gradaudit.audits.copa_metric import CopaMetric, CopaOptions
    from gradaudit.data.records import Records
    from gradaudit.models.losses import CrossEntropy
    from gradaudit.models.target import Target
    from gradaudit.progress import Silent

    original, back = chained[0], load_exported(chained[1])
    records = Records(inputs=torch.rand(2, 2, 8, 8), labels=torch.tensor([0, 1]))

    def ranks(model: nn.Module) -> dict[tuple[str, str | None], object]:
        target = Target(model.eval(), CrossEntropy())
        rows = CopaMetric(CopaOptions()).run(subject_of(target, records), Silent())
        return {(row.metric, row.layer): (row.value, row.interval, row.reason) for row in rows}

    found = ranks(back)
    assert found == ranks(original)
    assert found["c", None][0] is not None  # type: ignore[index]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.conv(x).tanh()).flatten(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv1d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
        Twice(),
    ],
    ids=["padding", "twice"],
)
def test_what_is_no_plain_layer_stays_and_says_so(model: nn.Module, tmp_path: Path) -> None:
    from gradaudit.audits.copa_metric import CopaMetric, CopaOptions
    from gradaudit.data.records import Records
    from gradaudit.errors import NotApplicable
    from gradaudit.models.losses import CrossEntropy
    from gradaudit.models.target import Target
    from gradaudit.progress import Silent

    inputs = torch.rand(2, 2, 8)
    back = load_exported(save(model, (inputs,), tmp_path / "model.pt2"))
    assert not any(isinstance(part, nn.Conv1d) for part in back.modules())
    torch.testing.assert_close(back(inputs), model(inputs))
    target = Target(back, CrossEntropy())
    records = Records(inputs=inputs, labels=torch.tensor([0, 1]))
    subject = subject_of(target, records)
    with pytest.raises(NotApplicable, match=r"path/to/file\.py:factory"):
        list(CopaMetric(CopaOptions()).run(subject, Silent()))
