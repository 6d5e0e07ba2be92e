"""Labels and inputs reach loss and model as the user has them; each number is plain torch's."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run
from torch import Tensor, nn

from gradaudit.data import load_records
from gradaudit.models.building import load_loss
from gradaudit.models.losses import MeanSquaredError
from gradaudit.report import Report
from gradaudit.run.opening import with_fitting_labels

RECORDS, COLUMNS = 12, 4
LOSSES = {
    "mse": lambda out, y: (out[:, 0] - y).square().mean(),
    "squares": lambda out, y: (out.squeeze(1) - y).square().mean(),
    "hinge": lambda out, y: (1 - y * out.squeeze(1)).clamp(min=0).mean(),
    "ignoring": nn.CrossEntropyLoss(ignore_index=-1),
}
CODE = f"""
import numpy as np, torch
from torch import nn

def net(outputs: int = 1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear({COLUMNS}, 5), nn.Tanh(), nn.Linear(5, outputs))

def squares(out, y): return (out.squeeze(1) - y).square().mean()
def hinge(out, y): return (1 - y * out.squeeze(1)).clamp(min=0).mean()
def own_ignoring(out, y): return nn.functional.cross_entropy(out, y, ignore_index=-1)
ignoring = nn.CrossEntropyLoss(ignore_index=-1)

def data(): return np.load("x.npy"), np.load("y.npy")

def scaled_net():
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(48, 3)
        def forward(self, x): return self.last((x / 255).flatten(1))
    return Net()

def bytes_(): return np.load("x.npy"), np.load("y.npy")
"""


def given(labels: list[int], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(RECORDS, COLUMNS)).astype(np.float32)
    y = np.resize(np.array(labels), RECORDS)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    lines = [
        ",".join([*map(repr, row.tolist()), str(label)]) for row, label in zip(x, y, strict=True)
    ]
    (folder / "t.csv").write_text("\n".join(["a,b,c,d,label", *lines]) + "\n")
    (folder / "code.py").write_text(CODE)
    return x, y


def net(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(COLUMNS, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def by_torch(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: np.ndarray, y: np.ndarray
) -> dict[str, float]:
    """The mean over records of the norm of ∂G/∂x of each layer's weight, by plain autograd."""
    norms: dict[str, list[float]] = {}
    for record, label in zip(torch.from_numpy(x).double(), torch.from_numpy(y), strict=True):

        def gradient(inputs: Tensor, name: str, label: Tensor = label) -> Tensor:
            value = loss(model(inputs[None]), label[None])
            weight = dict(model.named_parameters())[f"{name}.weight"]
            return torch.autograd.grad(value, weight, create_graph=True)[0]

        for name in [n.removesuffix(".weight") for n, _ in model.named_parameters() if "w" in n]:
            jacobian = torch.autograd.functional.jacobian(
                lambda inputs, name=name: gradient(inputs, name), record
            )
            norms.setdefault(name, []).append(float(jacobian.norm()))
    return {name: float(np.mean(each)) for name, each in norms.items()}


def reported(*arguments: str) -> Report:
    done = run("sensitivity", *arguments, "--dtype", "float64", "--probes", "0", "-f", "json")
    assert done.status == 0, done.err
    return Report.model_validate_json(done.out)


CASES = [
    ("csv", [0, 2, 5, 9, 30], "mse", 1),
    ("csv", [3, 4, 5, 6, 7, 8], "mse", 1),
    ("csv", [3, 4, 5, 6, 7, 8], "squares", 1),
    ("csv", [-1, 1], "hinge", 1),
    ("csv", [7], "squares", 1),
    ("factory", [-1, 1], "hinge", 1),
    ("factory", [-1, 1], "mse", 1),
    ("factory", [-1, 0, 1], "squares", 1),
    ("factory", [0, 2, 5, 9, 30], "mse", 1),
    ("factory", [-1, 0, 1, 2], "ignoring", 3),
    ("csv", [-1, 0, 1, 2], "ignoring", 3),
]


