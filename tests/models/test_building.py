"""Every form of a MODEL spec, good and bad, the seed, and ``--loss``."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.errors import UsageError
from gradaudit.models.building import load_loss, load_model
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import CrossEntropy, MeanSquaredError
from gradaudit.models.target import layers_of

FACTORIES = """
import random
import numpy as np
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self, width: int = 3): super().__init__(2, width)

def net(width=3): return Net(width)
def drawn_elsewhere():
    net = nn.Linear(1, 2)
    net.weight.data = torch.tensor([[random.random()], [np.random.rand()]])
    return net
def needs(width: int): return Net(width)
def nothing(): return None
def fails(): raise ValueError("no such\\nthing")
def leaves(): raise SystemExit(3)
def lazy(): return nn.LazyLinear(3)
def loss(outputs, targets): return (outputs - targets).abs().mean()
model = Net()
"""


@pytest.fixture
def factories(tmp_path: Path) -> Path:
    file = tmp_path / "factories.py"
    file.write_text(FACTORIES, encoding="utf-8")
    return file


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("spec", "shape", "outputs"),
    [
        ("zoo:lenet", (3, 32, 32), 10),
        ("zoo:lenet?classes=4&activation=tanh&shape=1x28x28", (1, 28, 28), 4),
        ("zoo:mlp?inputs=30&hidden=8,4&classes=2", (30,), 2),
        ("zoo:vgg16-gn?pools=1,2,3,4,5&groups=8", (3, 32, 32), 10),
        ("zoo:deep-leakage?convolutions=7&init=uniform:0.5", (3, 32, 32), 100),
        ("torchvision:resnet18?num_classes=7", (3, 32, 32), 7),
        ("torch.nn:Linear?in_features=6&out_features=5", (6,), 5),
        ("{file}:net?width=4", (2,), 4),
        ("{file}:Net?width=4", (2,), 4),
        ("{file}:needs?width=4", (2,), 4),
    ],
)
def test_every_form(spec: str, shape: tuple[int, ...], outputs: int, factories: Path) -> None:
    model = load_model(spec.format(file=factories))
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, outputs)


def test_layer_names_are_the_models() -> None:
    layers = [layer.name for layer in layers_of(load_model("zoo:dlnet"))]
    assert layers == ["conv1", "conv2", "conv3", "conv4", "output"]


@pytest.mark.parametrize("spec", ["zoo:cnn3", "{file}:net", "{file}:drawn_elsewhere"])
def test_the_seed_draws_the_weights_and_the_generators_stay(spec: str, factories: Path) -> None:
    spec = spec.format(file=factories)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    first, again, other = (weights(load_model(spec, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]  # noqa: NPY002
    assert random.getstate() == states[2]


def test_the_generators_stay_when_the_factory_fails(factories: Path) -> None:
    state = torch.get_rng_state()
    with pytest.raises(UsageError):
        load_model(f"{factories}:fails")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "nothing is named"),
        ("zoo:lenett", "zoo:lenett: unknown (did you mean 'lenet'?); known: alexnet-32"),
        ("zoo:lenet?clases=3", "unknown option 'clases' (did you mean 'classes'?); it takes shape"),
        ("zoo:lenet?classes=ten", "option classes='ten' is not a whole number"),
        ("zoo:lenet?activation=rely", "option activation='rely' is not one of relu"),
        ("zoo:lenet?shape=3x32", "option shape='3x32' is not a list of 3 values"),
        ("zoo:lenet?shape=3x9x9", "shape=3x9x9 is too small: conv2 of width 5 meets 6x2x2"),
        ("zoo:lenet?classes=99999999999999", "building it failed with RuntimeError: "),
        ("zoo:cnn3?variant=5", "option variant='5' is not one of 1, 2, 3, 4"),
        ("zoo:dlnet?init=normal", "init='normal': write default, or uniform:B"),
        ("lenet", "write zoo:lenet"),
        ("resnet", "unknown; write zoo:NAME, torchvision:NAME, hf:FOLDER, path/to/file.py:factory"),
        ("torchvision:resnet81", "not one of its"),
        ("torchvision:resnet81", "(did you mean 'resnet1"),
        ("torchvision:fasterrcnn_resnet50_fpn", "classification models"),
        ("torchvision:resnet18?weights=DEFAULT", "option 'weights' cannot be set here"),
        ("torchvision:resnet18?clases=3", "failed with TypeError: "),
        ("{file}", "name the function in it that returns the model"),
        (str(Path(__file__).parents[2] / "pyproject.toml"), "a file of weights is no model"),
        ("builtins:dict", "returned a dict; return a torch.nn.Module"),
        ("{file}:nett", "there is no 'nett' in it (did you mean 'net'?)"),
        ("{file}:net?widht=3", "unknown option 'widht' (did you mean 'width'?); it takes width"),
        ("{file}:needs", "option 'width' is missing; add ?width=…"),
        ("{file}:nothing", "returned a NoneType; return a torch.nn.Module"),
        ("{file}:fails", "building it failed with ValueError: no such"),
        ("{file}:leaves", "building it failed with SystemExit: 3"),
        ("{file}:lazy", "has lazy layers without a shape"),
        ("{file}:model?width=3", "is a model, which takes no options"),
        ("no/such/file.py:net", "no/such/file.py: cannot be read: No such file"),
        ("no_such_package_xyz:net", "No module named 'no_such_package_xyz'"),
    ],
)
def test_refused_specs(spec: str, message: str, factories: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(spec.format(file=factories))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_losses(factories: Path) -> None:
    assert isinstance(load_loss("cross-entropy"), CrossEntropy)
    assert isinstance(load_loss("mse"), MeanSquaredError)
    assert load_loss("bce").name == "bce"
    custom = load_loss(f"{factories}:loss")
    assert isinstance(custom, CustomLoss)
    outputs, targets = torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [2.0]])
    assert custom.per_record(outputs, targets).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "cross_entropy",
            "unknown (did you mean 'cross-entropy'?); known: cross-entropy, mse, bce",
        ),
        ("zzz", "unknown; known: "),
        ("{file}:los", "there is no 'los' in it (did you mean 'loss'?)"),
        ("no/such.py:loss", "cannot be read"),
        ("torch.nn:HuberLoss", "is a class; name a function of (outputs, targets) or an instance"),
    ],
)
def test_refused_losses(spec: str, message: str, factories: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_loss(spec.format(file=factories))
    assert str(caught.value).startswith(f"--loss {spec.format(file=factories)}: ")
    assert message in str(caught.value)


SHIM = """
import importlib, types
import torch
calls, errors = [], ["CUDA mismatch\\nand more", "operator torchvision::nms does not exist"]
def broken_twice(name):
    calls.append(name)
    if errors:
        raise RuntimeError(errors.pop(0))
    return types.ModuleType(name)
from gradaudit.core import user_code
importlib.import_module = broken_twice
for attempt in range(2):
    try:
        print(user_code.import_torchvision("models").__name__)
        print(torch.ops.torchvision.nms.default._schema)
    except Exception as error:
        print(type(error).__name__, error)
    print(calls)
    calls.clear()
"""


@pytest.mark.processes
def test_of_failures_of_torchvision_missing_operators_are_mended_and_others_told() -> None:
    """They are defined, and the import is repeated."""
    done = subprocess.run(
        [sys.executable, "-c", SHIM], capture_output=True, text=True, check=True, timeout=600
    )
    error, alone, name, schema, both = done.stdout.splitlines()
    assert error.startswith("UsageError torchvision cannot be imported (CUDA mismatch); install")
    assert alone == "['torchvision.models']"
    assert name == "torchvision.models"
    assert "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" in schema
    assert both == "['torchvision.models', 'torchvision.models']"
