"""Exported models against the originals, and what is not known of their layers."""

import copy
import pickle
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from cases import CASES, Case
from report_builder import make_report, row
from torch import Tensor, nn

from gradaudit.config import SubjectSettings
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, CheckpointError, UsageError
from gradaudit.judging import Policy, gate, verdict
from gradaudit.models.building import load_model
from gradaudit.models.exported import load_exported
from gradaudit.models.target import layers_of
from gradaudit.report import LayerRecord
from gradaudit.run.opening import open_subject

pytestmark = [
    pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:`isinstance"),
]

POLICY = Policy.model_validate({"rules": [{"metric": "attack.record_auroc", "max": 0.6}]})
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


def single(model: nn.Module) -> nn.Module:
    """The model as people export it, in float32."""
    return copy.deepcopy(model).float()


def exported(case: Case, file: Path) -> tuple[nn.Module, nn.Module]:
    """A case's model, and the same after a round trip, both in float64."""
    original = case.make_model()
    inputs = case.inputs.float() if case.inputs.is_floating_point() else case.inputs
    back = load_exported(save(single(original).eval(), (inputs,), file))
    return single(original).double().eval(), back.double()


@pytest.mark.slow
@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_outputs_layers_and_per_sample_gradients_are_the_originals(
    case: Case, tmp_path: Path
) -> None:
    original, back = exported(case, tmp_path / "model.pt2")
    assert back.state_dict().keys() == original.state_dict().keys()
    assert back.load_state_dict(original.state_dict()).missing_keys == []
    assert [(layer.name, layer.parameter_names) for layer in layers_of(back)] == [
        (layer.name, layer.parameter_names) for layer in layers_of(original)
    ]
    if case.id == "tied-weights":
        assert back.get_parameter("encoder.weight") is back.get_parameter("decoder.weight")
    outputs = back(case.inputs)
    assert outputs.dtype == torch.float64
    torch.testing.assert_close(outputs, original(case.inputs), rtol=1e-12, atol=1e-12)
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
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)


def records(*shape: int) -> Records:
    return Records(torch.rand(6, *shape), torch.arange(6) % 2, classes=("a", "b"))


def opened(file: Path, mode: str = "eval", shape: tuple[int, ...] = (1, 5)) -> nn.Module:
    settings = SubjectSettings.model_validate({"model": str(file), "mode": mode, "device": "cpu"})
    return open_subject(settings, records=records(*shape)).target.model


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_mode_is_the_one_of_the_export(mode: str, tmp_path: Path) -> None:
    model = Dropping().train(mode == "train")
    file = save(model, (torch.randn(4, 1, 5),), tmp_path / "m.pt2")
    opened(file, mode)
    other = "train" if mode == "eval" else "eval"
    with pytest.raises(UsageError, match=f"--mode {other}: the model was exported in {mode} mode"):
        opened(file, other)


def test_records_of_another_shape_are_refused(dropping: Path) -> None:
    with pytest.raises(AuditError, match=r"exported for records of shape 1x5, these have 1x6"):
        opened(dropping, shape=(1, 6))
    with pytest.raises(AuditError, match=r"shape 1x5, these have 5"):
        opened(dropping, shape=(5,))


def test_copies_and_pickles_run_by_themselves(dropping: Path) -> None:
    x = torch.randn(4, 1, 5)
    back = load_exported(dropping)
    for other in (copy.deepcopy(back), pickle.loads(pickle.dumps(back))):
        assert [layer.name for layer in layers_of(other)] == ["conv", "norm", "fc"]
        assert torch.equal(other(x), back(x))
        with torch.no_grad():
            other.get_parameter("fc.bias").add_(1)
        torch.testing.assert_close(other(x), back(x) + 1)


def test_no_attack_passes_where_the_kinds_of_layers_are_not_known(dropping: Path) -> None:
    """A closed form that is not tried on them would find rows."""
    layers = layers_of(load_exported(dropping))
    report = make_report(row("attack.record_auroc", None, 0.5, details={"effort": "quick"}))
    report.provenance["audits"] = {"attack record": {}}
    assert verdict(gate(report, POLICY)) == "passed"
    kinds = [
        LayerRecord(name=x.name, kind=x.kind, parameters=x.parameters, position=x.position)
        for x in layers
    ]
    exported = report.model_copy(
        update={"target": report.target.model_copy(update={"layers": kinds})}
    )
    judged = gate(exported, POLICY)
    assert verdict(judged) == "undecided"
    assert "fully connected and convolutional layers were not run" in judged.findings[0].message


def test_load_model_takes_an_archive_and_no_options(dropping: Path, tmp_path: Path) -> None:
    assert isinstance(load_model(str(dropping)), nn.Module)
    with pytest.raises(UsageError, match="unknown option 'classes'; it takes no options"):
        load_model(f"{dropping}?classes=3")
    with pytest.raises(UsageError, match=r"none\.pt2: no such file"):
        load_model(str(tmp_path / "none.pt2"))


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inputs", "dynamic", "says"),
    [
        (nn.Linear(3, 2), 1, False, r"fixed to inputs of shape \(4, 3\); export it for any number"),
        (Two(), 2, True, "takes 2 input tensors"),
    ],
)
def test_graphs_that_cannot_be_audited(
    model: nn.Module, inputs: int, says: str, tmp_path: Path, *, dynamic: bool
) -> None:
    file = save(model, (torch.randn(4, 3),) * inputs, tmp_path / "m.pt2", dynamic=dynamic)
    with pytest.raises(CheckpointError, match=rf"m\.pt2: .*{says}"):
        load_exported(file)


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