@pytest.mark.parametrize(("source", "labels", "loss", "outputs"), CASES)
def test_numbers_stay_numbers(
    source: str,
    labels: list[int],
    loss: str,
    outputs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = given(labels, tmp_path)
    data = {"csv": "csv:t.csv?label=label", "factory": "code.py:data"}[source]
    named = loss if loss == "mse" else f"code.py:{loss}"
    report = reported("-m", f"code.py:net?outputs={outputs}", "-d", data, "--loss", named)
    counted = (y != -1) if "ignoring" in loss else np.full(len(y), True)
    expected = by_torch(net(outputs), LOSSES[loss], x[counted], y[counted])
    for name, value in expected.items():
        (row,) = report.select("sensitivity.input_f", layer=name, variant={})
        share = counted.mean()  # a record that the loss ignores has a gradient of zero
        assert row.value == pytest.approx(value * share, rel=1e-6), row
    assert "labels_encoded" not in report.data["notes"]
    accuracy = report.data["accuracy"]
    if outputs == 1 and len(labels) > 1:
        with torch.no_grad():
            out = net(1)(torch.from_numpy(x).double())[:, 0].numpy()
        r2 = 1 - np.square(out - y).sum() / np.square(y - y.mean()).sum()
        assert accuracy["metric"] == "r2"
        assert accuracy["value"] == pytest.approx(r2, rel=1e-4)


STARS = "text:s.csv?text=words&label=stars&vocabulary=5000&length=256"


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("code.py:net?outputs=3", "csv:t.csv?label=label"),
        ("zoo:textclf?classes=3", STARS),
    ],
)
def test_cross_entropy_alone_encodes_and_says_so(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given([3, 4, 8], tmp_path)
    lines = [f"some words {i},{[3, 4, 8][i % 3]}" for i in range(RECORDS)]
    Path("s.csv").write_text("\n".join(["words,stars", *lines]) + "\n")
    done = run("forward", "-m", model, "-d", data)
    assert "labels encoded: 3 → 0, 4 → 1 and 8 → 2" in " ".join(done.out.split()), done.err


def test_stars_of_texts_stay_numbers_for_every_other_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given([1], tmp_path)
    lines = [f"some words {i},{i % 5 + 1}" for i in range(RECORDS)]
    Path("s.csv").write_text("\n".join(["words,stars", *lines]) + "\n")
    records = load_records("text:s.csv?text=words&label=stars")
    for loss in (MeanSquaredError(), load_loss("code.py:squares")):
        assert with_fitting_labels(records, loss).labels.tolist() == [i % 5 + 1 for i in range(12)]


def test_a_scope_names_separator_and_decimal_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given([0, 1, 2], tmp_path)
    table = Path("t.csv").read_text().replace(",", ";").replace(".", ",")
    Path("t.csv").write_text(table)
    data = "csv:t.csv?label=label&decimal=,"
    done = run("forward", "-m", "code.py:net?outputs=3", "-d", data)
    said = " ".join(done.out.split())
    assert "cells separated by: semicolon; decimals after: comma" in said, done.err


def test_a_mean_over_labels_that_count_is_no_mean_over_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given([-1, 0, 1, 2], tmp_path)
    model = ("-m", "code.py:net?outputs=3", "-d", "code.py:data")
    done = run("sensitivity", *model, "--loss", "code.py:own_ignoring")
    assert done.status == 3
    assert "give it an attribute weights(targets)" in done.err


def test_a_factory_is_never_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given([-1, 0, 1], tmp_path)
    done = run("sensitivity", "-m", "code.py:net?outputs=3", "-d", "code.py:data")
    assert done.status == 3
    assert "labels run from -1 to 1, but the model has 3 classes" in done.err


def test_bytes_of_a_factory_are_not_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given([0, 1, 2], tmp_path)
    pictures = np.random.default_rng(1).integers(0, 256, (RECORDS, 3, 4, 4), dtype=np.uint8)
    np.save("x.npy", pictures)
    report = reported("-m", "code.py:scaled_net", "-d", "code.py:bytes_")
    torch.manual_seed(0)
    last = nn.Linear(48, 3).double()
    norms, labels = [], torch.arange(RECORDS) % 3
    for picture, label in zip(torch.from_numpy(pictures).double(), labels, strict=True):

        def gradient(x: Tensor, label: Tensor = label) -> Tensor:
            loss = nn.functional.cross_entropy(last((x / 255).flatten()[None]), label[None])
            return torch.autograd.grad(loss, last.weight, create_graph=True)[0]

        norms.append(float(torch.autograd.functional.jacobian(gradient, picture).norm()))
    (row,) = report.select("sensitivity.input_f", layer="last", variant={})
    assert row.value == pytest.approx(np.mean(norms), rel=1e-6)


def test_a_picture_adapter_says_that_it_divides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pictures = np.random.default_rng(1).integers(0, 256, (RECORDS, 32, 32), dtype=np.uint8)
    np.savez("p.npz", x=pictures, y=np.arange(RECORDS) % 3)
    model = "zoo:lenet?shape=1x32x32&classes=3"
    done = run("forward", "-m", model, "-d", "npz:p.npz?inputs=x&label=y")
    assert "pictures divided by: 255" in " ".join(done.out.split()), done.err
